"""How far a running request has come."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Progress:
    """How far work has come: written by the compute thread, read by whoever watches.

    `step` of `steps` is what the route counts, `energy` the last that it knows; `relaxation_steps`
    are those that the dynamics have taken.
    """

    step: int = 0
    steps: int | None = None
    energy: float | None = None
    relaxation_steps: int = 0
