"""Complete an image `count` times, and report the convergence of its windows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from models.base import DynamicsParams, StepControl
from models.dynamics import TracePoint
from models.inputs.image_files.data import ImageData
from models.inputs.inpainting.fill import Answers, FilledPixels, HoleFiller, Windows, fill_whole
from models.inputs.inpainting.laplace import DIRECT_PIXELS
from models.inputs.inpainting.plan import Plan, WholeImage
from models.interpret.reasons import RowReasons
from models.sampling import RunInterruptedError
from service.endpoints.common.convergence import MeanConvergence, aggregate
from service.endpoints.common.cost import count_reason_steps
from service.endpoints.common.dynamics import max_total_steps, resolved_dynamics
from service.endpoints.common.memory_schemas import WORK_PER_COST
from service.endpoints.common.reasons import ReasonCollector
from service.endpoints.complete.previews import EnergyDrop, Frame, Frames
from service.endpoints.complete.recall import COMPARISON_STEPS, RecalledMemory, fit_channels
from service.errors import make_problem
from service.observability.progress import Progress
from service.registry.handles import Completer

WHOLE = slice(None), slice(None)
"""The box of a whole image: all rows and columns."""
_OPAQUE = 255
COST_DIRECT, COST_ITERATED = 0.05, 0.36
"""Of a pixel that Laplace's equation is solved for, directly or by iteration: seconds over those of
a token's step in `et-photos`, on a core (`python -m benchmarks.prefill`)."""
_APART = 2_654_435_769
"""Distance of the seeds of successive windows: 2**32 divided by the golden ratio, whose multiples
stay apart in the 32 bits of a seed."""


