"""Complete an image `count` times, and report the convergence of its windows."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from torch import Tensor

from models.base import DynamicsParams, StepControl
from models.dynamics import TracePoint
from models.inputs.image_files.data import ImageData
from models.inputs.patches import MaskedImage, PatchBatch
from models.interpret.reasons import RowReasons
from models.sampling import RunInterruptedError
from service.endpoints.common.convergence import MeanConvergence, aggregate
from service.endpoints.common.dynamics import resolved_dynamics
from service.endpoints.common.reasons import ReasonCollector
from service.endpoints.complete.inpaint import Preview, complete
from service.endpoints.complete.previews import Frame, Frames
from service.endpoints.complete.tiling import Plan
from service.observability.progress import Progress
from service.registry.handles import Completer

_APART = 2_654_435_769
"""Distance of the seeds of successive windows: 2**32 divided by the golden ratio, whose multiples
stay apart in the 32 bits of a seed."""


@dataclass(frozen=True)
class CompleteInputs:
    """What to complete and how: `plan` has the windows of `image`, to be filled `count` times."""

    model: Completer
    image: ImageData
    plan: Plan
    count: int
    params: DynamicsParams
    include: frozenset[str]

    @property
    def patches(self) -> int:
        """Number of patches of a window."""
        return (self.plan.size // self.plan.patch) ** 2

    @property
    def rows(self) -> int:
        """Number of windows to relax; a grayscale network gets each channel separately."""
        planes = self.image.pixels.shape[2] // self.model.config.channels
        return self.count * self.plan.windows * max(planes, 1)


@dataclass(frozen=True)
class Completion:
    """A completed image, with the convergence of each window and of all together."""

    image: ImageData
    windows: list[dict[str, Any]]
    convergence: dict[str, Any]
    reasons: RowReasons | None


@dataclass(frozen=True)
class Completed:
    """The completions of one image."""

    completions: list[Completion]
    dynamics: dict[str, Any]


def complete_image(
    task: CompleteInputs,
    progress: Progress,
    control: StepControl,
    frames: Frames | None = None,
    room: int | None = None,
) -> Completed:
    """Fill the holes of `task`; `control` can stop it before any step, and `frames` gets previews.

    Completion i has the noise of seed + i, so each can be reproduced alone.

    Args:
        room: maximum bytes of the reasons as tensors; None if they are sent as JSON.

    Raises:
        Problem: `diverged`, or the reasons exceed `room`.
        RunInterruptedError: `control` gave a reason.
    """
    progress.steps = task.rows
    completions = []
    for index in range(task.count):
        params = replace(task.params, seed=task.params.seed + index)
        filler = _Filler(task, params, progress, control, frames, index, room)
        channels, preview = task.model.config.channels, filler.preview
        image = complete(task.image, task.plan, filler, channels, preview)
        report = filler.windows, filler.convergence(), filler.reasons()
        completions.append(Completion(image, *report))
    return Completed(completions, resolved_dynamics(task.model.network, task.params))


class _Filler:
    """Fills windows with the network of `task`, and collects their convergence."""

    def __init__(
        self,
        task: CompleteInputs,
        params: DynamicsParams,
        progress: Progress,
        control: StepControl,
        frames: Frames | None,
        sample: int,
        room: int | None,
    ) -> None:
        self._model, self._include = task.model, task.include
        self._frames, self._sample = frames, sample
        self.preview = Preview()
        self._params, self._progress, self._control = params, progress, control
        self._patches = task.patches
        self._gathering = ReasonCollector(task.include, control, room, pairs=False)
        self._sum: RowReasons | None = None
        self._mean, self._energy = MeanConvergence(), 0.0
        self.windows: list[dict[str, Any]] = []

    def __call__(self, windows: np.ndarray, occluded: np.ndarray) -> np.ndarray:
        network, energy = self._model.network, self._model.manifest.energy
        pixels = np.rint(255 * windows).astype(np.uint8)
        batch = network.pack([MaskedImage(*each) for each in zip(pixels, occluded, strict=True)])
        watch = None if self._frames is None else partial(self._watch, batch)
        params = self._seeded(batch.rows)
        infer = partial(network.infer, batch, params, self._control, watch)
        output = self._gathering.run(network, params, infer)
        if (why := self._control.stop_reason()) is not None:
            raise RunInterruptedError(why)
        courses, parts = self._gathering.courses(output), self._include - {"trace"}
        for each in self._gathering.take(batch.rows):
            self._sum = each if self._sum is None else self._sum.add(each)
        if "trace" in self._include:
            self._mean.add(courses, batch.rows)
        hidden = occluded.mean((1, 2))
        self.windows += [
            courses.row(row, self._patches, energy, parts, float(hidden[row]))
            for row in range(batch.rows)
        ]
        self._energy += sum(window["energy_final"] for window in self.windows[-batch.rows :])
        self._progress.energy = self._energy / (len(self.windows) * self._patches)
        self._progress.step += batch.rows
        return _pixels(output.logits)

    def _watch(self, batch: PatchBatch, block: int, x_ND: Tensor, moment: TracePoint) -> None:
        """Emit a preview frame when one is due."""
        if self._frames is None:
            return
        network, rows = self._model.network, batch.rows
        blocks = network.blocks_in_order()
        each = blocks[0].steps if self._params.steps is None else self._params.steps
        done, total = self._progress.step, self._progress.steps or 0
        step = done * len(blocks) * each + rows * (block * each + moment.step)
        steps = total * len(blocks) * each
        if self._frames.due(step, steps):
            nodes = rows * self._patches
            self._frames.show(
                Frame(
                    self._sample,
                    step,
                    steps,
                    block,
                    float(moment.energy_R.sum()) / nodes,
                    {name: float(part.sum()) / nodes for name, part in moment.components.items()},
                    self.preview.blend(_pixels(network.codec.decode(x_ND, batch))),
                )
            )

    def _seeded(self, rows: int) -> list[DynamicsParams]:
        """Parameters with a seed for each window; equal noise would be visible as a pattern."""
        seen, seed = len(self.windows), self._params.seed
        return [replace(self._params, seed=seed + _APART * (seen + row)) for row in range(rows)]

    def reasons(self) -> RowReasons | None:
        """Mean of the reasons over all windows; None if none were requested."""
        return None if self._sum is None else self._sum.divide(len(self.windows))

    def convergence(self) -> dict[str, Any]:
        """Convergence of all windows together; energies are per patch, to compare images."""
        report = aggregate(self.windows)
        windows = report.pop("rows")
        patches = windows * self._patches
        for name in ("energy_initial", "energy_final", "energy_drop"):
            report[name] /= patches
        for part in report.get("components", {}).values():
            part |= {end: total / patches for end, total in part.items()}
        if "trace" in self._include:
            report["trace"] = self._mean.trace(self._patches)
        return {"windows": windows, **report}


def _pixels(images_RCSS: Tensor) -> np.ndarray:
    """(R, S, S, C)."""
    return images_RCSS.permute(0, 2, 3, 1).cpu().numpy()
