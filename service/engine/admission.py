"""Whether a request is admitted: the three rules of a full queue, and their errors."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import final

from service.engine.load_estimator import LoadEstimator
from service.errors import Problem
from service.shares import Shares


@final
class Admission:
    """Decide which requests may wait or run; all others get 429 `queue-full`.

    1. In all: `queue_size` requests wait beside one that runs, and those of one API key take as
       many places as they leave free (`require_capacity`).
    2. Of one model: at most `max_per_model` wait or run, no limit if None; those of one API key
       take as many of these places as they leave free (`hold_turn`).
    3. By time: none whose deadline would be missed, by the estimate of `load` (`require_turn`). The
       first of its kind (a model, or the jobs of a model) is always admitted, so that its time is
       measured again.

    Used on the event loop only.
    """

    def __init__(self, queue_size: int, max_per_model: int | None, load: LoadEstimator) -> None:
        self._places = Shares(queue_size + 1)
        self._max_per_model = max_per_model
        self._by_model: dict[str, Shares] = {}  # of models that have requests; none is empty
        self._load = load

    @property
    def capacity(self) -> int:
        """Requests that may wait or run."""
        return self._places.total

    @property
    def count(self) -> int:
        """Requests that wait or run."""
        return self._places.used

    def is_full(self, key: str = "") -> bool:
        """Whether no further request is admitted, of the API key of this name if there is one."""
        return not (self._places.may_take(key) if key else self._places.has_room())

    def queue_full_error(self, key: str = "") -> Problem:
        """429; Retry-After is the time that draining the queue is expected to take."""
        if key and self._places.has_room():
            count = self._places.held_by(key)
            detail = (
                f"This API key has {count} of {self.capacity} places in the queue "
                "(BASIN_QUEUE_SIZE), and may have as many as it leaves free."
            )
        else:
            count = self.count
            detail = (
                f"The queue is full: {count} of {self.capacity} requests (BASIN_QUEUE_SIZE) are "
                "running or waiting."
            )
        return _too_many(detail, max(math.ceil(self._load.backlog_s), 1))

    def require_capacity(self, key: str = "") -> None:
        """Raise `queue_full_error` if the queue is full."""
        if self.is_full(key):
            raise self.queue_full_error(key)

    @contextmanager
    def place(self, key: str = "") -> Iterator[None]:
        """Hold a place in the queue inside the context; 429 `queue-full` if there is none.

        Args:
            key: name of the API key of the request. Without keys there are no shares: behind a
                proxy all clients have one address, which could then use half of the queue.
        """
        self.require_capacity(key)
        with self._places.hold(key):
            yield

    def pending(self, flow: str) -> int:
        """Requests of a model that run or wait to, jobs among them."""
        return sum(self._load.pending_count((flow, is_job)) for is_job in (False, True))

    @contextmanager
    def hold_turn(self, flow: str, key: str = "") -> Iterator[None]:
        """Hold a place of the model inside the context; 429 `queue-full` if there is none."""
        total = self._max_per_model
        if total is None:
            yield
            return
        places = self._by_model.setdefault(flow, Shares(total))
        if not places.may_take(key):
            if places.has_room():
                detail = (
                    f"This API key has {places.held_by(key)} of {total} places of this model "
                    "(BASIN_MAX_PER_MODEL), and may have as many as it leaves free."
                )
            else:
                detail = (
                    f"{total} requests of this model (BASIN_MAX_PER_MODEL) are running or waiting."
                )
            raise _too_many(detail, 1)
        try:
            with places.hold(key):
                yield
        finally:
            if not places.used:
                del self._by_model[flow]

    def require_turn(
        self,
        flow: str,
        is_job: bool,
        weight: float,
        cost: float,
        deadline_s: float,
        size: int = 0,
        key: str = "",
    ) -> None:
        """Raise 429 if a request would be late; no job is.

        Args:
            deadline_s: seconds that are left for the request.
            size: tokens and edges in memory at a time.
            key: name of the API key of the request.
        """
        kind = flow, is_job
        if is_job or not self._load.pending_count(kind):
            return
        delay_s = self._load.expected_s(kind, weight, cost, size, key) - deadline_s
        if delay_s <= 0:
            return
        alone_s = self._load.compute_s(kind, cost)
        if alone_s > deadline_s:
            reason = (
                f"it takes about {alone_s:.3g} s of compute. Lower `steps`, send less, or use "
                "`Prefer: respond-async`."
            )
        else:
            reason = "the server is overloaded."
        # Once all that is pending is done this request is the first of its kind.
        raise _too_many(
            f"The estimated wait exceeds this request's deadline by {delay_s:.3g} s because "
            f"{reason}",
            max(math.ceil(min(delay_s, self._load.backlog_s)), 1),
        )


def _too_many(detail: str, retry_s: int) -> Problem:
    return Problem(
        "queue-full", f"{detail} Retry after {retry_s} s.", headers={"retry-after": str(retry_s)}
    )
