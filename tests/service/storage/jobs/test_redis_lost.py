"""A Redis that comes back older or empty: what of its jobs is lost, and who says so."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from service.storage.jobs.job import Job, Status
from service.storage.jobs.redis import RedisJobStore
from service.storage.redis_client import RedisClient
from service.storage.sqlite import StoreError
from tests.support.job_stores import LIMITS, add_job, finish_job
from tests.support.redis_server import RedisServer

HELD = "basin:jobs:held"


class Process:
    """A store as one process has it, and what it counted."""

    def __init__(self, server: RedisServer) -> None:
        self.events: list[tuple[str, str, int]] = []
        self.link = RedisClient(
            server.url, 1.0, lambda event, part, number: self.events.append((event, part, number))
        )
        self.store = RedisJobStore(self.link, LIMITS, 2.0)

    @property
    def lost(self) -> int:
        return sum(number for event, _, number in self.events if event == "lost")


def play(act: Callable[[Process, Process], Coroutine[Any, Any, None]], server: RedisServer) -> None:
    async def run() -> None:
        one, two = Process(server), Process(server)
        for process in (one, two):
            await process.link.probe()
        await act(one, two)
        for process in (one, two):
            await process.link.close()

    asyncio.run(run())


def status_of(store: RedisJobStore, job: Job) -> Status | None:
    stored = store.get(job.id)
    return stored and stored.status


@pytest.mark.parametrize("is_restarted", [False, True])
def test_jobs_of_an_emptied_redis_are_lost_and_every_server_says_so(
    redis_server: Callable[..., RedisServer], is_restarted: bool
) -> None:
    server = redis_server()

    async def act(one: Process, two: Process) -> None:
        waiting, finished, deleted = (
            add_job(one.store, key=key, owner="a") for key in ("k", None, None)
        )
        claimed = two.store.claim()
        assert claimed == waiting
        assert finish_job(two.store, finished)
        assert two.store.delete(deleted.id)
        one.store.expire()  # as each second: it has seen that this one was deleted
        if is_restarted:
            server.restart_from()
        else:
            server.client.flushall()
            with pytest.raises(StoreError, match="lost"):  # not: it never was
                one.store.get(waiting.id)
            with pytest.raises(StoreError, match="lost"):
                two.store.heartbeat([waiting])
        for process in (two, one):
            process.link.is_available = False
            await process.link.probe()
            assert process.link.state == "up"
        assert one.lost + two.lost == 2
        for process in (one, two):
            for job in (waiting, finished):
                stored = process.store.get(job.id)
                assert stored is not None
                assert (stored.status, stored.owner, stored.route) == (
                    *(Status.FAILED, "a", "/sample"),
                )
                answer = process.store.get_response(job.id)
                assert answer is not None
                assert answer.status_code == 410
                assert b"Redis lost this job" in answer.body
            assert process.store.get(deleted.id) is None
        assert two.store.heartbeat([waiting]) == [waiting.id]
        assert not finish_job(two.store, waiting)
        assert one.store.count() == (0, 0)  # the operator can do nothing about them
        assert add_job(one.store, key="k", fingerprint=b"2", owner="a").id != waiting.id
        assert one.store.delete(waiting.id)

    play(act, server)


def test_an_older_redis_runs_finished_jobs_again_and_deletes_deleted_ones(
    redis_server: Callable[..., RedisServer], tmp_path: Path
) -> None:
    server = redis_server("--appendfsync", "always")

    async def act(one: Process, two: Process) -> None:
        running, waiting, deleted = (add_job(one.store, owner="a") for _ in range(3))
        assert one.store.claim() == running
        assert one.store.mark_started(running.id) == 1
        shutil.copytree(server.folder / "appendonlydir", tmp_path / "copy")
        counts = server.client.hgetall(HELD)
        assert finish_job(one.store, running, b"yes")
        assert two.store.delete(deleted.id)
        later = add_job(one.store)
        server.restart_from(tmp_path / "copy")
        for process in (one, two):
            process.link.is_available = False
            await process.link.probe()
        assert one.store.get(deleted.id) is None
        assert status_of(two.store, later) is Status.FAILED
        assert one.lost == 1
        assert counts != server.client.hgetall(HELD)
        assert one.store.count() == two.store.count() == (2, 0)
        server.client.zadd("basin:jobs:running", {running.id: 0})  # once its lease has ended
        again = [two.store.claim(), two.store.claim()]
        assert {job.id for job in again if job} == {running.id, waiting.id}
        for job in again:
            assert job is not None
            assert two.store.mark_started(job.id) == job.starts + 1
            assert finish_job(two.store, job, b"yes")
        answer = one.store.get_response(running.id)
        assert answer is not None
        assert answer.body == b"yes"
        assert one.store.count() == (0, 0)
        counts = server.client.hgetall(HELD)
        assert {name.partition(b":")[0] for name in counts} == {b"over"}
        one.store.expire()
        assert server.client.hgetall(HELD) == counts

    play(act, server)


def test_a_restart_without_loss_changes_nothing(
    redis_server: Callable[..., RedisServer],
) -> None:
    server = redis_server()

    async def act(one: Process, two: Process) -> None:
        jobs = [add_job(one.store) for _ in range(3)]
        assert finish_job(one.store, jobs[0])
        server.stop()
        server.start()
        one.link.is_available = two.link.is_available = False
        await one.link.probe()
        await two.link.probe()
        assert one.lost + two.lost == 0
        assert status_of(two.store, jobs[0]) is Status.DONE
        assert two.store.claim() == jobs[1]
        assert ("damaged", "jobs", 1) not in one.events

    play(act, server)


def test_a_full_redis_that_was_emptied_is_used_again(
    redis_server: Callable[..., RedisServer],
) -> None:
    server = redis_server()

    async def act(one: Process, two: Process) -> None:
        job = add_job(one.store)
        server.client.flushall()
        server.client.set("basin:history", "another")
        server.client.config_set("maxmemory", 1)
        await one.link.probe()
        assert one.link.state == "up"
        assert status_of(one.store, job) is Status.FAILED
        assert one.lost == 1

    play(act, server)
