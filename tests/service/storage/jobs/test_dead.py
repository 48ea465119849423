"""Dead jobs: they failed by a fault of the servers, and can be run again."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from service.errors import Problem
from service.storage.jobs.base import MAX_DEAD, JobStore
from service.storage.jobs.job import Job, Status
from service.storage.jobs.sqlite import SqliteJobStore
from tests.support.job_stores import LIMITS, SENT, add_job, finish_job

Open = Callable[..., JobStore]


def kill(store: JobStore, job: Job) -> None:
    """End it by a fault of the server."""
    while (claimed := store.claim()) is not None and claimed.id != job.id:
        pass
    assert store.mark_started(job.id) == 1
    assert finish_job(store, job, b"sorry", Status.FAILED, "internal-error")


def test_a_dead_job_is_listed_and_run_again(open_store: Open) -> None:
    store = open_store()
    job = add_job(store, b"body", key="k", fingerprint=b"1", owner="a")
    kill(store, job)
    assert store.count() == (0, 1)
    (dead,) = store.list_dead()
    assert (dead.id, dead.owner, dead.route, dead.request_id) == (job.id, "a", "/sample", "r")
    assert (dead.reason, dead.starts, dead.has_request) == ("internal-error", 1, True)
    assert abs(dead.failed - time.time()) < 60
    assert abs(dead.created - job.created) < 1e-3
    failed = store.get(job.id)
    assert failed is not None
    assert failed.status is Status.FAILED
    answer = store.get_response(job.id)
    assert answer is not None
    assert (answer.status_code, answer.body) == (500, b"sorry")
    assert add_job(store, key="k", fingerprint=b"1").id == job.id

    assert store.requeue(job.id)
    assert not store.requeue(job.id)
    assert store.count() == (1, 0)
    assert store.get_response(job.id) is None
    again = store.claim()
    assert again is not None
    assert (again.id, again.starts, again.status) == (job.id, 0, Status.RUNNING)
    assert store.get_request(job.id) == SENT
    assert store.get_body(job.id) == b"body"
    assert store.mark_started(job.id) == 1
    assert finish_job(store, again, b"done")
    assert store.count() == (0, 0)
    answer = store.get_response(job.id)
    assert answer is not None
    assert answer.body == b"done"


def test_a_dead_job_outlives_its_response_and_its_key_does_not(open_store: Open) -> None:
    store = open_store(keep_s=0.05)
    job = add_job(store, key="k", fingerprint=b"1")
    kill(store, job)
    time.sleep(0.1)
    store.expire()
    assert store.get(job.id) is None
    other = add_job(store, key="k", fingerprint=b"2")
    assert other.id != job.id
    assert store.requeue(job.id)
    assert store.get(job.id) is not None
    assert store.count() == (2, 0)
    kill(store, other)
    assert store.delete(other.id)
    assert store.list_dead() == []


def test_the_list_is_bounded_in_number_and_bytes(open_store: Open) -> None:
    store = open_store(keep_s=0.0)
    jobs = [add_job(store, owner="a") for _ in range(1)]
    kill(store, jobs[0])
    for _ in range(MAX_DEAD):
        job = add_job(store)
        kill(store, job)
    assert len(store.list_dead()) == MAX_DEAD
    assert jobs[0].id not in {job.id for job in store.list_dead()}
    store.expire()
    assert not store.requeue(jobs[0].id)
    large = add_job(store, b"x" * ((1 << 20) - 5000))
    assert store.claim() is not None
    finish_job(store, large, b"y" * 900_000)
    assert len(store.list_dead()) < MAX_DEAD


def test_a_file_of_the_version_before_is_read(tmp_path: Path) -> None:
    path = tmp_path / "jobs.sqlite"
    store = SqliteJobStore(path, LIMITS)
    store.open()
    job, done = add_job(store, b"body"), add_job(store)
    assert finish_job(store, done, b"yes")
    store.close()
    with sqlite3.connect(path) as db:
        db.execute("DROP INDEX dead_jobs")
        for column in ("fault", "seal", "body_seal", "answer_seal"):
            db.execute(f"ALTER TABLE jobs DROP COLUMN {column}")
        db.execute("PRAGMA user_version = 3")
    db.close()
    store.open()
    assert store.get_request(job.id) == SENT
    assert store.get_body(job.id) == b"body"
    answer = store.get_response(done.id)
    assert answer is not None
    assert answer.body == b"yes"
    kill(store, job)
    assert [dead.id for dead in store.list_dead()] == [job.id]
    store.close()


def test_ids_are_those_of_the_store_alone(open_store: Open) -> None:
    store = open_store()
    running: Any = add_job(store)
    assert not store.requeue(running.id)
    assert not store.requeue("none")
    assert not store.requeue("\\xff")
    assert store.count() == (1, 0)


@pytest.fixture
def file_store(tmp_path: Path) -> Iterator[tuple[SqliteJobStore, Callable[[str, Any], None]]]:
    """A store in a file, and a function that damages a column of all of its rows."""
    path = tmp_path / "jobs.sqlite"
    store = SqliteJobStore(path, LIMITS)
    store.open()

    def damage(column: str, value: Any) -> None:
        store.close()
        with sqlite3.connect(path) as db:
            db.execute(f"UPDATE jobs SET {column} = ? WHERE rowid = 1", [value])
        db.close()
        store.open()

    yield store, damage
    store.close()


@pytest.mark.parametrize(
    ("column", "value"),
    [
        *(
            ("body", b"[]"),
            ("body", None),
            ("body_seal", b"1"),
            ("seal", b"2 0 00"),
            ("seal", None),
        ),
        *(("headers", "[[1"), ("route", b"\xff"), ("query", "x")),
        *(("owner", "b"), ("created", "soon"), ("status", "dine"), ("fingerprint", b"2")),
    ],
)
def test_a_damaged_row_fails_and_the_others_go_on(file_store, column: str, value: Any) -> None:
    store, damage = file_store
    bad, good = add_job(store, key="k", fingerprint=b"1"), add_job(store)
    damage(column, value)
    claimed = store.claim()
    if claimed.id == bad.id:  # only its body shows it
        with pytest.raises(Problem, match="job-lost"):
            store.get_body(bad.id)
        claimed = store.claim()
    assert claimed.id == good.id
    assert finish_job(store, claimed)
    assert store.claim() is None
    assert store.get(bad.id).status is Status.FAILED
    assert store.get_response(bad.id).status_code == 410
    assert store.count() == (0, 1)
    assert store.list_dead()[0].reason.startswith("damaged: ")
    assert add_job(store, key="k", fingerprint=b"1").id != bad.id


@pytest.mark.parametrize("column", ["status", "code", "answer_headers", "answer", "answer_seal"])
def test_a_damaged_response_of_a_file_is_never_served(file_store, column: str) -> None:
    store, damage = file_store
    bad, good = add_job(store), add_job(store)
    assert finish_job(store, bad, b"one")
    assert finish_job(store, good, b"two")
    damage(column, b"\xff")
    assert store.get_response(bad.id).status_code == 410
    assert store.get(bad.id).status is Status.FAILED
    assert store.get_response(good.id).body == b"two"
