"""Play histories of seeds, and find shorter ones that fail too."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.support.chaos.expected import ViolationError
from tests.support.chaos.play import Player
from tests.support.chaos.steps import Step, draw_steps
from tests.support.chaos.world import World
from training.datasets.payments import simulate_payments

_TRIES, _SHRINK_S = 60, 300.0


class Histories:
    """A world, and the histories that are played in it one after the other."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._number = folder, 0
        frame = simulate_payments(1000, fraud_share=0.05, seed=5).head(40)
        # All within the shortest window, so that a row can be added after a later one.
        frame["time"] = [f"2026-01-01T07:{minute:02}:00Z" for minute in range(len(frame))]
        self._rows = frame.drop(columns=["is_fraud", "typology"]).to_dict("records")
        self._answers = dict[int, Any]()
        self._worlds = 0
        self._world: World | None = None

    def __enter__(self) -> Histories:
        return self

    def __exit__(self, *_: object) -> None:
        self._close()

    def play_seed(self, seed: int, counts: Counter[str]) -> ViolationError | None:
        """Play the history of a seed; return what must not have happened, if it did."""
        return self.play(draw_steps(seed), counts)

    def shrink(self, seed: int, violation: ViolationError) -> tuple[list[Step], ViolationError]:
        """Leave out steps as long as some violation remains."""
        steps, size = draw_steps(seed), 16
        end = time.monotonic() + _SHRINK_S
        while size and time.monotonic() < end:
            for start in range(0, len(steps), size):
                shorter = steps[:start] + steps[start + size :]
                if time.monotonic() < end and (again := self.play(shorter, Counter())):
                    steps, violation = shorter, again
                    break
            else:
                size //= 2
        return steps, violation

    def begin(self, counts: Counter[str]) -> Player:
        """Return who plays the next history."""
        self._number += 1
        if self._world is None:
            self._worlds += 1
            self._world = World(self._folder / f"world-{self._worlds}")
        return Player(self._world, f"h{self._number}", self._rows, self._answers, counts)

    def play(self, steps: Sequence[Step], counts: Counter[str]) -> ViolationError | None:
        """Play a history; return what must not have happened, if it did."""
        player = self.begin(counts)
        try:
            player.play(steps)
        except ViolationError as violation:
            self._close()  # what is left of it must not trouble the next
            return violation
        return None

    def _close(self) -> None:
        if self._world is not None:
            world, self._world = self._world, None
            world.close()
