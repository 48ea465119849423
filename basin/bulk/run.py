"""Run the stages one after the other, the parts of each on one process or on a Ray cluster."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, partial
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch

from basin.bulk.part_store import PartStore
from basin.bulk.plan import BulkError, Plan
from basin.bulk.stages import PartWorker, Stage, list_stages
from models import checkpoint
from models.dynamics import Motion, Solution, StopReason, TracePoint
from models.dynamics.stopping import has_risen
from models.layouts import PrecomputedAttention
from models.tasks.node_scorer import NodeScorer
from service.endpoints.common.convergence import ConvergenceReports
from service.endpoints.common.dynamics import as_trained

PartExecutor = Callable[[Callable[[int], None], Sequence[int]], None]
"""Calls a function for each of some parts, in any order, more than once if necessary."""

ShowProgress = Callable[[Sequence[Stage]], Iterable[Stage]]
"""Returns the stages, and shows the progress while they are iterated over."""


def score(
    folder: Path, plan: Plan, execute: PartExecutor, show_progress: ShowProgress = iter
) -> tuple[np.ndarray, dict[str, Any]]:
    """Run the stages that are not done yet of the plan that was started in `folder`.

    Returns:
        the logits (N,), and the convergence as in a response of `POST /anomaly/score`.

    Raises:
        BulkError: the checkpoint has changed, or the dynamics diverged.
    """
    loaded = plan.load_checkpoint()
    network = cast(NodeScorer, loaded.network)
    store = PartStore(folder, plan.bounds)
    stages = list(list_stages(network, plan.params))
    for stage in show_progress(stages):
        if not store.is_done(stage.name):
            remaining = [part for part in store.parts if not store.is_done(stage.name, part)]
            execute(partial(_run_stage, folder, plan, stage), remaining)
            store.mark_done(stage.name)
        store.delete(*stage.obsolete_arrays())
    # Workers that were believed dead may have written arrays again after they were deleted.
    store.delete("step-*", "**/*.tmp")
    has_control = any(cast(Motion, b.motion).has_control for b in network.blocks_in_order())
    solutions = _read_solutions(store, stages, has_control)
    logits_N = np.concatenate(list(store.read_all("logits")))
    # Logits alone do not show divergence: a norm can make values finite that are far too large.
    values = [solution.residual_R for solution in solutions]
    values += [point.energy_R for solution in solutions for point in solution.trace]
    if not (np.isfinite(logits_N).all() and np.isfinite(np.concatenate(values)).all()):
        raise BulkError("The dynamics diverged: lower step_size or steps.")
    reports = ConvergenceReports(solutions, as_trained=as_trained(network, plan.params))
    return logits_N, reports.row(0, len(logits_N), loaded.manifest.energy, (), plan.log_degree)


def _read_solutions(store: PartStore, stages: Sequence[Stage], has_control: bool) -> list[Solution]:
    """Return how each block converged, in the order of `Output.solutions`."""
    traces = defaultdict[int, list[np.ndarray]](list)  # by block; per step (chains, 3)
    for stage in stages:
        if stage.kind == "go":
            traces[stage.position[0]].append(np.sum(list(store.read_all(stage.trace_name)), 0))
    blocks = [np.stack(trace) for _, trace in sorted(traces.items())]
    chains = range(blocks[0].shape[1])
    return [_to_solution(block_TC3[:, c], has_control) for c in chains for block_TC3 in blocks]


def _to_solution(trace_T3: np.ndarray, has_control: bool) -> Solution:
    """Build a `Solution` of one row that has no states: only its convergence is reported. The work
    of control is not stored, so that of controlled dynamics it is not known whether V rose."""
    energy_T, speed_squared_T, size_squared_T = trace_T3.T
    steps = len(energy_T) - 1
    residual_T = np.sqrt(speed_squared_T / np.maximum(size_squared_T, 1e-24))
    residual = residual_T[steps - 1] if steps else speed_squared_T[0]
    eps = np.finfo(np.float32).eps
    rose = None
    if steps and not has_control:
        rose = any(
            has_risen(before, after, abs(before), eps) for before, after in pairwise(energy_T)
        )
    return Solution(
        torch.zeros(0),
        torch.zeros(0),
        PrecomputedAttention(0, None),
        np.array([steps]),
        np.array([residual]),
        (StopReason.STEP_LIMIT,),
        (rose,),
        [TracePoint(t, np.array([energy]), {}, None) for t, energy in enumerate(energy_T)],
    )


def run_in_process(run_part: Callable[[int], None], parts: Sequence[int]) -> None:
    """A `PartExecutor` that runs one part after the other in this process."""
    for part in parts:
        run_part(part)


@contextmanager
def ray_executor(address: str) -> Iterator[PartExecutor]:
    """Yield a `PartExecutor` that uses Ray Data on all machines of a cluster.

    Args:
        address: of the cluster, or `local` to start one on this machine alone.

    Raises:
        BulkError: Ray is not installed, there is no such cluster, or a part failed.
    """
    try:
        import ray
        from ray.exceptions import RayError
    except ModuleNotFoundError:
        raise BulkError("Ray is not installed. Run: pip install 'basin-server[ray]'") from None
    try:
        ray.init(address=address, log_to_driver=False, logging_level=logging.WARNING)
    except ConnectionError as error:
        raise BulkError(f"No Ray cluster at {address}: {error}") from error
    ray.data.DataContext.get_current().enable_progress_bars = False
    logging.getLogger("ray.data").setLevel(logging.WARNING)

    def execute(run_part: Callable[[int], None], parts: Sequence[int]) -> None:
        def run_row(row: dict[str, Any]) -> dict[str, Any]:
            run_part(row["part"])
            return row

        if not parts:
            return
        rows = [{"part": part} for part in parts]
        dataset = ray.data.from_items(rows, override_num_blocks=len(parts))
        try:
            dataset.map(run_row, num_cpus=1).materialize()
        except RayError as error:
            raise BulkError(f"A part failed: {error}") from error

    try:
        yield execute
    finally:
        ray.shutdown()


def _run_stage(folder: Path, plan: Plan, stage: Stage, part: int) -> None:
    PartWorker(folder, plan, _load_network(plan.model, plan.sha256), part).run(stage)


@cache
def _load_network(model: str, sha256: str) -> NodeScorer:
    """Load the network, once in each process.

    Raises:
        BulkError: the checkpoint on this machine is not that of the plan.
    """
    loaded = checkpoint.load_checkpoint(Path(model))
    if loaded.sha256 != sha256:
        raise BulkError(
            f"The checkpoint {model} of this machine differs from that of the run: copy the same "
            "checkpoint to all machines."
        )
    return cast(NodeScorer, loaded.network)
