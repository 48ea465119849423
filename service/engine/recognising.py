"""Look at pictures one by one, and say how each came to rest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from models.contract import Interrupt, Knobs
from models.pictures import Picture
from models.sampling import Interrupted
from service.engine.convergence import Courses, heard_by
from service.engine.scoring import as_trained, resolved
from service.errors import refuse
from service.jobs import Progress
from service.served import Recogniser


@dataclass(frozen=True)
class Recognised:
    """Calibrated probabilities (R, labels) and the convergence of each picture."""

    probabilities_RC: np.ndarray
    convergences: list[dict[str, Any]]
    dynamics: dict[str, Any]


def recognise(
    model: Recogniser,
    pictures: Sequence[Picture],
    knobs: Knobs,
    include: frozenset[str],
    progress: Progress,
    interrupt: Interrupt,
) -> Recognised:
    """Show `pictures` to `model`; `interrupt` ends that before the next step.

    It sees one at a time, with the noise of the same seed: so an answer is, bit for bit, that of
    its picture alone, whose patches are the pool of its workspace.

    Raises:
        Problem: `diverged`.
        Interrupted: `interrupt` gave a reason.
    """
    network, energy = model.network, model.manifest.energy
    logits, convergences, total = [], [], 0.0
    progress.steps, judged = len(pictures), as_trained(network, knobs)
    for picture in pictures:
        with heard_by(include) as heard:
            output = network.infer(network.pack([picture]), [knobs], interrupt)
        if (why := interrupt()) is not None:
            raise Interrupted(why)
        if not output.logits.isfinite().all():
            rule = "no finite answer left; lower step_size, steps or noise"
            raise refuse("diverged", "/dynamics", "diverged", rule)
        logits.append(output.logits[0].cpu().numpy())
        courses = Courses(output.solutions, heard, as_trained=judged)
        told = courses.row(0, network.config.tokens, energy, include)
        convergences.append(told)
        total += told["energy_final"]
        progress.step = len(convergences)
        progress.energy = total / progress.step
    [probabilities] = model.probabilities(np.stack(logits))
    dynamics = resolved(network, knobs)
    return Recognised(probabilities, convergences, dynamics)
