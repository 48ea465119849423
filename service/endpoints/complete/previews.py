"""Intermediate images of a completion."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from models.dynamics import TracePoint
from models.inputs.image_files.data import ImageData
from service.imaging.encode import encode_base64_png


class EnergyDrop:
    """By how much the energy of all windows of an image has fallen, as these relax one batch after
    another, block after block. A window that has not begun has not fallen, so that the sum does not
    jump where other windows go on; in the end it is `energy_drop` of the convergence."""

    def __init__(self) -> None:
        self._before, self._initial, self._current = 0.0, 0.0, 0.0

    def observe(self, moment: TracePoint) -> None:
        """Take a moment of the windows that relax now; step 0 begins other windows or a block."""
        energy = float(moment.energy_R.sum())
        if moment.step == 0:
            self._before += self._initial - self._current
            self._initial = energy
        self._current = energy

    @property
    def total(self) -> float:
        return self._before + self._initial - self._current


@dataclass(frozen=True)
class Frame:
    """The image that would result if all windows stopped at `step` of `steps` (summed over the
    windows).

    Attributes:
        windows: places of the windows that relax now, among all that the sample relaxes.
        energy, components: of these windows in `block`, per patch.
        energy_drop: of all windows of the sample, per patch; see `EnergyDrop`.
    """

    sample: int
    step: int
    steps: int
    block: int
    windows: range
    energy_drop: float
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
            "windows": list(self.windows),
            "energy_drop": self.energy_drop,
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
