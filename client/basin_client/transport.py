"""What both clients do alike: how often a call is sent, and what of a response is its answer."""

from __future__ import annotations

import json
import random
import secrets
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, TypeVar

import httpx

from basin_client.errors import BasinError, ProblemError, UnreachableError
from basin_client.request import Request

T = TypeVar("T")
_AGAIN = frozenset((429, 502, 503))


class Sender(ABC):
    """What both clients know: where, with what key, how often and how long."""

    def __init__(
        self,
        url: str = "http://127.0.0.1:8000",
        *,
        key: str | None = None,
        retries: int = 4,
        patience_s: float = 60.0,
        timeout_s: float = 120.0,
    ) -> None:
        """
        Args:
            key: of the server, if it asks for one.
            retries: how often a call is sent again that the server had no room for, or that was
                lost on the way.
            patience_s: how long it may tell to wait before that, all waits together.
            timeout_s: that nothing comes or goes of one try.
        """
        headers = {} if key is None else {"authorization": f"Bearer {key}"}
        self._open({"base_url": url, "timeout": timeout_s, "headers": headers})
        self._retries, self._patience_s = retries, patience_s

    @abstractmethod
    def _open(self, about: dict[str, Any]) -> None:
        """Make the client of httpx, with these settings."""

    def tries(self, call: Request[Any]) -> Iterator[Attempt]:
        left = self._patience_s
        for i in range(self._retries + 1):
            one = Attempt(call, i, left, last=i == self._retries)
            yield one
            left -= one.wait_s


class Attempt:
    """One of the times that a call is sent; `wait_s` is how long to wait before the next.

    Whatever is sent may be sent twice: what computes changes nothing, a job has a key of its own,
    and what is stored, changed or forgotten twice is so.
    """

    def __init__(self, call: Request[Any], number: int, left_s: float, last: bool) -> None:
        self._call, self._number, self._left_s, self._last = call, number, left_s, last
        self.wait_s = 0.0

    def read(self, response: httpx.Response) -> bool:
        """Is this the answer?"""
        forgotten = self._call.method == "DELETE" and response.status_code == 404
        return response.is_success or (forgotten and self._number > 0)

    def failed(self, error: httpx.TransportError) -> None:
        """
        Raises:
            BasinError: it is not worth another try, as where there was no answer in time.
        """
        if isinstance(error, httpx.ReadTimeout | httpx.WriteTimeout):
            raise UnreachableError(f"no answer in time: {error}") from error
        self._wait(None, unreachable(error), error)

    def refused(self, response: httpx.Response) -> None:
        """
        Raises:
            ProblemError: likewise.
        """
        problem, asked = ProblemError.of(response), response.headers.get("retry-after")
        never = problem.kind == "quota-exceeded" and asked is None
        if never or not self._call.again or response.status_code not in _AGAIN:
            raise problem
        self._wait(asked, problem, None)

    def _wait(self, asked: str | None, error: BasinError, cause: Exception | None) -> None:
        if asked is not None and asked.isdecimal():
            self.wait_s = float(asked)
        else:
            self.wait_s = 0.1 * 2**self._number * (0.5 + random.random())
        if self._last or self.wait_s > self._left_s:
            raise error from cause


def unreachable(error: httpx.TransportError) -> UnreachableError:
    return UnreachableError(f"the server was not reached, or stopped: {error}")


def answer_of(call: Request[T], response: httpx.Response) -> T:
    try:
        return call.read(response)
    except (ValueError, KeyError, TypeError) as error:
        raise BasinError(f"the answer is none of a Basin server: {error!r}") from error


def sent_with(call: Request[Any]) -> dict[str, Any]:
    body: dict[str, Any] = {"content": call.content}
    if call.files:
        body = {"files": list(call.files), "data": dict(call.data)}
    return {
        "method": call.method,
        "url": call.path,
        "headers": dict(call.headers),
        "params": dict(call.params),
        **(body if call.method in ("POST", "PUT", "PATCH") else {}),
    }


def later(call: Request[Any]) -> Request[dict[str, Any]]:
    """As a job; under a key of its own, so that sent twice it is one.

    Raises:
        TypeError: it computes nothing.
    """
    if call.method != "POST":
        raise TypeError(f"{call.method} {call.path} is answered at once, and is no job")
    key = {"prefer": "respond-async", "idempotency-key": f'"{secrets.token_urlsafe(18)}"'}
    return call.with_headers(key).reading(lambda response: response.json())


class Events:
    """Server-sent events, from their lines."""

    def __init__(self) -> None:
        self._name = "message"

    def take(self, line: str) -> tuple[str, dict[str, Any]] | None:
        """An event that is complete with this line."""
        if line.startswith("event: "):
            self._name = line.removeprefix("event: ")
        elif line.startswith("data: "):
            return self._name, json.loads(line.removeprefix("data: "))
        return None


def told_by(event: tuple[str, dict[str, Any]]) -> tuple[str, dict[str, Any]]:
    """
    Raises:
        ProblemError: what was begun has failed.
    """
    name, data = event
    if name == "failed" and "status" in data and "title" in data:
        raise ProblemError(int(data["status"]), data)
    return event
