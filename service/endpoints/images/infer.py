"""Look at images one by one, and say how each went."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from models.base import DynamicsParams, StepControl
from models.inputs.images import ImageInput
from models.interpret.reasons import RowReasons
from models.sampling import RunInterruptedError
from service.endpoints.common.dynamics import resolved_dynamics
from service.endpoints.common.reasons import ReasonCollector
from service.errors import make_problem
from service.observability.progress import Progress
from service.registry.handles import ImageModel


@dataclass(frozen=True)
class Recognised:
    """Calibrated probabilities (R, labels) and the convergence of each image."""

    probabilities_RC: np.ndarray
    convergences: list[dict[str, Any]]
    dynamics: dict[str, Any]
    reasons: list[RowReasons]


def recognise(
    model: ImageModel,
    images: Sequence[ImageInput],
    params: DynamicsParams,
    include: frozenset[str],
    progress: Progress,
    control: StepControl,
    room: int | None = None,
) -> Recognised:
    """Show `images` to `model`; `control` ends that before the next step.

    It sees one at a time, with the noise of the same seed: so an answer is, bit for bit, that of
    its image alone, whose patches are the pool of its workspace.

    Args:
        room: bytes that reasons may have as tensors, if they are wanted as such.

    Raises:
        Problem: `diverged`, or there is no room.
        RunInterruptedError: `control` gave a reason.
    """
    network, energy = model.network, model.manifest.energy
    logits, convergences, total = [], [], 0.0
    progress.steps = len(images)
    gathering, reasons = ReasonCollector(include, control, room), list[RowReasons]()
    for image in images:
        batch = network.pack([image])
        infer = partial(network.infer, batch, [params], control)
        output = gathering.run(network, [params], infer)
        if (why := control.stop_reason()) is not None:
            raise RunInterruptedError(why)
        if not output.logits.isfinite().all():
            rule = (
                "The dynamics diverged: no finite answer is left. Lower `step_size`, `steps` or "
                "`noise`."
            )
            raise make_problem("diverged", "/dynamics", "diverged", rule)
        logits.append(output.logits[0].cpu().numpy())
        reasons += gathering.take(1)
        report = gathering.courses(output).row(0, network.config.num_tokens, energy, include)
        convergences.append(report)
        total += report["energy_final"]
        progress.step = len(convergences)
        progress.energy = total / progress.step
    [probabilities] = model.probabilities(np.stack(logits))
    dynamics = resolved_dynamics(network, params)
    return Recognised(probabilities, convergences, dynamics, reasons)
