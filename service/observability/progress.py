"""How far a running request has come."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Progress:
    """Written by the compute thread, read by the event loop.

    Attributes:
        step: windows, images or chain steps done, of `steps`; what is counted depends on the route.
        steps: None where the route counts nothing.
        energy: the last one computed, per node, patch or token.
        relaxation_steps: steps of the dynamics so far.
    """

    step: int = 0
    steps: int | None = None
    energy: float | None = None
    relaxation_steps: int = 0
