"""A store that raises what it should not, and jobs that fail by a fault of the server."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from service.errors import Problem
from service.storage.jobs.job import Status
from tests.service.jobs.test_runner import accept, ask_again, echo, running, settled

__all__ = ["running"]


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("service.jobs.runner._TEND_S", 0.01)


@pytest.mark.parametrize(
    "fault", [UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad"), ValueError("x"), KeyError("x")]
)
@pytest.mark.parametrize("name", ["claim", "heartbeat", "expire", "count", "get_request"])
def test_no_exception_of_the_store_ends_the_queue(
    running, monkeypatch: pytest.MonkeyPatch, name: str, fault: Exception
) -> None:
    async def play() -> None:
        async with running(echo) as (jobs, _, _):
            works = getattr(jobs._store, name)
            failures = iter(range(2))

            def fail_twice(*args: Any) -> Any:
                for _ in failures:
                    raise fault
                return works(*args)

            monkeypatch.setattr(jobs._store, name, fail_twice)
            first, second, third = [await accept(jobs) for _ in range(3)]
            await settled(jobs, first, second, third)
            assert await ask_again(jobs, third) == "b"
            while next(failures, None) is not None:  # of a heartbeat, which comes later
                await asyncio.sleep(0.01)
            await settled(jobs, await accept(jobs))

    asyncio.run(play())


def test_a_job_whose_start_cannot_be_stored_waits_again(
    running, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def play() -> None:
        async with running(echo) as (jobs, app, _):
            works, failures = jobs._store.mark_started, iter(range(1))

            def fail_once(id: str) -> int | None:
                for _ in failures:
                    raise ValueError(id)
                return works(id)

            monkeypatch.setattr(jobs._store, "mark_started", fail_once)
            job = await accept(jobs)
            await settled(jobs, job)
            assert (await ask_again(jobs, job), app.calls) == ("b", {"r": 1})

    asyncio.run(play())


def test_a_job_of_a_fault_is_dead_until_the_operator_decides(running) -> None:
    async def play() -> None:
        is_broken = True

        async def work(state, body) -> str:
            if is_broken:
                raise RuntimeError
            return await echo(state, body)

        async with running(work) as (jobs, _, ended):
            one, two = await accept(jobs, b"1"), await accept(jobs, b"2")
            await settled(jobs, one, two)
            dead = await jobs.dead.list_jobs()
            assert {job.id for job in dead} == {one.id, two.id}
            assert {job.reason for job in dead} == {"internal-error"}
            await jobs.dead.drop(two.id)
            assert jobs.dead_count == 1
            for act in (jobs.dead.drop, jobs.dead.requeue):
                with pytest.raises(Problem, match="unknown-job"):
                    await act(two.id)
            is_broken = False
            await jobs.dead.requeue(one.id)
            assert jobs.dead_count == 0
            again = await jobs.get(one.id)
            await settled(jobs, again)
            assert await ask_again(jobs, again) == "1"
            assert ended == [Status.FAILED, Status.FAILED, Status.DONE]
            assert jobs.unfinished_count == 0

    asyncio.run(play())


@pytest.mark.parametrize("kind", ["memory-damaged", "graph-damaged"])
def test_a_job_over_something_damaged_is_dead_and_the_others_go_on(running, kind: str) -> None:
    async def play() -> None:
        async def work(state, body) -> str:
            state.problem = kind if body == b"bad" else None
            return await echo(state, body)

        async with running(work, places=1) as (jobs, app, _):
            bad, good = await accept(jobs, b"bad", "bad"), await accept(jobs)
            await settled(jobs, bad, good)
            assert (bad.status, good.status) == (Status.FAILED, Status.DONE)
            assert app.calls == {"bad": 1, "r": 1}
            (dead,) = await jobs.dead.list_jobs()
            assert (dead.id, dead.reason, dead.has_request) == (bad.id, kind, True)

    asyncio.run(play())


def test_a_job_that_is_refused_again_and_again_ends(
    running, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("_PATIENCE_S", 0.0), ("_REST_S", 0.001), ("_MAX_POSTPONED", 3)):
        monkeypatch.setattr(f"service.jobs.runner.{name}", value)

    async def play() -> None:
        order: list[bytes] = []

        async def work(state, body) -> str:
            order.append(body)
            state.problem = "memories-unavailable" if body == b"bad" else None
            return await echo(state, body)

        async with running(work, places=1) as (jobs, _, _):
            bad = await accept(jobs, b"bad")
            others = [await accept(jobs, str(i).encode()) for i in range(3)]
            await settled(jobs, bad, *others)
            assert order[0] == b"bad"
            assert order[1:4] == [b"0", b"1", b"2"]
            assert set(order[4:]) == {b"bad"}
            assert bad.status is Status.FAILED
            (dead,) = await jobs.dead.list_jobs()
            assert (dead.id, dead.reason) == (bad.id, "memories-unavailable")

    asyncio.run(play())
