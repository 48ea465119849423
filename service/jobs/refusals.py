"""Clients that were refused a job, while they were told to wait."""

from __future__ import annotations

import time
from typing import NamedTuple, final

from service.errors import Problem
from service.storage.jobs.base import RETRY_S


class _Refusal(NamedTuple):
    until_s: float
    size: int  # bytes of the body for which there was no room
    problem: Problem


@final
class JobRefusals:
    """The latest refusal of each client, by which further jobs are refused before their body is
    read. A client without a name is not told from others, so none of it is noted."""

    def __init__(self) -> None:
        self._by_client: dict[str, _Refusal] = {}

    def note(self, client: str, size: int, problem: Problem) -> None:
        """Note that there was no room for a job with a body of `size` bytes."""
        if client and problem.kind == "queue-full":
            until_s = time.monotonic() + RETRY_S
            self._by_client[client] = _Refusal(until_s, size, problem)

    def require_none(self, client: str, size: int) -> None:
        """
        Raises:
            Problem: the client was refused a job of this size or less, and told to wait until
                later than now.
        """
        refusal = self._by_client.get(client)
        if refusal is None:
            return
        if time.monotonic() >= refusal.until_s:
            del self._by_client[client]
        elif size >= refusal.size:
            raise refusal.problem.with_traceback(None)
