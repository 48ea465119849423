"""The store of jobs: what it keeps, what it refuses, what a crash leaves of it."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest
from starlette.responses import Response

from service.errors import Problem
from service.storage.jobs.base import JobLimits
from service.storage.jobs.job import Job, Status
from service.storage.jobs.redis import RedisJobStore
from service.storage.jobs.request import StoredRequest
from service.storage.jobs.sqlite import SqliteJobStore
from service.storage.redis_client import RedisClient
from service.storage.sqlite import StoreError
from tests.support.server import REPO

SENT = StoredRequest(
    "POST", "/sample", b"a=1", (("accept", "*/*"), ("content-type", "application/json"))
)
LIMITS = JobLimits(max_jobs=9, max_bytes=1 << 20, keep_s=600)


@pytest.fixture(params=["sqlite", "redis"])
def any_opened(request, tmp_path):
    """Opens stores of one kind, one after the other, and closes them in the end."""
    if request.param == "sqlite":
        yield request.getfixturevalue("opened")
        return
    link = RedisClient(request.getfixturevalue("redis_server")().url, 5.0)

    def one(**limits) -> RedisJobStore:
        store = RedisJobStore(link, JobLimits(**vars(LIMITS) | limits))
        store.open()
        return store

    yield one
    link.blocking_client.close()


@pytest.fixture
def opened(tmp_path):
    """Opens stores on one file, and closes them in the end."""
    stores = []

    def one(**limits) -> SqliteJobStore:
        store = SqliteJobStore(tmp_path / "var" / "jobs.sqlite", JobLimits(**vars(LIMITS) | limits))
        stores.append(store)
        store.open()
        return store

    yield one
    for store in stores:
        store.close()


def add(store, body=b"{}", key=None, fingerprint=b"", owner="") -> Job:
    return store.add(Job("/sample", "r", owner=owner), SENT, body, key, fingerprint)


def finish(store, job, body=b"x", status=Status.DONE) -> bool:
    return store.complete(job, status, Response(body, 200 if status is Status.DONE else 422))


def crash(store, job) -> None:
    """Whoever runs it is no more, and it is claimed again."""
    if isinstance(store, SqliteJobStore):
        store.close()
        store.open()
    else:
        store._link.blocking_client.zadd("basin:jobs:running", {job.id: 0})
    assert store.claim().id == job.id


def refused(kind, act):
    with pytest.raises(Problem) as error:
        act()
    assert error.value.kind == kind


def test_a_request_stays_what_it_was(any_opened):
    store = any_opened()
    job = add(store, b"\x00\xff")
    assert store.count()[0] == 1
    assert store.claim() == job
    assert store.claim() is None
    assert (store.get_request(job.id), store.get_body(job.id)) == (SENT, b"\x00\xff")
    assert store.get_response(job.id) is None


def test_an_answer_takes_the_place_of_its_request_once(any_opened):
    store = any_opened()
    job = add(store)
    job.progress.step, job.progress.energy = 7, -1.5
    answer = Response(b"no", 422, {"x-one": "é"}, "text/plain")
    assert store.complete(job, Status.FAILED, answer)
    finish(store, job, b"another")
    kept = store.get(job.id)
    assert (kept.status, kept.progress) == (Status.FAILED, job.progress)
    found = store.get_response(job.id)
    assert (found.status_code, found.body) == (422, b"no")
    assert found.raw_headers == answer.raw_headers
    assert store.mark_started(job.id) is None
    assert store.claim() is None
    assert store.count()[0] == 0


def test_what_is_forgotten_stays_so(any_opened):
    store = any_opened()
    job = add(store)
    assert store.delete(job.id)
    assert not store.delete(job.id)
    assert not finish(store, job)
    assert store.mark_started(job.id) is None
    assert store.get(job.id) is None


def test_starts_are_counted_and_taken_back(any_opened):
    store = any_opened()
    job, other = add(store), add(store)
    assert store.claim() == job
    for starts in (1, 2, 3):  # as if it had been running at two crashes
        assert store.mark_started(job.id) == starts
        if starts < 3:
            crash(store, job)
    store.release(job.id, True)
    assert store.mark_started(job.id) is None  # it is nobody's
    again = store.claim()  # before the other, for it is a suspect
    assert (again.id, again.starts) == (job.id, 2)
    store.release(job.id, False)
    assert store.claim().starts == 2
    assert store.claim() == other


def test_one_key_one_request(any_opened):
    store = any_opened()
    job = add(store, key="k", fingerprint=b"1")
    assert add(store, key="k", fingerprint=b"1").id == job.id
    refused("key-reused", lambda: add(store, key="k", fingerprint=b"2"))
    finish(store, job)
    again = add(store, key="k", fingerprint=b"1")
    assert (again.id, again.status) == (job.id, Status.DONE)
    assert add(store).id != add(store).id  # without a key there is nothing to know again
    store.delete(job.id)
    assert add(store, key="k", fingerprint=b"2").id != job.id


def test_the_oldest_answers_make_room(any_opened):
    store = any_opened(max_bytes=22_000)
    first, second = add(store), add(store)
    for job in (first, second):
        finish(store, job, b"x" * 6_000)
    waiting = add(store)  # 2 * (6,000 + 4,096) and 4,098 bytes
    assert store.get(first.id) is None
    assert store.get(second.id)
    finish(store, waiting, b"x" * 50_000)
    assert store.get(second.id) is None
    assert store.get(waiting.id)  # the newest stays, whatever it takes


def test_requests_that_wait_are_bounded(any_opened):
    store = any_opened(max_jobs=2, max_bytes=20_000)
    refused("body-too-large", lambda: add(store, b"x" * 16_000))
    kept = add(store, b"x" * 10_000)
    refused("queue-full", lambda: add(store, b"x" * 10_000))
    add(store)
    refused("queue-full", lambda: add(store))
    finish(store, kept)
    add(store)


def test_one_key_leaves_room_for_others(any_opened):
    store = any_opened(max_jobs=4, max_bytes=100_000)
    first = add(store, owner="many")
    add(store, owner="many")
    refused("queue-full", lambda: add(store, owner="many"))
    add(store, owner="other")
    finish(store, first)
    add(store, b"x" * 40_000, owner="many")
    refused("queue-full", lambda: add(store, owner="many"))


def test_one_key_leaves_bytes_for_others(any_opened):
    store = any_opened(max_bytes=100_000)
    add(store, b"x" * 50_000, owner="large")
    refused("queue-full", lambda: add(store, owner="large"))
    add(store, b"x" * 40_000, owner="other")
    # The next one counts, not only those before it.
    refused("queue-full", lambda: add(store, b"x" * 10_000, owner="other"))


def test_many_answers_of_one_key_drop_no_answer_of_another(any_opened):
    store = any_opened(max_bytes=60_000)
    mine = add(store, owner="few")
    finish(store, mine, b"x" * 1_000)
    for _ in range(12):
        finish(store, add(store, owner="many"), b"x" * 8_000)
    newer = [add(store, owner="few") for _ in range(2)]
    for job in newer:
        finish(store, job, b"x" * 1_000)
    assert all(store.get(job.id) for job in (mine, *newer))


def test_jobs_of_keys_take_turns(any_opened):
    store = any_opened()
    many = [add(store, owner="many") for _ in range(3)]
    few = [add(store, owner="few") for _ in range(2)]
    claimed = [store.claim().id for _ in range(4)]
    assert claimed == [job.id for job in (many[0], few[0], many[1], few[1])]
    finish(store, few[0])
    few.append(add(store, owner="few"))
    assert store.claim().id == few[2].id  # two of the other key run
    assert store.claim().id == many[2].id


def test_the_owner_s_answers_make_room_before_others_do(any_opened):
    store = any_opened(max_bytes=50_000)
    other, mine, late = (add(store, owner=owner) for owner in ("other", "mine", "mine"))
    for job in (other, mine, late):
        finish(store, job, b"x" * 10_000)
    new = add(store, owner="mine")
    finish(store, new, b"x" * 10_000)
    assert [store.get(job.id) is not None for job in (other, mine, late, new)] == [
        *(True, False, True, True)
    ]


def test_answers_are_kept_for_a_time(any_opened):
    store = any_opened(keep_s=0.01)
    running, over = add(store), add(store, key="k")
    finish(store, over)
    time.sleep(0.02)
    assert store.get(over.id) is None
    assert store.get_response(over.id) is None
    assert add(store, key="k", fingerprint=b"2").id != over.id
    assert store.get(running.id)


@pytest.mark.parametrize("step_s", [900.0, -86400.0])
def test_a_step_of_the_wall_clock_is_no_time_that_passed(opened, monkeypatch, step_s):
    store = opened()
    before = add(store)
    finish(store, before)
    wall = time.time
    monkeypatch.setattr(time, "time", lambda: wall() + step_s)
    after = add(store)
    finish(store, after)
    store.expire()
    for job in (before, after):
        assert store.get(job.id).status is Status.DONE
        assert store.get_response(job.id).body == b"x"
    store.close()
    again = opened()  # and between processes
    again.expire()
    assert [again.get(job.id) is not None for job in (before, after)] == [True, True]


def test_jobs_age_while_a_process_has_the_file(opened, monkeypatch):
    first = opened()
    job = add(first)
    finish(first, job)
    monotonic, ahead = time.monotonic, [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: monotonic() + ahead[0])
    ahead[0] = 400.0
    first.expire()
    first._database.close()  # as a killed process does: its last seconds are not stored
    ahead[0] = -10_000.0  # the machine was started anew
    second = opened()
    second.expire()
    assert second.get(job.id) is not None
    ahead[0] += 190.0
    assert second.get(job.id) is not None
    ahead[0] += 11.0
    assert second.get(job.id) is None
    second.expire()
    with second._transaction() as db:
        assert db.execute("SELECT COUNT(*) FROM jobs").fetchone() == (0,)


def test_jobs_that_ended_in_the_future_age_from_now_on(opened, monkeypatch):
    """As a file of an older version has them, whose server had a clock that was ahead."""
    store = opened()
    job = add(store)
    finish(store, job)
    with store._transaction() as db:
        db.execute("UPDATE jobs SET ended = ended + 86400")
        db.execute("DROP TABLE clock")
    store.close()
    store = opened()
    assert store.get(job.id) is not None
    monotonic = time.monotonic
    monkeypatch.setattr(time, "monotonic", lambda: monotonic() + LIMITS.keep_s + 1)
    assert store.get(job.id) is None


@pytest.fixture
def two(redis_server):
    """Two processes on one Redis, with a lease of two seconds."""
    link = RedisClient(redis_server().url, 5.0)
    stores = [RedisJobStore(link, LIMITS, 2.0) for _ in range(2)]
    yield stores
    link.blocking_client.close()


def test_a_job_of_who_is_not_heard_is_another_s(two):
    dead, other = two
    jobs = [add(dead), add(dead)]
    assert [dead.claim(), dead.claim()] == jobs
    assert [dead.mark_started(job.id) for job in jobs] == [1, 1]
    taken = None
    end = time.monotonic() + 10
    while taken is None:  # it is heard though it claims nothing else
        assert time.monotonic() < end
        time.sleep(0.2)
        other.expire()
        taken = other.claim()
    assert (taken.id, taken.starts) == (jobs[0].id, 1)
    assert dead.mark_started(jobs[0].id) is None
    # The other one waits, and its holder was not dead after all.
    assert dead.heartbeat(jobs) == []
    assert other.claim() is None
    assert other.count()[0] == 2
    assert finish(dead, jobs[0], b"first")  # whoever is first
    assert not finish(other, taken, b"second")
    assert finish(dead, jobs[0])  # asked again, as after an answer that was lost
    assert dead.get_response(jobs[0].id).body == b"first"


def test_after_a_silence_of_all_nobody_loses_a_job(two):
    one, other = two
    job = add(one)
    assert one.claim() == job
    assert one.mark_started(job.id) == one.mark_started(job.id) == 1  # asked again
    time.sleep(2.5)
    assert other.claim() is None
    assert one.heartbeat([job]) == []


def test_one_process_has_the_file(opened, tmp_path):
    store = opened()
    with pytest.raises(StoreError, match="another process has it"):
        opened()
    store.close()
    opened()
    assert (tmp_path / "var" / "jobs.sqlite").stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("damage", ["no database", "another's", "cut off", "no folder"])
def test_a_file_that_is_none_is_refused_and_left_alone(opened, tmp_path, damage):
    path = tmp_path / "var" / "jobs.sqlite"
    path.parent.mkdir()
    if damage == "no database":
        path.write_bytes(b"something else " * 1000)
    elif damage == "another's":
        with sqlite3.connect(path) as db:
            db.execute("CREATE TABLE mine (x)")
        db.close()
    elif damage == "cut off":
        store = opened()
        for _ in range(5):
            add(store, b"x" * 50_000)
        store.close()
        os.truncate(path, 60_000)
    else:
        path.parent.rmdir()
        path.parent.write_bytes(b"a file")
    before = path.read_bytes() if path.is_file() else b""
    with pytest.raises(StoreError, match=str(path)):
        opened()
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


def test_nothing_that_was_told_is_lost_by_a_kill(tmp_path):
    path = tmp_path / "jobs.sqlite"
    told: list[list[str]] = []
    for lines in (7, 30, 12):  # of two a job
        writer = subprocess.Popen(
            [sys.executable, "-c", _WRITER, str(path)], cwd=REPO, stdout=subprocess.PIPE
        )
        assert writer.stdout
        told += [writer.stdout.readline().decode().split() for _ in range(lines)]
        writer.send_signal(signal.SIGKILL)
        told += [line.decode().split() for line in writer.stdout.readlines() if b"\n" in line]
        writer.wait()
        writer.stdout.close()
    store = SqliteJobStore(path, LIMITS)
    store.open()
    left = {job.id: job for job in iter(store.claim, None)}
    for what, id in told:
        answer = store.get_response(id)
        assert answer is not None or (what == "added" and left[id].starts <= 1)
        assert answer is None or answer.body == id.encode()
    assert len(left) <= 3  # one for each kill
    store.close()


def test_where_there_is_no_folder_nothing_is_asked_of_it(tmp_path):
    store = SqliteJobStore(Path(tmp_path) / "jobs.sqlite", LIMITS)
    with pytest.raises(StoreError, match="not open"):
        store.get("x")
    store.close()
