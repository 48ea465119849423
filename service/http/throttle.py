"""Limit the rates of refusals, so that clients that retry without pause do not slow down others."""

from __future__ import annotations

import asyncio
import math
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Final, NamedTuple, final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.auth.clients import identify_client
from service.observability.request_state import get_state, is_job

BUSY: Final = "queue-full"
_FLOOD_PER_S = 50.0  # more refusals per second than this are a flood
_MIN_REFUSALS_PER_S = 200.0  # however few responses are computed
_CLIENT_PART = 0.5  # of these, for a client
_MAX_CLIENTS = 1024  # that are remembered
_TIME_CONSTANT_S = 2.0
_BURST_S = 0.5  # seconds' worth of refusals that may come together, after a pause in reading
_TICK_S = 0.05  # resuming several connections in one tick costs less than one by one
_MAX_WAIT_S = 5.0 - _TICK_S
_MAX_WAIT_AFTER_S = 1.0 - _TICK_S  # the smallest Retry-After is one second


class DecayingRate:
    """Events per second, exponentially averaged over `_TIME_CONSTANT_S`."""

    def __init__(self) -> None:
        self._rate, self._at = 0.0, 0.0

    def add(self, now: float) -> None:
        self._rate, self._at = self.at(now) + 1 / _TIME_CONSTANT_S, now

    def at(self, now: float) -> float:
        return self._rate * math.exp((self._at - now) / _TIME_CONSTANT_S)


class _VirtualQueue:
    """Refusals, of which one leaves for each response computed recently (at twice the capacity
    there is one refusal per response), but at least `least` a second."""

    def __init__(self, least: float, max_wait_s: float) -> None:
        self._least, self._max_wait_s = least, max_wait_s
        self._answers = DecayingRate()
        self._end = 0.0  # when the queue is empty

    def answer(self, now: float) -> None:
        self._answers.add(now)

    def refuse(self, now: float) -> float:
        """Add a refusal; return when it leaves."""
        each_s = 1 / max(self._answers.at(now), self._least)
        self._end = min(max(self._end, now - _BURST_S) + each_s, now + self._max_wait_s)
        return self._end


class Wait(NamedTuple):
    """Seconds for which a refusal is held before it is sent, and for which its connection is not
    read after that."""

    before_s: float
    after_s: float


@final
class RefusalThrottle:
    """Computes how long a refused client waits.

    All refusals stand in a virtual queue, and those of each client in one of its own too. A queue
    drains at the rate of computed responses, of all clients or of this one, or at its least rate if
    that is higher; the least rate of a client is half of that of all. Below these rates no one
    waits; above them the wait is the length of the longer queue, rounded up to `_TICK_S`. The first
    second of it, which every `Retry-After` asks for anyway, follows the response, and its
    connection is not read. What is more, at most four seconds of a client that is refused again and
    again, comes before the response, so that new connections are no way around it.
    """

    def __init__(
        self, least: float = _MIN_REFUSALS_PER_S, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._least, self._clock = least, clock
        self._refusals = DecayingRate()
        self._all = _VirtualQueue(least, _MAX_WAIT_AFTER_S)
        self._by_client = OrderedDict[str, _VirtualQueue]()

    @property
    def is_flooded(self) -> bool:
        """Whether refusals are so frequent that each must be as cheap as possible."""
        return self._refusals.at(self._clock()) > _FLOOD_PER_S

    def answer(self, client: str) -> None:
        """Count a computed response."""
        now = self._clock()
        for queue in (self._all, self._queue_of(client)):
            queue.answer(now)

    def refuse(self, client: str) -> Wait:
        """Count a refusal; return how long the client waits."""
        now = self._clock()
        self._refusals.add(now)
        end = max(queue.refuse(now) for queue in (self._all, self._queue_of(client)))
        if end <= now:
            return Wait(0.0, 0.0)
        wait_s = math.ceil(end / _TICK_S) * _TICK_S - now
        after_s = min(wait_s, _MAX_WAIT_AFTER_S + _TICK_S)
        return Wait(wait_s - after_s, after_s)

    def _queue_of(self, client: str) -> _VirtualQueue:
        queue = self._by_client.pop(client, None)
        if queue is None:
            queue = _VirtualQueue(_CLIENT_PART * self._least, _MAX_WAIT_S)
            if len(self._by_client) >= _MAX_CLIENTS:
                self._by_client.popitem(last=False)
        self._by_client[client] = queue
        return queue


@final
class ThrottleMiddleware:
    """ASGI middleware: delays the end of a `queue-full` response after all of its bytes were sent.
    If the client is refused again and again, the bytes wait too.

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
        refusal = list[Message]()

        async def send_or_keep(message: Message) -> None:
            state = get_state(scope)
            if state.problem == BUSY:
                refusal.append(message)
                return
            starts = message["type"] == "http.response.start" and message["status"] < 300
            if starts and state.cost is not None:  # it needed a place
                self._pace.answer(identify_client(scope))
            await send(message)

        await self._app(scope, receive, send_or_keep)
        if not refusal:
            return
        # The request is over for the log, the metrics and the limits of its key: only it waits.
        wait = self._pace.refuse(identify_client(scope))
        if wait.after_s:
            self._hold()
            await asyncio.sleep(wait.before_s)
            refusal[-1] = {**refusal[-1], "more_body": True}
        for message in refusal:
            await send(message)
        if wait.after_s:
            await asyncio.sleep(wait.after_s)
            await send({"type": "http.response.body", "body": b""})
