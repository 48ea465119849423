"""Whether a request is admitted: the three rules of a full queue, and their errors."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import final

from service.engine.load_estimator import LoadEstimator
from service.errors import Problem


@final
class Admission:
    """Decide which requests may wait or run; all others get 429 `queue-full`.

    1. In all: `queue_size` requests wait beside one that runs (`require_capacity`).
    2. Of one model: at most `max_per_model` wait or run; no limit if None (`require_turn`).
    3. By time: none whose deadline would be missed, by the estimate of `load` (`require_turn`). The
       first of its kind (a model, or the jobs of a model) is always admitted, so that its time is
       measured again.

    Used on the event loop only.
    """

    def __init__(self, queue_size: int, max_per_model: int | None, load: LoadEstimator) -> None:
        self.capacity = queue_size + 1
        self.count = 0  # requests that wait or run
        self._max_per_model = max_per_model
        self._load = load

    @property
    def is_full(self) -> bool:
        """Whether no further request is admitted."""
        return self.count >= self.capacity

    def queue_full_error(self) -> Problem:
        """429; Retry-After is the time that draining the queue is expected to take."""
        retry_s = max(math.ceil(self._load.backlog_s), 1)
        return _too_many(
            f"The queue is full: {self.count} of {self.capacity} requests (BASIN_QUEUE_SIZE) are "
            "running or waiting.",
            retry_s,
        )

    def require_capacity(self) -> None:
        """Raise `queue_full_error` if the queue is full."""
        if self.is_full:
            raise self.queue_full_error()

    @contextmanager
    def place(self) -> Iterator[None]:
        """Hold a place in the queue inside the context; 429 `queue-full` if there is none."""
        self.require_capacity()
        self.count += 1
        try:
            yield
        finally:
            self.count -= 1

    def pending(self, flow: str) -> int:
        """Requests of a model that run or wait to, jobs among them."""
        return sum(self._load.pending_count((flow, is_job)) for is_job in (False, True))

    def require_turn(
        self,
        flow: str,
        is_job: bool,
        weight: float,
        cost: float,
        deadline_s: float,
        size: int = 0,
    ) -> None:
        """Raise 429 if the model has too many requests, or if this one would be late; no job is.

        Args:
            deadline_s: seconds that are left for the request.
            size: tokens and edges in memory at a time.
        """
        if self._max_per_model is not None and self.pending(flow) >= self._max_per_model:
            raise _too_many(
                f"{self._max_per_model} requests of this model (BASIN_MAX_PER_MODEL) are running "
                "or waiting.",
                1,
            )
        kind = flow, is_job
        if is_job or not self._load.pending_count(kind):
            return
        delay_s = self._load.expected_s(kind, weight, cost, size) - deadline_s
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
