"""Jobs that were claimed and had no answer: they keep no other waiting."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from service.storage.jobs.base import JobStore
from service.storage.jobs.job import Status
from service.storage.jobs.redis import RedisJobStore
from service.storage.jobs.sqlite import SqliteJobStore
from service.storage.redis_client import RedisClient
from tests.support.job_stores import LIMITS, add_job, finish_job


@pytest.fixture(params=["sqlite", "redis"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[JobStore]:
    if request.param == "sqlite":
        opened: JobStore = SqliteJobStore(tmp_path / "jobs.sqlite", LIMITS)
        opened.open()
        yield opened
        opened.close()
        return
    link = RedisClient(request.getfixturevalue("redis_server")().url, 5.0)
    yield RedisJobStore(link, LIMITS)
    link.blocking_client.close()


def postpone_next(store: JobStore) -> str:
    """Claim, start and postpone the next job; return its id."""
    job = store.claim()
    assert job is not None
    assert store.mark_started(job.id) == job.starts + 1
    store.release(job.id, True, True)
    return job.id


def test_a_postponed_job_waits_after_all_others(store: JobStore) -> None:
    first, second = add_job(store, b"1", owner="a"), add_job(store, owner="a")
    assert postpone_next(store) == first.id
    third = add_job(store, owner="a")
    assert [postpone_next(store) for _ in range(4)] == [
        *(second.id, first.id, third.id, second.id),
    ]
    again = store.claim()
    assert again is not None
    assert (again.id, again.postponed, again.starts) == (first.id, 2, 0)
    assert store.get_body(first.id) == b"1"


def test_a_postponed_suspect_keeps_no_other_waiting(store: JobStore) -> None:
    suspect, other = add_job(store), add_job(store)
    for starts in (1, 2):
        assert store.claim() == suspect
        assert store.mark_started(suspect.id) == starts
        suspect.starts = starts
        store.release(suspect.id, False)
    assert postpone_next(store) == suspect.id
    assert store.claim() == other
    again = store.claim()
    assert again is not None
    assert (again.id, again.starts) == (suspect.id, 2)


def test_a_requeued_job_was_never_postponed(store: JobStore) -> None:
    job = add_job(store)
    postpone_next(store)
    assert store.claim() is not None
    assert finish_job(store, job, status=Status.FAILED, fault="queue-full")
    assert store.requeue(job.id)
    again = store.claim()
    assert again is not None
    assert again.postponed == 0
