"""Sample a memory, and say how far the chains can be trusted."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch

from models.base import StepControl
from models.dynamics import StopReason
from models.sampling import (
    NoInflectionError,
    Regularity,
    RunInterruptedError,
    SampleResult,
    TooManyHeadsError,
    compute_similarities,
    draw_samples,
    find_beta_star,
    find_beta_star_log,
    init_states,
    null_energy,
    null_novelty,
    snr,
)
from models.sampling.rhat import MIN_DRAWS
from service.endpoints.sample.parse import SampleInputs
from service.errors import make_problem
from service.observability.progress import Progress


@dataclass(frozen=True)
class Batch:
    """Samples at one temperature, as items of the memory, and their diagnostics."""

    items: np.ndarray
    diagnostics: dict[str, Any]


@dataclass(frozen=True)
class Sampled:
    """One batch per beta, and where attention to the memory turns."""

    batches: list[Batch]
    inflection: dict[str, Any]
    dynamics: dict[str, Any]


def sample(task: SampleInputs, progress: Progress, control: StepControl) -> Sampled:
    """Run the chains of `task`; `control` ends them before their next step.

    Raises:
        Problem: beta* was asked for and there is none, or the memory has fewer axes than heads.
        RunInterruptedError: `control` gave a reason.
    """
    patterns = task.memory.patterns_KD
    seen = compute_similarities(patterns)

    def raise_if_stopped() -> None:
        if (why := control.stop_reason()) is not None:
            raise RunInterruptedError(why)

    try:
        stars = (find_beta_star(seen, raise_if_stopped), find_beta_star_log(seen, raise_if_stopped))
    except NoInflectionError:
        stars = (None, None)
    if task.betas is not None:
        betas = task.betas
    elif stars[0] is not None:
        betas = (stars[0],)
    else:
        rule = "Attention to this memory has no inflection, so beta* does not exist. Set `beta`."
        raise make_problem("invalid-request", "/beta", "no_inflection", rule)
    progress.steps = len(betas) * task.heads * task.schedule.num_steps

    def count_step() -> StopReason | None:
        progress.step += 1
        progress.relaxation_steps += 1
        return control.stop_reason()

    def report_energy(energy: float) -> None:
        progress.energy = energy

    batches = []
    for beta in betas:
        start = task.start or init_states(patterns, task.chains, task.seed, task.known, beta)
        try:
            drawn = draw_samples(
                patterns,
                start,
                beta,
                task.alpha,
                task.schedule,
                task.count,
                method=task.method,
                heads=task.heads,
                clamped=task.known,
                seed=task.seed,
                interrupt=count_step,
                on_energy=report_energy,
            )
        except TooManyHeadsError as error:  # the memory's rank is not known before
            raise make_problem("invalid-request", "/heads", "out_of_range", str(error)) from None
        raise_if_stopped()
        items = task.memory.decode(drawn.samples_SD, beta, task.known)
        batches.append(Batch(items, _diagnostics(task, beta, drawn)))
    inflection = {
        "beta_star": stars[0],
        "beta_star_log": stars[1],
        "convex_below": Regularity.from_patterns(patterns, 1.0).convex_below,
    }
    return Sampled(batches, inflection, _resolved(task, betas))


def _diagnostics(task: SampleInputs, beta: float, drawn: SampleResult) -> dict[str, Any]:
    accepted = drawn.acceptance_rate_C
    patterns, free = task.memory.patterns_KD, task.memory.dim
    if task.known is not None:
        unknown = torch.from_numpy(~task.known.mask_D)
        patterns, free = patterns[:, unknown], int(unknown.sum())
    # Closed forms hold for one Gaussian per pattern of unit length in all of the space.
    plain = task.known is None and task.heads == 1
    return {
        "beta": beta,
        **asdict(drawn.metrics),
        "snr": snr(task.alpha, beta, free),
        "lipschitz": Regularity.from_patterns(patterns, beta).lipschitz,
        "acceptance": None if accepted is None else float(accepted.mean()),
        "chain_energy": drawn.mean_energy_C.tolist(),
        "chain_acceptance": None if accepted is None else accepted.tolist(),
        "r_hat": {"energy": drawn.diagnostics.r_hat_energy, "state": drawn.diagnostics.r_hat_state},
        "ess": drawn.diagnostics.ess_energy,
        "notes": _notes(task, drawn),
        "null": {
            **asdict(drawn.null_metrics),
            "novelty_closed_form": null_novelty(beta, free) if plain else None,
            "energy_closed_form": null_energy(beta, free) if plain else None,
        },
    }


def _notes(task: SampleInputs, drawn: SampleResult) -> list[str]:
    """Say why figures are null, and what to change."""
    chains = drawn.diagnostics
    notes = []
    if chains.num_draws < MIN_DRAWS:
        notes.append(
            f"r_hat and ess are null: each chain has {chains.num_draws} recorded steps after "
            f"burn_in, and {MIN_DRAWS} are needed. Raise steps, or lower burn_in or thin."
        )
    if chains.num_frozen and task.method == "mala":
        notes.append(
            f"{chains.num_frozen} of {task.chains} chains stand still: no proposal was accepted "
            "after burn_in, so that their samples are copies of one state. Lower step_size, which "
            f"is {task.alpha:.3g}, or beta."
        )
    return notes


def _resolved(task: SampleInputs, betas: tuple[float, ...]) -> dict[str, Any]:
    return {
        "num_samples": task.count,
        "chains": task.chains,
        "steps": task.schedule.num_steps,
        "burn_in": task.schedule.burn_in,
        "thin": task.schedule.thin,
        "step_size": task.alpha,
        "method": task.method,
        "heads": task.heads,
        "seed": task.seed,
        "beta": list(betas),
        "clamped": 0 if task.known is None else int(task.known.mask_D.sum()),
    }
