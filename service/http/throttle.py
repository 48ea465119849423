"""Limit the rate of refusals, so that clients that retry without pause do not slow down others."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from typing import Final, final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.observability.request_state import get_state, is_job

BUSY: Final = "queue-full"
_FLOOD_PER_S = 50.0  # more refusals per second than this are a flood
_REFUSALS_PER_RESPONSE = 2.0  # at twice the capacity there is one refusal per response
_MIN_REFUSALS_PER_S = 200.0  # however few responses are computed
_TIME_CONSTANT_S = 2.0
_BURST_S = 0.5  # seconds' worth of refusals that may come together, after a pause in reading
_TICK_S = 0.05  # resuming several connections in one tick costs less than one by one
_MAX_WAIT_S = 1.0 - _TICK_S  # the smallest Retry-After is one second


class DecayingRate:
    """Events per second, exponentially averaged over `_TIME_CONSTANT_S`."""

    def __init__(self) -> None:
        self._rate, self._at = 0.0, 0.0

    def add(self, now: float) -> None:
        self._rate, self._at = self.at(now) + 1 / _TIME_CONSTANT_S, now

    def at(self, now: float) -> float:
        return self._rate * math.exp((self._at - now) / _TIME_CONSTANT_S)


@final
class RefusalThrottle:
    """Computes how long a refused connection is not read.

    A virtual queue of refusals drains at two per response computed recently, but at least at
    `least` per second. Below that rate no connection waits; above it the wait is the length of the
    queue, at most one second (which every `Retry-After` asks for anyway), rounded up to `_TICK_S`.
    """

    def __init__(
        self, least: float = _MIN_REFUSALS_PER_S, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._least, self._clock = least, clock
        self._answers, self._refusals = DecayingRate(), DecayingRate()
        self._end = 0.0  # when the virtual queue is empty

    @property
    def is_flooded(self) -> bool:
        """Whether refusals are so frequent that each must be as cheap as possible."""
        return self._refusals.at(self._clock()) > _FLOOD_PER_S

    def answer(self) -> None:
        """Count a computed response."""
        self._answers.add(self._clock())

    def refuse(self) -> float:
        """Count a refusal; return the seconds for which its connection is not read."""
        now = self._clock()
        self._refusals.add(now)
        each_s = 1 / max(_REFUSALS_PER_RESPONSE * self._answers.at(now), self._least)
        self._end = min(max(self._end, now - _BURST_S) + each_s, now + _MAX_WAIT_S)
        if self._end <= now:
            return 0.0
        return math.ceil(self._end / _TICK_S) * _TICK_S - now


@final
class ThrottleMiddleware:
    """ASGI middleware: sends a `queue-full` response completely but delays its end.

    Until the end of the response uvicorn reads no further request from the connection.

    Args:
        hold: called for each connection that waits.
    """

    def __init__(self, app: ASGIApp, pace: RefusalThrottle, hold: Callable[[], object]) -> None:
        self._app, self._pace, self._hold = app, pace, hold

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or is_job(scope):
            await self._app(scope, receive, send)
            return
        wait_s = 0.0

        async def send_all_but_end(message: Message) -> None:
            nonlocal wait_s
            starts = message["type"] == "http.response.start" and message["status"] < 300
            if starts and get_state(scope).cost is not None:  # computed, so it needed a place
                self._pace.answer()
            ends = message["type"] == "http.response.body" and not message.get("more_body")
            if ends and get_state(scope).problem == BUSY:
                wait_s = self._pace.refuse()
                if wait_s:
                    message = {**message, "more_body": True}
            await send(message)

        await self._app(scope, receive, send_all_but_end)
        if wait_s:
            self._hold()
            await asyncio.sleep(wait_s)
            await send({"type": "http.response.body", "body": b""})
