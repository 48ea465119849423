"""Do the passes one after the other, the parts of each wherever there is room."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch

from basin.bulk.batches import Part, Pass, passes
from basin.bulk.part_store import PartStore
from basin.bulk.plan import BulkError, Plan
from models import checkpoint
from models.dynamics import Solution, StopReason, TracePoint
from models.layouts import PrecomputedAttention
from models.tasks.node_scorer import NodeScorer
from service.endpoints.common.convergence import ConvergenceReports
from service.endpoints.common.dynamics import as_trained

Over = Callable[[Callable[[int], None], Sequence[int]], None]
"""Does something for each of some parts, in any order, twice if need be."""

Track = Callable[[Sequence[Pass]], Iterable[Pass]]


def score(
    folder: Path, plan: Plan, over: Over, track: Track = lambda every: every
) -> tuple[np.ndarray, dict[str, Any]]:
    """Do what is left of the plan that was begun in `folder`.

    Returns:
        the logit of each node in order, and how the energy converged, as `POST /anomaly/score`
        tells it.

    Raises:
        BulkError: the checkpoint has changed, or the dynamics diverged.
    """
    loaded = plan.checkpoint()
    network, work = cast(NodeScorer, loaded.network), PartStore(folder, plan.bounds)
    every = list(passes(network, plan.knobs))
    for one in track(every):
        if not work.marked(one.name):
            left = [part for part in work.parts if not work.marked(one.name, part)]
            over(partial(_do, folder, plan, one), left)
            work.mark(one.name)
        work.drop(*one.outdated())
    work.drop("step-*", "**/*.tmp")  # of those who were thought dead
    solutions, logits_N = _solutions(work, every), np.concatenate(list(work.every("logits")))
    told = [solution.residual_R for solution in solutions]
    told += [moment.energy_R for solution in solutions for moment in solution.trace]
    if not (np.isfinite(logits_N).all() and np.isfinite(np.concatenate(told)).all()):
        raise BulkError("the dynamics diverged: lower step_size or steps")
    courses = ConvergenceReports(solutions, as_trained=as_trained(network, plan.knobs))
    return logits_N, courses.row(0, len(logits_N), loaded.manifest.energy, ())


def _solutions(work: PartStore, every: Sequence[Pass]) -> list[Solution]:
    """How each block came to rest, in the order of `Output.solutions`."""
    moments = defaultdict[int, list[np.ndarray]](list)  # of a block, each (relations, 3)
    for one in every:
        if one.kind == "go":
            moments[one.at[0]].append(np.sum(list(work.every(one.course)), 0))
    blocks = [np.stack(each) for _, each in sorted(moments.items())]
    relations = range(blocks[0].shape[1])
    return [_solution(block_TR3[:, r]) for r in relations for block_TR3 in blocks]


def _solution(course_T3: np.ndarray) -> Solution:
    energy_T, speed_T, size_T = course_T3.T
    steps, nothing = len(energy_T) - 1, torch.zeros(0)
    residual_T = np.sqrt(speed_T / np.maximum(size_T, 1e-24))
    residual = residual_T[steps - 1] if steps else speed_T[0]
    return Solution(
        nothing,
        nothing,
        PrecomputedAttention(0, None),
        np.array([steps]),
        np.array([residual]),
        (StopReason.STEP_LIMIT,),
        [TracePoint(t, np.array([energy]), {}, None) for t, energy in enumerate(energy_T)],
    )


def here(do: Callable[[int], None], parts: Sequence[int]) -> None:
    """In this process."""
    for part in parts:
        do(part)


@contextmanager
def over_ray(address: str) -> Iterator[Over]:
    """Through Ray Data, on every machine of a cluster; `local` is one of this machine alone.

    Raises:
        BulkError: there is no Ray, or no such cluster; or what it was given failed.
    """
    try:
        import ray
        from ray.exceptions import RayError
    except ModuleNotFoundError:
        raise BulkError("Ray is missing: pip install 'basin[ray]'") from None
    try:
        ray.init(address=address, log_to_driver=False, logging_level=logging.WARNING)
    except ConnectionError as error:
        raise BulkError(f"{address}: {error}") from error
    ray.data.DataContext.get_current().enable_progress_bars = False
    logging.getLogger("ray.data").setLevel(logging.WARNING)

    def over(do: Callable[[int], None], parts: Sequence[int]) -> None:
        def one(row: dict[str, Any]) -> dict[str, Any]:
            do(row["part"])
            return row

        if not parts:
            return
        rows = ray.data.from_items([{"part": p} for p in parts], override_num_blocks=len(parts))
        try:
            rows.map(one, num_cpus=1).materialize()
        except RayError as error:
            raise BulkError(f"a part failed: {error}") from error

    try:
        yield over
    finally:
        ray.shutdown()


def _do(folder: Path, plan: Plan, one: Pass, part: int) -> None:
    Part(folder, plan, _network(plan.model, plan.sha256), part).do(one)


@cache
def _network(model: str, sha256: str) -> NodeScorer:
    """Read once by each process.

    Raises:
        BulkError: it is another one here.
    """
    found = checkpoint.load(Path(model))
    if found.sha256 != sha256:
        raise BulkError(f"{model} is another checkpoint here")
    return cast(NodeScorer, found.network)
