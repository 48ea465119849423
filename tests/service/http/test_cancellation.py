"""Work goes on until it is done, its client has gone, or its time is up."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from service.errors import Problem
from service.http.cancellation import ClientDisconnected, run_until_deadline_or_disconnect
from service.observability.progress import Progress


class Work:
    """Takes `seconds`, if it is let."""

    def __init__(self, seconds: float, outcome: Exception | str = "done") -> None:
        self.seconds, self.outcome, self.ended = seconds, outcome, False

    async def __call__(self) -> str:
        try:
            await asyncio.sleep(self.seconds)
        finally:
            await asyncio.sleep(0.01)  # to tidy up takes a while too
            self.ended = True
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return self.outcome


def hang_up(after: float) -> Callable[[], Awaitable[object]]:
    async def wait() -> None:
        await asyncio.sleep(after)

    return wait


def wanted(work: Work, gone: float = 60, seconds: float = 60, **rest: Any) -> str:
    async def play() -> str:
        try:
            return await run_until_deadline_or_disconnect(work(), hang_up(gone), seconds, **rest)
        finally:
            await asyncio.sleep(0)
            assert len(asyncio.all_tasks()) == 1, "nobody listens any more"

    return asyncio.run(play())


def test_what_is_done_is_returned():
    assert wanted(Work(0.01)) == "done"


def test_where_the_client_goes_the_work_has_ended():
    work = Work(60)
    with pytest.raises(ClientDisconnected):
        wanted(work, gone=0.01)
    assert work.ended


def test_a_client_that_went_before_the_work_begins_has_gone():
    work = Work(60)
    with pytest.raises(ClientDisconnected):
        wanted(work, gone=0)
    assert work.ended


def test_where_time_is_up_the_work_has_ended_and_its_steps_are_told():
    work, progress = Work(60), Progress()
    progress.relaxation_steps = 7
    with pytest.raises(Problem) as caught:
        wanted(work, seconds=0.02, progress=progress)
    assert (caught.value.kind, caught.value.extra) == ("deadline", {"steps": 7})
    assert work.ended


@pytest.mark.parametrize("error", [TimeoutError("of its own"), ValueError("wrong")])
def test_an_error_of_the_work_is_its_own(error):
    with pytest.raises(type(error), match=str(error)):
        wanted(Work(0, error))


def test_who_goes_while_late_work_ends_changes_nothing():
    with pytest.raises(Problem) as caught:  # it goes within the hundredth that tidying takes
        wanted(Work(60), gone=0.025, seconds=0.02)
    assert caught.value.kind == "deadline"


def test_where_the_wait_is_cancelled_so_is_the_work():
    work = Work(60)

    async def play() -> None:
        task = asyncio.ensure_future(run_until_deadline_or_disconnect(work(), hang_up(60), 60))
        await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()
        await asyncio.sleep(0)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(play())
    assert work.ended


def test_who_goes_as_the_work_ends_changes_nothing():
    problems: list[dict[str, Any]] = []

    async def play() -> str:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: problems.append(context))
        gone = loop.create_future()

        async def work() -> str:
            gone.set_result(None)
            return "done"

        outcome = await run_until_deadline_or_disconnect(work(), lambda: gone, 60)
        await asyncio.sleep(0.01)  # in which the callback of `gone` runs
        return outcome

    assert asyncio.run(play()) == "done"
    assert problems == []
