"""Entries in Redis that no server wrote: they stop no job, and are never served."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import redis
from starlette.responses import Response

from service.errors import Problem
from service.storage.jobs.base import MAX_DEAD, OVERHEAD
from service.storage.jobs.job import Job, Status
from service.storage.jobs.redis import RedisJobStore
from service.storage.redis_client import RedisClient
from tests.support.job_stores import LIMITS, SENT, add_job, finish_job

_NAMES = ("waiting", "running", "finished", "dead", "deleted", "usage", "order", "last-heartbeat")
KEYS = [f"basin:jobs:{name}" for name in _NAMES]
WAITING, RUNNING, FINISHED, DEAD, _, USAGE, ORDER, LAST_HEARTBEAT = KEYS


@dataclass
class Fixture:
    """A store, the Redis that it is in, and the keys that it reported as damaged."""

    store: RedisJobStore
    redis: redis.Redis
    link: RedisClient
    damaged: list[str] = field(default_factory=list)

    def hash_of(self, job: Job) -> str:
        return f"basin:job:{job.id}"


@pytest.fixture
def stored(redis_server: Callable[..., Any]) -> Iterator[Fixture]:
    server = redis_server()
    link = RedisClient(server.url, 5.0)
    fixture = Fixture(RedisJobStore(link, LIMITS, 2.0), server.client, link)
    report = link.report_damaged

    def note(part: str, key: str, reason: str) -> None:
        assert part == "jobs"
        fixture.damaged.append(key)
        report(part, key, reason)

    link.report_damaged = note
    yield fixture
    link.blocking_client.close()
    link.sync_client.close()


def totals(client: redis.Redis) -> dict[str, int]:
    """The counts of all owners together."""
    return {name: count for name, count in read_usage(client).items() if ":" not in name}


def read_usage(client: redis.Redis) -> dict[str, int]:
    counts: Any = client.hgetall(USAGE)
    return {name.decode(): int(value) for name, value in counts.items()}


def read_request(store: RedisJobStore, job: Job) -> bytes:
    assert store.get_request(job.id) == SENT
    return store.get_body(job.id)


def run_all(store: RedisJobStore) -> list[str]:
    """Claim and finish what waits; return the ids."""
    done = []
    while (job := store.claim()) is not None:
        assert store.mark_started(job.id) == job.starts + 1
        assert store.get_request(job.id) == SENT
        assert store.get_body(job.id) == b"{}"
        assert finish_job(store, job)
        done.append(job.id)
    return done


@pytest.mark.parametrize("key", [WAITING, RUNNING, FINISHED])
@pytest.mark.parametrize("member", ["ghost", b"\xff\xfe"])
def test_an_id_without_its_hash_stops_no_job(stored: Fixture, key: str, member: Any) -> None:
    store = stored.store
    stored.redis.zadd(key, {member: 0})
    jobs = [add_job(store) for _ in range(3)]
    assert run_all(store) == [job.id for job in jobs]
    store.expire()
    assert store.count() == (0, 1)
    (dead,) = store.list_dead()
    assert dead.id == ("ghost" if member == "ghost" else "\\xff\\xfe")
    assert dead.reason == "damaged: its hash is gone"
    assert not dead.has_request
    assert not store.requeue(dead.id)
    assert len(set(stored.damaged) - {USAGE}) == 1
    assert totals(stored.redis) == {"finished": 4 * OVERHEAD + 3}
    assert store.delete(dead.id)
    assert store.count() == (0, 0)
    assert totals(stored.redis) == {"finished": 3 * (OVERHEAD + 1)}


def test_a_dead_job_of_a_full_list_expires_like_others(stored: Fixture) -> None:
    stored.redis.zadd(WAITING, {f"ghost-{i}": i for i in range(MAX_DEAD + 20)})
    job = add_job(stored.store)
    assert run_all(stored.store) == [job.id]
    assert stored.store.count() == (0, MAX_DEAD)
    assert len(set(stored.damaged) - {USAGE}) == MAX_DEAD + 20


DAMAGES: dict[str, Callable[[redis.Redis, str], object]] = {
    "another type": lambda client, key: (client.delete(key), client.set(key, "x")),
    **{
        f"no {name}": lambda client, key, name=name: client.hdel(key, name)
        for name in ("seal", "body", "sent", "starts", "order", "status", "route", "fingerprint")
    },
    **{
        f"damaged {name}": lambda client, key, name=name: client.hset(key, name, b"\xff1e999")
        for name in ("seal", "body", "sent", "starts", "order", "status", "route", "body_seal")
    },
    "infinite starts": lambda client, key: client.hset(key, "starts", "inf"),
    "another version": lambda client, key: client.hset(key, "seal", "2 0 00"),
    "an end": lambda client, key: client.hset(key, "ended", "soon"),
}


@pytest.mark.parametrize("kind", DAMAGES)
@pytest.mark.parametrize("is_running", [False, True])
def test_a_damaged_job_fails_and_the_others_go_on(
    stored: Fixture, kind: str, is_running: bool
) -> None:
    store = stored.store
    bad, good = add_job(store, key="k", fingerprint=b"1"), add_job(store)
    if is_running:
        assert store.claim() == bad
    DAMAGES[kind](stored.redis, stored.hash_of(bad))
    if is_running:  # as the runner does
        store.heartbeat([bad])
        if store.mark_started(bad.id):
            with pytest.raises(Problem, match="job-lost"):
                read_request(store, bad)
    while (job := store.claim()) is not None:
        if job.id == bad.id:  # only its body shows it
            with pytest.raises(Problem, match="job-lost"):
                store.get_body(bad.id)
        else:
            assert job.id == good.id
            assert finish_job(store, job)
    assert stored.damaged
    failed = store.get(bad.id)
    assert failed is not None
    assert failed.status is Status.FAILED
    answer = store.get_response(bad.id)
    assert answer is not None
    assert answer.status_code == 410
    assert b"Send the request again" in answer.body
    assert not finish_job(store, bad)
    assert [job.reason.split(":")[0] for job in store.list_dead()] == ["damaged"]
    assert store.count() == (0, 1)
    assert add_job(store, key="k", fingerprint=b"1").id != bad.id  # its key is free
    assert run_all(store)
    store.expire()
    assert set(totals(stored.redis)) == {"finished"}


@pytest.mark.parametrize("name", ["status", "code", "headers", "answer", "answer_seal"])
def test_a_damaged_response_is_never_served(stored: Fixture, name: str) -> None:
    store = stored.store
    job, other = add_job(store), add_job(store)
    for each in (job, other):
        assert store.complete(each, Status.DONE, Response(b"yes", 200, {"x-one": "1"}))
    value: Any = stored.redis.hget(stored.hash_of(job), name)
    stored.redis.hset(stored.hash_of(job), name, value[:-1] + bytes([value[-1] ^ 1]))
    answer = store.get_response(job.id)
    assert answer is not None
    assert answer.status_code == 410
    again = store.get(job.id)
    assert again is not None
    assert again.status is Status.FAILED
    whole = store.get_response(other.id)
    assert whole is not None
    assert whole.body == b"yes"
    assert stored.damaged == [stored.hash_of(job)]


def test_a_response_of_another_job_is_not_served(stored: Fixture) -> None:
    store = stored.store
    one, two = add_job(store), add_job(store)
    finish_job(store, one, b"one")
    finish_job(store, two, b"two")
    fields: Any = stored.redis.hgetall(stored.hash_of(two))
    stored.redis.hset(stored.hash_of(one), mapping=fields)
    answer = store.get_response(one.id)
    assert answer is not None
    assert answer.status_code == 410


@pytest.mark.parametrize("key", KEYS)
def test_a_key_of_another_type_loses_no_job(stored: Fixture, key: str) -> None:
    store = stored.store
    over, running, waiting = (add_job(store, owner="a") for _ in range(3))
    finish_job(store, over)
    assert store.claim() == running
    counts = read_usage(stored.redis)
    stored.redis.delete(key)
    stored.redis.lpush(key, "x")
    later = add_job(store, owner="a")
    assert key in stored.damaged
    job = store.get(over.id)
    assert job is not None
    assert job.status is Status.DONE
    assert finish_job(store, running)
    done = run_all(store)
    assert {waiting.id, later.id} <= set(done)
    assert set(totals(stored.redis)) == {"finished"}
    assert read_usage(stored.redis)["finished"] == counts["finished"] * 4


@pytest.mark.parametrize("value", ["-5", "nan", "x", None])
def test_counts_that_cannot_be_right_are_counted_again(stored: Fixture, value: str | None) -> None:
    store = stored.store
    add_job(store, owner="a")
    finish_job(store, add_job(store, owner="a"))
    counts = read_usage(stored.redis)
    assert counts["count:a"] == 1
    for name in ("finished", "unfinished"):
        if value is None:
            stored.redis.hdel(USAGE, name)
        else:
            stored.redis.hset(USAGE, name, value)
        store.expire()
        assert read_usage(stored.redis) == counts
    assert stored.damaged == [USAGE, USAGE]


def test_an_idempotency_key_that_points_nowhere_is_free(stored: Fixture) -> None:
    store = stored.store
    lost = add_job(store, key="k", fingerprint=b"1")
    stored.redis.delete(stored.hash_of(lost), WAITING)
    new = add_job(store, key="k", fingerprint=b"2")
    assert new.id != lost.id
    stored.redis.delete("basin:jobkey:k")
    stored.redis.lpush("basin:jobkey:k", "x")
    last = add_job(store, key="k", fingerprint=b"2")
    assert last.id != new.id
    assert "basin:jobkey:k" in stored.damaged


def test_a_clock_of_redis_that_stood_ahead_holds_nothing(stored: Fixture) -> None:
    """As after a step of the clock back by a day."""
    store = stored.store
    over, held_job = add_job(store), add_job(store)
    finish_job(store, over)
    assert store.claim() == held_job
    seconds: Any = stored.redis.time()
    now = seconds[0]
    stored.redis.set(LAST_HEARTBEAT, now + 86400)
    stored.redis.zadd(RUNNING, {held_job.id: now + 86400})
    stored.redis.zadd(FINISHED, {over.id: now + 86400})
    stored.redis.hset(stored.hash_of(over), "ended", now + 86400)
    store.expire()
    seconds = stored.redis.time()
    now = seconds[0]
    lease: Any = stored.redis.zscore(RUNNING, held_job.id)
    assert now < lease <= now + 4
    ended: Any = stored.redis.hget(stored.hash_of(over), "ended")
    assert float(ended) <= now + 1
    stored.redis.zadd(RUNNING, {held_job.id: now + 86400})  # heard again, but one lease is long
    store.expire()
    lease = stored.redis.zscore(RUNNING, held_job.id)
    assert now < lease <= now + 4


def test_a_full_redis_refuses_and_nothing_is_half_done(stored: Fixture) -> None:
    store = stored.store
    job, other = add_job(store, key="k"), add_job(store)
    assert store.claim() == job

    def state() -> list[Any]:
        keys = sorted(key for key in stored.redis.keys("basin:*") if key != LAST_HEARTBEAT.encode())
        return [(key, stored.redis.dump(key)) for key in keys]

    before = state()
    stored.redis.config_set("maxmemory", 1)
    for act in (
        lambda: add_job(store, key="new"),
        store.claim,
        lambda: store.mark_started(job.id),
        lambda: finish_job(store, job),
        lambda: store.heartbeat([job]),
    ):
        with pytest.raises(Exception, match="maxmemory"):
            act()
    assert state() == before
    stored.redis.config_set("maxmemory", 0)
    assert finish_job(store, job)
    assert run_all(store) == [other.id]
    assert stored.damaged == []
