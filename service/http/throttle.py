"""Refusals at a bounded rate, so that whoever asks again at once takes nobody's answers."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from typing import Final, final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.observability.request_state import get_state, is_job

BUSY: Final = "queue-full"
_FEW = 50.0  # refusals a second that are no flood
_FOR_EACH = 2.0  # refusals for an answer; at twice the capacity there is one
_LEAST = 200.0  # of them a second, however few answers there are
_OF_LATE_S = 2.0
_AT_ONCE_S = 0.5  # so many seconds' refusals may come at a time, as where nothing was read for one
_TOGETHER_S = 0.05  # to hear several at a time takes less than one after the other
_MOST_S = 1.0 - _TOGETHER_S  # a second is the least that Retry-After says


class DecayingRate:
    """How many there were a second, of late."""

    def __init__(self) -> None:
        self._rate, self._at = 0.0, 0.0

    def add(self, now: float) -> None:
        self._rate, self._at = self.at(now) + 1 / _OF_LATE_S, now

    def at(self, now: float) -> float:
        return self._rate * math.exp((self._at - now) / _OF_LATE_S)


@final
class RefusalThrottle:
    """When whoever was refused is heard again: as if refusals stood in line, two of them served for
    each answer computed of late, or `least` a second.

    Up to that rate none waits, and beyond it the wait is as long as the line, a second at most,
    which every `Retry-After` has told already. Those who wait are heard by the twentieth of a
    second.
    """

    def __init__(self, least: float = _LEAST, clock: Callable[[], float] = time.monotonic) -> None:
        self._least, self._clock = least, clock
        self._answers, self._refusals = DecayingRate(), DecayingRate()
        self._end = 0.0  # of the line

    @property
    def is_flooded(self) -> bool:
        """Were many refused of late? Then it shall cost as little as it can."""
        return self._refusals.at(self._clock()) > _FEW

    def answer(self) -> None:
        """Somebody's answer was computed."""
        self._answers.add(self._clock())

    def refuse(self) -> float:
        """Seconds for which the one that is refused now is not heard."""
        now = self._clock()
        self._refusals.add(now)
        each_s = 1 / max(_FOR_EACH * self._answers.at(now), self._least)
        self._end = min(max(self._end, now - _AT_ONCE_S) + each_s, now + _MOST_S)
        if self._end <= now:
            return 0.0
        return math.ceil(self._end / _TOGETHER_S) * _TOGETHER_S - now


@final
class ThrottleMiddleware:
    """ASGI middleware. A refusal for want of room is answered at once and whole; that the answer
    is over is said later, and until then the server reads no other request of that connection.

    Args:
        hold: is told of each connection that waits.
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
            if (
                starts and get_state(scope).cost is not None
            ):  # it was computed: others need no place
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
