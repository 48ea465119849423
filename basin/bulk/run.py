"""Do the passes one after the other, the parts of each wherever there is room."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch

from basin.bulk.passes import Part, Pass, passes
from basin.bulk.plan import BulkError, Plan
from basin.bulk.work import Work
from models.dynamics import Moment, Solution, StopReason
from models.layouts import Known
from models.node_scorer import NodeScorer
from service.engine.convergence import Courses
from service.engine.resolving import as_trained

Over = Callable[[Callable[[int], None], Sequence[int]], None]
"""Does something for each of some parts, in any order, twice if need be."""

Track = Callable[[Sequence[Pass]], Iterable[Pass]]


def score(
    folder: Path, over: Over, track: Track = lambda every: every
) -> tuple[np.ndarray, dict[str, Any]]:
    """Do what is left of the plan in `folder`.

    Returns:
        the logit of each node in order, and how the energy converged, as `POST /anomaly/score`
        tells it.

    Raises:
        BulkError: the checkpoint has changed, or no finite score is left.
    """
    plan = Plan.read(folder)
    loaded = plan.checkpoint()
    network, work = cast(NodeScorer, loaded.network), Work(folder, plan.bounds)
    every = list(passes(network, plan.knobs))
    for one in track(every):
        if not work.marked(one.name):
            left = [part for part in work.parts if not work.marked(one.name, part)]
            over(partial(_do, str(folder), one), left)
            work.mark(one.name)
        work.drop(*one.outdated())
    logits_N = np.concatenate(list(work.every("logits")))
    if not np.isfinite(logits_N).all():
        raise BulkError("the dynamics diverged: lower step_size or steps")
    courses = Courses(_solutions(work, every), as_trained=as_trained(network, plan.knobs))
    return logits_N, courses.row(0, len(logits_N), loaded.manifest.energy, ())


def _solutions(work: Work, every: Sequence[Pass]) -> list[Solution]:
    """How each block came to rest, in the order of `Output.solutions`."""
    moments = defaultdict[int, list[np.ndarray]](list)  # of a block, each (relations, 3)
    for one in every:
        if one.kind == "go":
            moments[one.at[0]].append(np.sum(list(work.every(one.course)), 0))
    blocks = [np.stack(each) for _, each in sorted(moments.items())]
    relations = range(blocks[0].shape[1])
    return [_solution(block_TR3[:, r]) for r in relations for block_TR3 in blocks]


def _solution(course_T3: np.ndarray) -> Solution:
    energy_T, speed_T, size_T = torch.from_numpy(course_T3).T
    steps, nothing = len(energy_T) - 1, torch.zeros(0)
    residual = (speed_T / size_T.clamp(min=1e-24)).sqrt()[steps - 1] if steps else speed_T[0]
    return Solution(
        nothing,
        Known(0, None),
        torch.tensor([steps]),
        residual[None],
        (StopReason.STEP_LIMIT,),
        [Moment(t, energy[None], {}, None) for t, energy in enumerate(energy_T)],
    )


def here(do: Callable[[int], None], parts: Sequence[int]) -> None:
    """In this process."""
    for part in parts:
        do(part)


@contextmanager
def over_ray(address: str) -> Iterator[Over]:
    """Through Ray Data, on every machine of a cluster; `local` is one of this machine alone."""
    import ray

    ray.init(address=address, log_to_driver=False)
    ray.data.DataContext.get_current().enable_progress_bars = False

    def over(do: Callable[[int], None], parts: Sequence[int]) -> None:
        def one(row: dict[str, Any]) -> dict[str, Any]:
            do(row["part"])
            return row

        if parts:
            rows = ray.data.from_items([{"part": p} for p in parts], override_num_blocks=len(parts))
            rows.map(one, num_cpus=1).materialize()

    try:
        yield over
    finally:
        ray.shutdown()


def _do(folder: str, one: Pass, part: int) -> None:
    plan, network = _opened(folder)
    Part(Path(folder), plan, network, part).do(one)


@cache
def _opened(folder: str) -> tuple[Plan, NodeScorer]:
    """Read once by each process."""
    plan = Plan.read(Path(folder))
    return plan, cast(NodeScorer, plan.checkpoint().network)
