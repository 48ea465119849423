"""Intermediate images of a completion."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from models.inputs.image_files.data import ImageData
from service.imaging.encode import encode_base64_png


@dataclass(frozen=True)
class Frame:
    """The image that would result if all windows stopped at `step` of `steps` (summed over the
    windows). Energies are per patch, the mean over the windows of `block` that still move.
    """

    sample: int
    step: int
    steps: int
    block: int
    energy: float
    components: dict[str, float]
    image: ImageData

    def to_event(self) -> dict[str, Any]:
        """Return a dict for JSON, with the components of the energy by name."""
        return {
            "sample": self.sample,
            "step": self.step,
            "steps": self.steps,
            "block": self.block,
            "energy": self.energy,
            **self.components,
            "b64_png": encode_base64_png(self.image),
        }


class Frames:
    """Chooses up to `max_frames` frames, evenly spaced over the maximum number of steps.

    Windows that converge early give fewer frames; the final image is the response.
    """

    def __init__(self, max_frames: int, show: Callable[[Frame], object]) -> None:
        self._max_frames, self.show, self._shown = max_frames, show, 0

    def due(self, step: int, steps: int) -> bool:
        """Is it time, at this step of `steps`? Yes is said once."""
        reached = self._max_frames * step // max(steps, 1)
        due, self._shown = reached > self._shown, max(reached, self._shown)
        return due
