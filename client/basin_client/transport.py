"""What the two clients share: retries, and conversion to and from httpx."""

from __future__ import annotations

import json
import random
import secrets
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import httpx

from basin_client.errors import BasinError, InputError, ProblemError, UnreachableError
from basin_client.request import Request, parse_json, quote_path
from basin_client.schema import GraphSchema

T = TypeVar("T")
Event = tuple[str, dict[str, Any]]
"""Name and data of a server-sent event."""
_RETRY_STATUSES = frozenset((429, 502, 503))


class BaseClient(ABC):
    """Settings and retries of both clients."""

    def __init__(
        self,
        url: str = "http://127.0.0.1:8000",
        *,
        key: str | None = None,
        retries: int = 4,
        max_retry_wait_s: float = 60.0,
        timeout_s: float = 120.0,
        patience_s: float | None = None,
    ) -> None:
        """Set up a client; a request opens its connection.

        Args:
            url: of the server, without a path.
            key: API key, if the server requires one.
            retries: how many times a request is sent again that the server had no capacity for, or
                that was lost with its connection.
            max_retry_wait_s: limit for the sum of the pauses before these retries.
            timeout_s: limit for each single read or write of the connection.
            patience_s: deprecated name of `max_retry_wait_s`.
        """
        if patience_s is not None:
            warnings.warn(
                "Client(patience_s=...) is now Client(max_retry_wait_s=...)",
                DeprecationWarning,
                stacklevel=2,
            )
            max_retry_wait_s = patience_s
        headers = {} if key is None else {"authorization": f"Bearer {key}"}
        self._create_http({"base_url": url, "timeout": timeout_s, "headers": headers})
        # What models read, by `Request.schema_path`. The server checks the names again, so that a
        # model that was replaced meanwhile leads to an error and not to a wrong score.
        self._schemas: dict[str, GraphSchema] = {}
        self._retries = retries
        self._max_retry_wait_s = max_retry_wait_s

    @abstractmethod
    def _create_http(self, settings: dict[str, Any]) -> None:
        """Create the httpx client."""

    def _forget_schema(self, request: Request[Any], response: httpx.Response) -> None:
        """Ask again what a model reads after it refused names: it may have been replaced."""
        if response.status_code == 422:
            self._schemas.pop(request.schema_path, None)

    def _attempts(self, request: Request[Any]) -> Iterator[Attempt]:
        remaining_wait_s = self._max_retry_wait_s
        for number in range(self._retries + 1):
            attempt = Attempt(request, number, remaining_wait_s, number == self._retries)
            yield attempt
            remaining_wait_s -= attempt.wait_s


# Tenacity would save 10 of 530 lines: its `retry`, `wait` and `stop` would all be our functions,
# and it would be one dependency more. Stamina limits the elapsed time, not the sum of pauses.
class Attempt:
    """One attempt to send a request. `wait_s` is the pause before the next one.

    Every request may be sent twice: computing changes nothing on the server, a job has an
    idempotency key, and storing, changing or deleting twice has the effect of once.
    """

    def __init__(
        self, request: Request[Any], number: int, remaining_wait_s: float, is_last: bool
    ) -> None:
        self._request = request
        self._number = number
        self._remaining_wait_s = remaining_wait_s
        self._is_last = is_last
        self.wait_s = 0.0

    def is_success(self, response: httpx.Response) -> bool:
        # 404 to a repeated DELETE: an earlier attempt deleted it, and its response was lost.
        is_retried_delete = self._request.method == "DELETE" and self._number > 0
        return response.is_success or (is_retried_delete and response.status_code == 404)

    def handle_transport_error(self, error: httpx.TransportError) -> None:
        """Set the pause before the next attempt.

        Raises:
            UnreachableError: this was the last attempt; the next one would be too late; or the
                server did not respond in time, and would take as long again.
        """
        if isinstance(error, httpx.ReadTimeout | httpx.WriteTimeout):
            raise UnreachableError(
                f"The server did not respond within timeout_s: {error}. Raise timeout_s, or send "
                "less in one request."
            ) from error
        self._schedule_retry(None, unreachable_error(error), error)

    def handle_refusal(self, response: httpx.Response) -> None:
        """Set the pause before the next attempt.

        Raises:
            ProblemError: this was the last attempt, the next one would be too late, or a retry
                cannot help.
        """
        problem = ProblemError.from_response(response)
        retry_after = response.headers.get("retry-after")
        # Without Retry-After the quota of the key is smaller than this one request.
        exceeds_quota = problem.kind == "quota-exceeded" and retry_after is None
        can_retry = self._request.retryable and response.status_code in _RETRY_STATUSES
        if exceeds_quota or not can_retry:
            raise problem
        self._schedule_retry(retry_after, problem, None)

    def _schedule_retry(
        self, retry_after: str | None, error: BasinError, cause: Exception | None
    ) -> None:
        if retry_after is not None and retry_after.isdecimal():
            self.wait_s = float(retry_after)
        else:  # exponential backoff; the random factor keeps clients from retrying all together
            self.wait_s = 0.1 * 2**self._number * (0.5 + random.random())
        if self._is_last or self.wait_s > self._remaining_wait_s:
            raise error from cause


def default_model_path(models: Sequence[dict[str, Any]]) -> str:
    """Return the path of the model that scores graphs where a request names none.

    Raises:
        InputError: there is none.
    """
    for model in models:
        if "/anomaly/score" in model["default_for"]:
            return quote_path("models", model["name"])
    raise InputError("The server has no default model for graphs: pass model=.")


def unreachable_error(error: httpx.TransportError) -> UnreachableError:
    return UnreachableError(
        f"The server was not reached, or closed the connection: {error}. Check its URL and log."
    )


def parse_response(request: Request[T], response: httpx.Response) -> T:
    """
    Raises:
        BasinError: the response does not have the form that a Basin server gives it.
    """
    try:
        return request.parse(response)
    except (ValueError, KeyError, TypeError) as error:
        raise BasinError(
            f"The response is not one of a Basin server: {error!r}. Check the URL."
        ) from error


def to_httpx(request: Request[Any]) -> dict[str, Any]:
    """Return the arguments of `httpx.Client.request`."""
    body: dict[str, Any] = {"content": request.content}
    if request.files:
        body = {"files": list(request.files), "data": dict(request.data)}
    return {
        "method": request.method,
        "url": request.path,
        "headers": dict(request.headers),
        "params": dict(request.params),
        **(body if request.method in ("POST", "PUT", "PATCH") else {}),
    }


def as_job(request: Request[Any]) -> Request[dict[str, Any]]:
    """Return a copy that the server runs as a job. Its idempotency key makes sending it twice safe.

    Raises:
        TypeError: the request does not compute anything.
    """
    if request.method != "POST":
        raise TypeError(
            f"{request.method} {request.path} cannot be a job: only POST requests, which compute, "
            "can. Use `send`."
        )
    key = f'"{secrets.token_urlsafe(18)}"'
    headers = {"prefer": "respond-async", "idempotency-key": key}
    return replace(request.with_headers(headers), parse=parse_json)


class EventParser:
    """Parses server-sent events line by line."""

    def __init__(self) -> None:
        self._name = "message"

    def feed(self, line: str) -> Event | None:
        """Return the event that this line completes, if any.

        Raises:
            ProblemError: the event says that the computation failed.
        """
        if line.startswith("event: "):
            self._name = line.removeprefix("event: ")
            return None
        if not line.startswith("data: "):
            return None
        data = json.loads(line.removeprefix("data: "))
        if self._name == "failed" and "status" in data and "title" in data:
            raise ProblemError(int(data["status"]), data)
        return self._name, data
