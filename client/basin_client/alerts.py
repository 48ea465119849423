"""Follow the alerts of a graph over breaks of the connection."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator
from typing import Any

from basin_client.errors import ProblemError, UnreachableError
from basin_client.request import EVENT_STREAM, Request, parse_nothing, quote_path
from basin_client.transport import Event

_FIRST_WAIT_S = 0.5
_MAX_WAIT_S = 10.0


class AlertWatch:
    """Where a stream of alerts is, and how long to wait before it is opened again.

    Attributes:
        wait_s: pause before the next `request`.
    """

    def __init__(self, graph: str, after: str | None, max_wait_s: float) -> None:
        self._path = f"{quote_path('graphs', graph)}/alerts"
        self._after, self._max_wait_s = after, max_wait_s
        self._waited_s, self.wait_s = 0.0, _FIRST_WAIT_S

    def request(self) -> Request[None]:
        """Return the request for the alerts that follow the last one read."""
        headers = {"accept": EVENT_STREAM}
        if self._after is not None:
            headers["last-event-id"] = self._after
        return Request("GET", self._path, parse_nothing, headers=headers)

    def read(self, events: Iterable[Event]) -> Iterator[dict[str, Any]]:
        """Yield the alerts of a stream; warn of those that the server no longer keeps."""
        for name, data in events:
            if name == "alert":
                self._after = data["event_id"]
                yield data
            elif name == "missed":
                text = f"{data['missed']} alerts were missed: the server no longer keeps them."
                warnings.warn(text, stacklevel=3)

    def reset(self) -> None:
        """Forget failures: the stream is open."""
        self._waited_s, self.wait_s = 0.0, _FIRST_WAIT_S

    def handle(self, error: UnreachableError | ProblemError) -> None:
        """Set the pause after a failure.

        Raises:
            UnreachableError: there were failures for too long.
            ProblemError: the same; or the server refused for another reason than that it has no
                capacity, or loads its models.
        """
        if isinstance(error, ProblemError) and error.status not in (429, 502, 503):
            raise error
        self._waited_s += self.wait_s
        if self._waited_s > self._max_wait_s:
            raise error
        self.wait_s = min(2 * self.wait_s, _MAX_WAIT_S)
