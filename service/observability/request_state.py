"""What is known about one request while it is handled."""

from __future__ import annotations

from dataclasses import dataclass, field

from starlette.types import Scope

from service.observability.progress import Progress
from service.observability.stopwatch import StageTimer

_KEY = "request"


@dataclass
class RequestState:
    """Filled by the middlewares and the pipeline; read for the log line, the metrics and the trace.

    Attributes:
        route: path template of the route; `unmatched` until one is found.
        model: name of the model (or `sample`) that computes the response.
        cost: what the quota of the key is charged, tokens x steps.
        problem: kind of the problem that it is answered with.
        job_owner: set where a stored job is run again instead of a client's request: the name of
            the API key that the job came with, empty without one.
    """

    request_id: str
    timer: StageTimer = field(default_factory=StageTimer)
    progress: Progress = field(default_factory=Progress)
    route: str = "unmatched"
    model: str | None = None
    cost: float | None = None
    problem: str | None = None
    job_owner: str | None = None

    @property
    def is_job(self) -> bool:
        """Whether no client waits for the response."""
        return self.job_owner is not None


def set_state(scope: Scope, state: RequestState) -> None:
    """Attach `state` to an ASGI scope."""
    scope.setdefault("state", {})[_KEY] = state


def get_state(scope: Scope) -> RequestState:
    """Return the state that `RequestLogMiddleware` or a job attached to an ASGI scope."""
    return scope["state"][_KEY]


def is_job(scope: Scope) -> bool:
    """Whether a stored job is run again; may be asked before a client's request has a state."""
    return _KEY in scope.get("state", {}) and get_state(scope).is_job
