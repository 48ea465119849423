"""Jobs, one process after another, on a small app."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial

import pytest
from starlette.responses import PlainTextResponse

from service.errors import Problem
from service.http.replay import replay
from service.jobs.runner import JobRunner
from service.observability.request_state import RequestState, get_state
from service.storage.jobs.base import JobLimits
from service.storage.jobs.job import Job, Status
from service.storage.jobs.request import StoredRequest
from service.storage.jobs.sqlite import SqliteJobStore
from service.storage.sqlite import StoreError

SENT = StoredRequest("POST", "/work", b"q", (("accept", "text/plain"),))
Work = Callable[[RequestState, bytes], Awaitable[str]]


class App:
    """Answers with what `work` makes of the state and the body; `calls` by request."""

    def __init__(self, work: Work) -> None:
        self.work, self.calls = work, Counter()

    async def __call__(self, scope, receive, send) -> None:
        assert (scope["method"], scope["path"], scope["query_string"]) == ("POST", "/work", b"q")
        assert scope["headers"] == [(b"accept", b"text/plain")]
        state = get_state(scope)
        self.calls[state.request_id] += 1
        body = (await receive())["body"]
        text = await self.work(state, body)
        await PlainTextResponse(text, 429 if state.problem else 200)(scope, receive, send)


@pytest.fixture
def running(tmp_path):
    """One process: its jobs, on the file that all processes of a test share."""

    @asynccontextmanager
    async def one(work: Work, grace_s: float = 0.0, places: int = 2):
        ended: list[Status] = []
        store = SqliteJobStore(tmp_path / "jobs.sqlite", JobLimits(20, 1 << 20, 600))
        jobs, app = JobRunner(store, places, 20, ended.append), App(work)
        await jobs.start(partial(replay, app), asyncio.create_task(asyncio.sleep(0)))
        try:
            yield jobs, app, ended
        finally:
            await jobs.close(grace_s)

    return one


async def accept(jobs: JobRunner, body: bytes = b"b", request_id: str = "r") -> Job:
    return await jobs.accept(request_id, SENT, body, None, b"")


async def settled(jobs: JobRunner, *accepted: Job) -> None:
    for job in accepted:
        assert await jobs.wait_until_done(job, 30)


async def never(_, __) -> str:
    await asyncio.Event().wait()
    raise AssertionError


async def echo(state, body) -> str:
    state.progress.step += 1
    return body.decode()


async def ask_again(jobs: JobRunner, job: Job) -> str:
    return bytes((await jobs.get_response(job.id)).body).decode()


def test_what_one_process_leaves_the_next_one_does(running):
    async def first() -> tuple[Job, list[Job]]:
        async def work(state, body) -> str:
            return await (echo if body == b"quick" else never)(state, body)

        async with running(work) as (jobs, app, ended):
            quick = await accept(jobs, b"quick")
            await settled(jobs, quick)
            left = [await accept(jobs, str(i).encode(), str(i)) for i in range(4)]
            while len(app.calls) < 3:
                await asyncio.sleep(0)
            assert app.calls == {"r": 1, "0": 1, "1": 1}  # two at a time
        assert ended == [Status.DONE]
        return quick, left

    async def second(quick: Job, left: list[Job]) -> None:
        async with running(echo) as (jobs, app, ended):
            assert [(await jobs.get(job.id)).starts for job in left] == [0] * 4  # not its fault
            await settled(jobs, *[await jobs.get(job.id) for job in left])
            assert [await ask_again(jobs, job) for job in left] == ["0", "1", "2", "3"]
            assert await ask_again(jobs, quick) == "quick"
            assert (await jobs.get(quick.id)).progress.step == 1
            assert app.calls == dict.fromkeys("0123", 1)
            assert ended == [Status.DONE] * 4

    asyncio.run(second(*asyncio.run(first())))


def test_what_runs_has_time_to_end_and_what_waits_stays(running):
    async def play() -> None:
        go = asyncio.Event()

        async def work(state, body) -> str:
            await go.wait()
            return await echo(state, body)

        async with running(work, 30.0, places=1) as (jobs, app, ended):
            one, other = await accept(jobs, b"1", "1"), await accept(jobs, b"2", "2")
            while not app.calls:
                await asyncio.sleep(0)
            jobs.drain()
            assert await jobs.wait_until_done(other, 30)
            late = await accept(jobs, b"3", "3")  # kept, and not begun
            go.set()
        assert (ended, app.calls) == ([Status.DONE], {"1": 1})
        async with running(echo) as (jobs, app, _):
            assert await ask_again(jobs, one) == "1"
            await settled(jobs, *[await jobs.get(job.id) for job in (other, late)])
            assert app.calls == {"2": 1, "3": 1}

    asyncio.run(play())


def test_who_was_there_at_every_crash_runs_alone_and_fails_at_last(running, tmp_path):
    store = SqliteJobStore(tmp_path / "jobs.sqlite", JobLimits(20, 1 << 20, 600))
    crashes = {"new": 0, "a": 2, "once": 1, "b": 2, "bad": 3}
    store.open()
    left = {id: store.add(Job("/work", id), SENT, b"b", None, b"") for id in crashes}
    for crash in range(3):
        for job in list(iter(store.claim, None)):
            if crashes[job.request_id] > crash:
                store.mark_started(job.id)
        store.close()
        store.open()
    store.close()

    async def play() -> None:
        at_once: dict[str, int] = {}
        now = 0

        async def work(state, body) -> str:
            nonlocal now
            now += 1
            for _ in range(20):
                at_once[state.request_id] = now
                await asyncio.sleep(0.001)
            now -= 1
            return await echo(state, body)

        async with running(work) as (jobs, app, ended):
            await settled(jobs, *[await jobs.get(job.id) for job in left.values()])
            assert app.calls == dict.fromkeys(("new", "a", "once", "b"), 1)
            assert (at_once["a"], at_once["b"]) == (1, 1)
            assert list(at_once) == ["a", "b", "new", "once"]
            answer = await jobs.get_response(left["bad"].id)
            assert answer.status_code == 500
            assert b"urn:basin:problem:job-crashed" in answer.body
            assert Counter(ended) == {Status.DONE: 4, Status.FAILED: 1}

    asyncio.run(play())


def test_no_place_is_no_answer(running):
    async def play() -> None:
        async def work(state, body) -> str:
            if app.calls["r"] < 3:
                state.problem = "queue-full"
            return await echo(state, body)

        async with running(work) as (jobs, app, _):
            job = await accept(jobs)
            await settled(jobs, job)
            assert (job.status, app.calls["r"]) == (Status.DONE, 3)

    asyncio.run(play())


def test_a_store_that_fails_for_a_while_loses_nothing(running, monkeypatch):
    async def play() -> None:
        async with running(echo) as (jobs, app, ended):
            complete, failures = jobs._store.complete, iter(range(1))

            def full(*args):
                for _ in failures:
                    raise StoreError("disk full")
                return complete(*args)

            monkeypatch.setattr(jobs._store, "complete", full)
            job = await accept(jobs)
            await settled(jobs, job)
            assert await ask_again(jobs, job) == "b"
            assert (app.calls["r"], ended) == (1, [Status.DONE])  # what was computed is kept

            def broken(*_):
                raise StoreError("gone")

            monkeypatch.setattr(jobs._store, "add", broken)
            with pytest.raises(Problem) as error:
                await accept(jobs)
            assert error.value.kind == "jobs-unavailable"

    asyncio.run(play())


def test_a_store_in_use_is_taken_once_it_is_free(running, monkeypatch):
    monkeypatch.setattr("service.jobs.runner._TEND_S", 0.01)

    async def play() -> None:
        process = running(never)
        first, _, _ = await process.__aenter__()
        async with running(echo) as (second, _, _):
            job = await accept(first)
            with pytest.raises(Problem) as error:
                await accept(second)
            assert error.value.kind == "jobs-unavailable"
            await process.__aexit__(None, None, None)
            found = None
            while found is None:
                with suppress(Problem):  # until the store is free
                    found = await second.get(job.id)
                await asyncio.sleep(0.005)
            await settled(second, found)
            assert await ask_again(second, job) == "b"

    asyncio.run(play())


def test_an_app_that_breaks_is_a_problem(running):
    async def play() -> None:
        async def work(state, body) -> str:
            raise RuntimeError("a secret")

        async with running(work) as (jobs, _, _):
            job = await accept(jobs)
            await settled(jobs, job)
            answer = await jobs.get_response(job.id)
            assert (job.status, answer.status_code) == (Status.FAILED, 500)
            assert b"secret" not in answer.body

    asyncio.run(play())


def test_a_file_that_holds_no_jobs_is_told_and_waited_for(running, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr("service.jobs.runner._TEND_S", 0.01)
    path = tmp_path / "jobs.sqlite"
    path.write_bytes(b"something else " * 1000)

    async def play() -> None:
        async with running(echo) as (jobs, _, _):
            for ask in (jobs.require_capacity, lambda: accept(jobs), lambda: jobs.get("x")):
                with pytest.raises(Problem) as error:
                    await ask()
                assert error.value.kind == "jobs-unavailable"
                assert str(path) not in error.value.detail
            path.unlink()
            while True:
                with suppress(Problem):
                    await settled(jobs, await accept(jobs))
                    return
                await asyncio.sleep(0.005)

    asyncio.run(play())
    out = capsys.readouterr().out
    assert out.count("job store refused") == 1
    assert "not a database" in out


def test_after_a_refusal_further_jobs_are_refused_before_their_body_is_read(running, monkeypatch):
    monkeypatch.setattr("service.jobs.refusals.RETRY_S", 0.2)

    async def play() -> None:
        free = asyncio.Event()

        async def work(state, body) -> str:
            await free.wait()
            return ""

        async with running(work) as (jobs, _, _):
            while True:  # until one of a's is one too many
                jobs.require_capacity("a", 5)
                try:
                    await jobs.accept("r", SENT, b"12345", None, b"", "a")
                except Problem as problem:
                    refused = problem
                    break
            assert "half" in refused.detail
            assert refused.headers == {"retry-after": "1"}
            with pytest.raises(Problem, match="queue-full"):
                jobs.require_capacity("a", 5)
            jobs.require_capacity("a", 4)  # there may be room for a smaller one
            jobs.require_capacity("b", 5)
            await asyncio.sleep(0.2)
            jobs.require_capacity("a", 5)
            free.set()

    asyncio.run(play())
