"""Jobs in a SQLite file: its clock, its lock, damage to it, and kills of its process."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest

from service.storage.jobs.job import Status
from service.storage.jobs.sqlite import SqliteJobStore
from service.storage.sqlite import StoreError
from tests.support.job_stores import LIMITS, add_job, finish_job
from tests.support.server import REPO


@pytest.mark.parametrize("step_s", [900.0, -86400.0])
def test_a_step_of_the_wall_clock_is_no_time_that_passed(open_file, monkeypatch, step_s):
    store = open_file()
    before = add_job(store)
    finish_job(store, before)
    wall = time.time
    monkeypatch.setattr(time, "time", lambda: wall() + step_s)
    after = add_job(store)
    finish_job(store, after)
    store.expire()
    for job in (before, after):
        assert store.get(job.id).status is Status.DONE
        assert store.get_response(job.id).body == b"x"
    store.close()
    again = open_file()  # and between processes
    again.expire()
    assert [again.get(job.id) is not None for job in (before, after)] == [True, True]


def test_jobs_age_while_a_process_has_the_file(open_file, monkeypatch):
    first = open_file()
    job = add_job(first)
    finish_job(first, job)
    monotonic, ahead = time.monotonic, [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: monotonic() + ahead[0])
    ahead[0] = 400.0
    first.expire()
    first._database.close()  # as a killed process does: its last seconds are not stored
    ahead[0] = -10_000.0  # the machine was started anew
    second = open_file()
    second.expire()
    assert second.get(job.id) is not None
    ahead[0] += 190.0
    assert second.get(job.id) is not None
    ahead[0] += 11.0
    assert second.get(job.id) is None
    second.expire()
    with second._transaction() as db:
        assert db.execute("SELECT COUNT(*) FROM jobs").fetchone() == (0,)


def test_jobs_that_ended_in_the_future_age_from_now_on(open_file, monkeypatch):
    """As a file of an older version has them, whose server had a clock that was ahead."""
    store = open_file()
    job = add_job(store)
    finish_job(store, job)
    with store._transaction() as db:
        db.execute("UPDATE jobs SET ended = ended + 86400")
        db.execute("DROP TABLE clock")
    store.close()
    store = open_file()
    assert store.get(job.id) is not None
    monotonic = time.monotonic
    monkeypatch.setattr(time, "monotonic", lambda: monotonic() + LIMITS.keep_s + 1)
    assert store.get(job.id) is None


def test_one_process_has_the_file(open_file, tmp_path):
    store = open_file()
    with pytest.raises(StoreError, match="another process has it"):
        open_file()
    store.close()
    open_file()
    assert (tmp_path / "var" / "jobs.sqlite").stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("damage", ["no database", "another's", "cut off", "no folder"])
def test_a_file_that_is_none_is_refused_and_left_alone(open_file, tmp_path, damage):
    path = tmp_path / "var" / "jobs.sqlite"
    path.parent.mkdir()
    if damage == "no database":
        path.write_bytes(b"something else " * 1000)
    elif damage == "another's":
        with sqlite3.connect(path) as db:
            db.execute("CREATE TABLE mine (x)")
        db.close()
    elif damage == "cut off":
        store = open_file()
        for _ in range(5):
            add_job(store, b"x" * 50_000)
        store.close()
        os.truncate(path, 60_000)
    else:
        path.parent.rmdir()
        path.parent.write_bytes(b"a file")
    before = path.read_bytes() if path.is_file() else b""
    with pytest.raises(StoreError, match=str(path)):
        open_file()
    assert (path.read_bytes() if path.is_file() else b"") == before


_WRITER = """
import sys
from pathlib import Path
from starlette.responses import Response
from service.storage.jobs.job import Job, Status
from service.storage.jobs.base import JobLimits
from service.storage.jobs.sqlite import SqliteJobStore
from service.storage.jobs.redis import RedisJobStore
from service.storage.jobs.request import StoredRequest
store = SqliteJobStore(Path(sys.argv[1]), JobLimits(10**6, 10**9, 600))
store.open()
while True:
    job = store.add(Job("/", "r"), StoredRequest("POST", "/", b"", ()), b"x" * 20_000, None, b"")
    print("added", job.id, flush=True)
    store.claim()
    store.mark_started(job.id)
    store.complete(job, Status.DONE, Response(job.id))
    print("over", job.id, flush=True)
"""


def test_nothing_acknowledged_is_lost_by_a_kill(tmp_path):
    path = tmp_path / "jobs.sqlite"
    lines: list[list[str]] = []
    for count in (7, 30, 12):  # of two a job
        writer = subprocess.Popen(
            [sys.executable, "-c", _WRITER, str(path)], cwd=REPO, stdout=subprocess.PIPE
        )
        assert writer.stdout
        lines += [writer.stdout.readline().decode().split() for _ in range(count)]
        writer.send_signal(signal.SIGKILL)
        lines += [line.decode().split() for line in writer.stdout.readlines() if b"\n" in line]
        writer.wait()
        writer.stdout.close()
    store = SqliteJobStore(path, LIMITS)
    store.open()
    left = {job.id: job for job in iter(store.claim, None)}
    for event, id in lines:
        answer = store.get_response(id)
        assert answer is not None or (event == "added" and left[id].starts <= 1)
        assert answer is None or answer.body == id.encode()
    assert len(left) <= 3  # one for each kill
    store.close()


def test_a_store_that_is_not_open_says_so(tmp_path):
    store = SqliteJobStore(Path(tmp_path) / "jobs.sqlite", LIMITS)
    with pytest.raises(StoreError, match="not open"):
        store.get("x")
    store.close()
