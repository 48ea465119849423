"""Dead jobs, for the operator: those that failed by a fault of the servers or of their store."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import final

from service.errors import Problem
from service.jobs.store_calls import StoreCalls
from service.storage.jobs.job import DeadJob


@final
class DeadJobs:
    """Lists, requeues and drops dead jobs. All methods raise `Problem` if there is no store.

    Args:
        on_change: called when there are others than before.
    """

    def __init__(self, calls: StoreCalls, on_change: Callable[[], Awaitable[None]]) -> None:
        self._calls, self._on_change = calls, on_change

    async def list_jobs(self) -> list[DeadJob]:
        """Return the dead jobs, the latest first."""
        return await self._calls.ask(self._calls.store.list_dead)

    async def requeue(self, id: str) -> None:
        """Run a dead job again.

        Raises:
            Problem: there is no dead job of this id whose request is stored.
        """
        if not await self._calls.ask(self._calls.store.requeue, id):
            raise _unknown()
        await self._on_change()

    async def drop(self, id: str) -> None:
        """Delete a dead job.

        Raises:
            Problem: there is no dead job of this id.
        """
        if id not in {job.id for job in await self.list_jobs()}:
            raise _unknown()
        await self._calls.ask(self._calls.store.delete, id)
        await self._on_change()


def _unknown() -> Problem:
    return Problem(
        "unknown-job",
        "This dead job does not exist, or its request is no longer stored. GET /dead-jobs lists "
        "them.",
    )