@dataclass(frozen=True)
class CompleteInputs:
    """What to complete and how: `plan` has the windows of `image`, to be filled `count` times.

    Attributes:
        weights: how much of each hidden pixel is filled (n,), from 0 to 1; all of it if None.
        box: the part of the image to answer with, as slices of rows and columns.
    """

    model: Completer | RecalledMemory
    image: ImageData
    plan: Plan | WholeImage
    count: int
    params: DynamicsParams
    include: frozenset[str]
    weights: np.ndarray | None = None
    box: tuple[slice, slice] = (slice(None), slice(None))

    @property
    def patches(self) -> int:
        """Number of patches of a window."""
        return self.model.network.num_tokens

    @property
    def rows(self) -> int:
        """Number of windows to relax; a grayscale network gets each channel separately."""
        return self.count * self.plan.num_windows * self._planes

    @property
    def _planes(self) -> int:
        """Number of windows that the channels of one are completed in."""
        return max(self.image.pixels.shape[2] // self.model.config.channels, 1)

    @property
    def memory_work(self) -> int:
        """Numbers of stored patterns that are multiplied or compared; 0 with a model. The image is
        compared once for all samples."""
        if not isinstance(self.model, RecalledMemory):
            return 0
        steps = max_total_steps(self.model.network, self.params)
        return (self.rows * steps + self._planes * COMPARISON_STEPS) * self.model.numbers

    @property
    def cost(self) -> float:
        """Tokens x steps, for the queue and for quotas; with reasons and the prefill, in the same
        unit."""
        reasons = self.rows * count_reason_steps(self.include) * self.model.cost_per_step
        if isinstance(self.model, RecalledMemory):
            return self.memory_work / WORK_PER_COST + reasons
        steps = max_total_steps(self.model.network, self.params)
        return self.rows * steps * self.model.cost_per_step + reasons + self._prefill_cost

    @property
    def _prefill_cost(self) -> float:
        assert not isinstance(self.plan, WholeImage)
        cost = 0.0
        for level in self.plan.levels:
            pixels = np.count_nonzero(level.completed)
            per_pixel = COST_DIRECT if pixels <= DIRECT_PIXELS else COST_ITERATED
            # Without a smaller scale all completions begin alike, so it is solved once.
            cost += pixels * per_pixel * (self.count if level.needs_guide else 1)
        return cost


@dataclass(frozen=True)
class Completion:
    """A completed image, with the convergence of each window and of all together.

    Attributes:
        expected_error: the absolute error to expect of each pixel (H, W), from 0 to 1; None if it
            was not asked for.
    """

    image: ImageData
    expected_error: np.ndarray | None
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
    fill = _prepare_filling(task, control)
    completions = []
    for index in range(task.count):
        params = replace(task.params, seed=task.params.seed + index)
        filler = _Filler(task, params, progress, control, frames, index, room)
        filled = fill(filler)
        report = filler.windows, filler.convergence(), filler.reasons()
        image = write_pixels(task.image, filled, task.weights, task.box)
        error = write_error(task, filled) if "uncertainty" in task.include else None
        completions.append(Completion(image, error, *report))
    return Completed(completions, _report_dynamics(task))


def _report_dynamics(task: CompleteInputs) -> dict[str, Any]:
    """The dynamics that ran; from a memory with the beta of each channel completed by itself."""
    report = resolved_dynamics(task.model.network, task.params)
    if isinstance(task.model, RecalledMemory):
        rows = task.model.network.with_default_beta([task.params] * task.model.network.num_images)
        report["beta"] = [[row.beta for row in rows]]
    return report


def _prepare_filling(
    task: CompleteInputs, control: StepControl
) -> Callable[[_Filler], FilledPixels]:
    """What fills the holes once for each sample; what samples have in common is shared.

    Raises:
        RunInterruptedError: `control` gave a reason while the image was compared with a memory.
    """
    pixels, plan = task.image.pixels, task.plan
    if isinstance(task.model, RecalledMemory):
        task.model.network.compare(partial(require_running, control))
    if isinstance(plan, WholeImage):
        return partial(fill_whole, pixels, plan.hidden)
    holes = HoleFiller(pixels, plan)
    return lambda filler: holes.fill(filler, check=filler.check)


def require_running(control: StepControl) -> None:
    """
    Raises:
        RunInterruptedError: the control gave a reason.
    """
    if (why := control.stop_reason()) is not None:
        raise RunInterruptedError(why)


def write_pixels(
    image: ImageData,
    filled: FilledPixels,
    weights: np.ndarray | None = None,
    box: tuple[slice, slice] = (slice(None), slice(None)),
) -> ImageData:
    """A copy of what is in `box` of `image`, with its hidden pixels filled and opaque, and known
    pixels as they were."""
    pixels, places = image.pixels[box].copy(), _move_places(image, filled.places, box)
    flat, peak = pixels.reshape(-1, pixels.shape[2]), np.iinfo(pixels.dtype).max
    values = filled.values * peak
    alpha = None if image.alpha is None else image.alpha[box].copy()
    if weights is not None:
        share = weights
        if alpha is not None:  # of a pixel that was transparent, no colour is left to blend with
            before = alpha.ravel()[places] / np.float32(_OPAQUE)
            share = weights / (weights + (1 - weights) * before)
        values = flat[places] + share[:, None] * (values - flat[places])
    flat[places] = np.rint(np.clip(values, 0, peak)).astype(pixels.dtype)
    if alpha is not None:
        before = alpha.ravel()[places]
        filled_to = _OPAQUE if weights is None else before + weights * (_OPAQUE - before)
        alpha.ravel()[places] = np.rint(filled_to)
    return replace(image, pixels=pixels, alpha=alpha)


def _move_places(image: ImageData, places: np.ndarray, box: tuple[slice, slice]) -> np.ndarray:
    """Places of an image as places of a part of it that holds them all."""
    height, width = image.pixels.shape[:2]
    (top, _, _), (left, right, _) = box[0].indices(height), box[1].indices(width)
    rows, columns = np.divmod(places, width)
    return (rows - top) * (right - left) + columns - left


def write_error(task: CompleteInputs, filled: FilledPixels) -> np.ndarray | None:
    """The error to expect of each pixel in the box (H, W), 0 where pixels were known; where a
    pixel is blended, of the share that is filled."""
    if filled.expected_error is None:
        return None
    share = 1 if task.weights is None else task.weights
    error = np.zeros(task.image.pixels[task.box].shape[:2], np.float32)
    places = _move_places(task.image, filled.places, task.box)
    error.ravel()[places] = share * np.clip(filled.expected_error, 0, 1)
    return error


class _Filler:
    """Completes windows by the network of `task`, and collects their convergence."""

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
        self._task, self._model, self._include = task, task.model, task.include
        self._frames, self._sample = frames, sample
        self._params, self._progress, self._control = params, progress, control
        self._patches = task.patches
        room = None if room is None else room // task.count
        self._gathering = ReasonCollector(task.include, control, room, pairs=False, averaged=True)
        self._sum: RowReasons | None = None
        self._mean, self._energy = MeanConvergence(), 0.0
        self._energy_drop = EnergyDrop()
        self.windows: list[dict[str, Any]] = []

    def __call__(self, windows: Windows, preview: Callable[[Answers], FilledPixels]) -> Answers:
        network, energy = self._model.network, self._model.energy_reference
        pixels, hidden = fit_channels(windows, self._model.config.channels)
        batch = network.pack_windows(pixels, hidden)
        watch = None if self._frames is None else partial(self._watch, batch, preview)
        params = self._seeded(batch.rows)
        infer = partial(network.infer, batch, params, self._control, watch)
        output = self._gathering.run(network, params, infer)
        self.check()
        courses, parts = self._gathering.courses(output), self._include - {"trace"}
        for each in self._gathering.take(batch.rows):
            self._sum = each if self._sum is None else self._sum.add(each)
        if "trace" in self._include:
            self._mean.add(courses, batch.rows)
        shares = batch.hidden_share_R.tolist()
        self.windows += [
            courses.row(row, self._patches, energy, parts, shares[row]) for row in range(batch.rows)
        ]
        self._energy += sum(window["energy_final"] for window in self.windows[-batch.rows :])
        self._progress.energy = self._energy / (len(self.windows) * self._patches)
        self._progress.step += batch.rows
        return self._read(output.logits)

    def check(self) -> None:
        """
        Raises:
            RunInterruptedError: the control gave a reason.
        """
        require_running(self._control)

    def _read(self, outputs: Tensor) -> Answers:
        """
        Raises:
            Problem: `diverged`.
        """
        pixels, error = self._model.network.read_outputs(outputs)
        if not np.isfinite(pixels).all():
            rule = (
                "The dynamics diverged: a pixel became infinite or NaN. Lower `step_size`, "
                "`steps` or `noise`."
            )
            raise make_problem("diverged", "/dynamics", "diverged", rule)
        image, network = self._task.image.pixels.shape[2], self._model.config.channels
        if image < network:
            pixels = pixels.mean(axis=-1, keepdims=True)
        elif image > network:
            pixels = np.concatenate(np.split(pixels, image), axis=-1)
            error = None if error is None else np.mean(np.split(error, image), axis=0)
        return Answers(pixels, error)

    def _watch(
        self,
        batch: Any,
        preview: Callable[[Answers], FilledPixels],
        block: int,
        x_ND: Tensor,
        moment: TracePoint,
    ) -> None:
        """Emit a preview frame when one is due."""
        if self._frames is None:
            return
        self._energy_drop.observe(moment)
        network, rows = self._model.network, batch.rows
        blocks = network.blocks_in_order()
        each = blocks[0].steps if self._params.steps is None else self._params.steps
        done, total = self._progress.step, self._progress.steps or 0
        step = done * len(blocks) * each + rows * (block * each + moment.step)
        steps = total * len(blocks) * each
        if self._frames.due(step, steps):
            nodes = rows * self._patches
            first = len(self.windows)
            all_nodes = self._task.rows // self._task.count * self._patches
            answers = self._read(torch.nan_to_num(network.decode(x_ND, batch)))
            self._frames.show(
                Frame(
                    self._sample,
                    step,
                    steps,
                    block,
                    range(first, first + rows),
                    self._energy_drop.total / all_nodes,
                    float(moment.energy_R.sum()) / nodes,
                    {name: float(part.sum()) / nodes for name, part in moment.components.items()},
                    write_pixels(
                        self._task.image, preview(answers), self._task.weights, self._task.box
                    ),
                )
            )

    def _seeded(self, rows: int) -> list[DynamicsParams]:
        """Parameters with a seed for each window; equal noise would be visible as a pattern."""
        seen, seed = len(self.windows), self._params.seed
        seeds = [seed + _APART * (seen + row) for row in range(rows)]
        params = [replace(self._params, seed=seed) for seed in seeds]
        if isinstance(self._model, RecalledMemory):
            return self._model.network.with_default_beta(params)
        return params

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
