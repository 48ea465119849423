"""Stores of jobs in SQLite and in Redis: what they store and refuse, and which job is next."""

from __future__ import annotations

import time

import pytest
from starlette.responses import Response

from service.errors import Problem
from service.storage.jobs.job import Status
from service.storage.jobs.redis import RedisJobStore
from service.storage.jobs.sqlite import SqliteJobStore
from service.storage.redis_client import RedisClient
from tests.support.job_stores import LIMITS, SENT, add_job, finish_job


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


def test_a_request_stays_what_it_was(open_store):
    store = open_store()
    job = add_job(store, b"\x00\xff")
    assert store.count()[0] == 1
    assert store.claim() == job
    assert store.claim() is None
    assert (store.get_request(job.id), store.get_body(job.id)) == (SENT, b"\x00\xff")
    assert store.get_response(job.id) is None


def test_an_answer_takes_the_place_of_its_request_once(open_store):
    store = open_store()
    job = add_job(store)
    job.progress.step, job.progress.energy = 7, -1.5
    answer = Response(b"no", 422, {"x-one": "é"}, "text/plain")
    assert store.complete(job, Status.FAILED, answer)
    finish_job(store, job, b"another")
    stored = store.get(job.id)
    assert (stored.status, stored.progress) == (Status.FAILED, job.progress)
    response = store.get_response(job.id)
    assert (response.status_code, response.body) == (422, b"no")
    assert response.raw_headers == answer.raw_headers
    assert store.mark_started(job.id) is None
    assert store.claim() is None
    assert store.count()[0] == 0


def test_what_is_forgotten_stays_so(open_store):
    store = open_store()
    job = add_job(store)
    assert store.delete(job.id)
    assert not store.delete(job.id)
    assert not finish_job(store, job)
    assert store.mark_started(job.id) is None
    assert store.get(job.id) is None


def test_starts_are_counted_and_taken_back(open_store):
    store = open_store()
    job, other = add_job(store), add_job(store)
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


def test_one_key_one_request(open_store):
    store = open_store()
    job = add_job(store, key="k", fingerprint=b"1")
    assert add_job(store, key="k", fingerprint=b"1").id == job.id
    refused("key-reused", lambda: add_job(store, key="k", fingerprint=b"2"))
    finish_job(store, job)
    again = add_job(store, key="k", fingerprint=b"1")
    assert (again.id, again.status) == (job.id, Status.DONE)
    assert add_job(store).id != add_job(store).id  # without a key there is nothing to know again
    store.delete(job.id)
    assert add_job(store, key="k", fingerprint=b"2").id != job.id


def test_the_oldest_answers_make_room(open_store):
    store = open_store(max_bytes=22_000)
    first, second = add_job(store), add_job(store)
    for job in (first, second):
        finish_job(store, job, b"x" * 6_000)
    waiting = add_job(store)  # 2 * (6,000 + 4,096) and 4,098 bytes
    assert store.get(first.id) is None
    assert store.get(second.id)
    finish_job(store, waiting, b"x" * 50_000)
    assert store.get(second.id) is None
    assert store.get(waiting.id)  # the newest stays, whatever it takes


def test_requests_that_wait_are_bounded(open_store):
    store = open_store(max_jobs=2, max_bytes=20_000)
    refused("body-too-large", lambda: add_job(store, b"x" * 16_000))
    waiting = add_job(store, b"x" * 10_000)
    refused("queue-full", lambda: add_job(store, b"x" * 10_000))
    add_job(store)
    refused("queue-full", lambda: add_job(store))
    finish_job(store, waiting)
    add_job(store)


def test_one_key_leaves_room_for_others(open_store):
    store = open_store(max_jobs=4, max_bytes=100_000)
    first = add_job(store, owner="many")
    add_job(store, owner="many")
    refused("queue-full", lambda: add_job(store, owner="many"))
    add_job(store, owner="other")
    finish_job(store, first)
    add_job(store, b"x" * 40_000, owner="many")
    refused("queue-full", lambda: add_job(store, owner="many"))


def test_one_key_leaves_bytes_for_others(open_store):
    store = open_store(max_bytes=100_000)
    add_job(store, b"x" * 50_000, owner="large")
    refused("queue-full", lambda: add_job(store, owner="large"))
    add_job(store, b"x" * 40_000, owner="other")
    # The next one counts, not only those before it.
    refused("queue-full", lambda: add_job(store, b"x" * 10_000, owner="other"))


def test_many_answers_of_one_key_drop_no_answer_of_another(open_store):
    store = open_store(max_bytes=60_000)
    mine = add_job(store, owner="few")
    finish_job(store, mine, b"x" * 1_000)
    for _ in range(12):
        finish_job(store, add_job(store, owner="many"), b"x" * 8_000)
    newer = [add_job(store, owner="few") for _ in range(2)]
    for job in newer:
        finish_job(store, job, b"x" * 1_000)
    assert all(store.get(job.id) for job in (mine, *newer))


def test_jobs_of_keys_take_turns(open_store):
    store = open_store()
    many = [add_job(store, owner="many") for _ in range(3)]
    few = [add_job(store, owner="few") for _ in range(2)]
    claimed = [store.claim().id for _ in range(4)]
    assert claimed == [job.id for job in (many[0], few[0], many[1], few[1])]
    finish_job(store, few[0])
    few.append(add_job(store, owner="few"))
    assert store.claim().id == few[2].id  # two of the other key run
    assert store.claim().id == many[2].id


def test_the_owner_s_answers_make_room_before_others_do(open_store):
    store = open_store(max_bytes=50_000)
    other, mine, late = (add_job(store, owner=owner) for owner in ("other", "mine", "mine"))
    for job in (other, mine, late):
        finish_job(store, job, b"x" * 10_000)
    new = add_job(store, owner="mine")
    finish_job(store, new, b"x" * 10_000)
    assert [store.get(job.id) is not None for job in (other, mine, late, new)] == [
        *(True, False, True, True)
    ]


def test_answers_are_kept_for_a_time(open_store):
    store = open_store(keep_s=0.01)
    running, over = add_job(store), add_job(store, key="k")
    finish_job(store, over)
    time.sleep(0.02)
    assert store.get(over.id) is None
    assert store.get_response(over.id) is None
    assert add_job(store, key="k", fingerprint=b"2").id != over.id
    assert store.get(running.id)


@pytest.fixture
def two(redis_server):
    """Two processes on one Redis, with a lease of two seconds."""
    link = RedisClient(redis_server().url, 5.0)
    stores = [RedisJobStore(link, LIMITS, 2.0) for _ in range(2)]
    yield stores
    link.blocking_client.close()


def test_a_job_of_who_is_not_heard_is_another_s(two):
    dead, other = two
    jobs = [add_job(dead), add_job(dead)]
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
    assert finish_job(dead, jobs[0], b"first")  # by the first to do it
    assert not finish_job(other, taken, b"second")
    assert finish_job(dead, jobs[0])  # asked again, as after an answer that was lost
    assert dead.get_response(jobs[0].id).body == b"first"


def test_after_a_silence_of_all_nobody_loses_a_job(two):
    one, other = two
    job = add_job(one)
    assert one.claim() == job
    assert one.mark_started(job.id) == one.mark_started(job.id) == 1  # asked again
    time.sleep(2.5)
    assert other.claim() is None
    assert one.heartbeat([job]) == []
