"""Pictures on the way to a completion."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from service.imaging.encode import encode_base64_png
from service.imaging.image import ImageData


@dataclass(frozen=True)
class Frame:
    """A picture as it would be if its windows stopped at this step of `steps`, those of all
    windows together. Energies are per patch, the mean of the windows that move, of their `block`.
    """

    sample: int
    step: int
    steps: int
    block: int
    energy: float
    components: dict[str, float]
    picture: ImageData

    def told(self) -> dict[str, Any]:
        """As JSON has it, the components of the energy by name."""
        return {
            "sample": self.sample,
            "step": self.step,
            "steps": self.steps,
            "block": self.block,
            "energy": self.energy,
            **self.components,
            "b64_png": encode_base64_png(self.picture),
        }


class Frames:
    """Which moments are shown: up to `most`, evenly over the steps that there may be. Windows that
    come to rest before show fewer; the picture that they end in is the answer."""

    def __init__(self, most: int, show: Callable[[Frame], object]) -> None:
        self._most, self.show, self._shown = most, show, 0

    def due(self, step: int, steps: int) -> bool:
        """Is it time, at this step of `steps`? Yes is said once."""
        reached = self._most * step // max(steps, 1)
        due, self._shown = reached > self._shown, max(reached, self._shown)
        return due
