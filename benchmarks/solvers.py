"""Fewer steps: what momentum saves, and what stopping early would.

Shipped checkpoints: molecules made of fragments, parts of the neighbourhood in
examples/tolokers.json, digits half of whose patches are masked. The steps
of `solver: nesterov` are told that bring the median row as low, in the first block, as 16 and 64 of
Euler's, with which the models were trained, and a row's error after as many steps of either:
|y_t - y| / |y_0 - y|, y being its logits or pixels where REST steps of the same solver lead. Then,
for Euler's, the mean steps of two rules that stop a row early, each at the threshold where nine of
ten rows end with less than an error: the residual of its state (`tolerance`), or the change of its
output, |y_t - y_t-1| / |y_t|, which would take a readout at every step.

    python -m benchmarks.solvers
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file

from benchmarks.machine import describe
from benchmarks.soak import ATOMS
from models import checkpoint
from models.base import Architecture, DynamicsParams, Solver
from models.inputs.graph import Graph
from models.inputs.molecules import parse_smiles
from models.inputs.patches import MaskedImage

REPO = Path(__file__).parents[1]
ROWS, STEPS, REST, SHARE = 16, 96, 2048, 0.9
ERRORS, SEEN = (0.3, 0.1), (16, 64)
SOLVERS: tuple[Solver, Solver] = ("euler", "nesterov")


def _molecules(rng: np.random.Generator) -> list[Graph]:
    texts = ("".join(rng.choice(ATOMS, size=rng.integers(3, 12))) for _ in range(ROWS))
    return [parse_smiles(text).graph for text in texts]


def _neighbourhoods(rng: np.random.Generator) -> list[Graph]:
    graph = json.loads((REPO / "examples" / "tolokers.json").read_text())["graph"]
    names = {name: row for row, name in enumerate(graph["node_ids"])}
    x, edges = np.array(graph["x"], np.float32), np.array(graph["edge_index"])
    ends = np.vectorize(lambda end: names.get(end, end))(edges).astype(np.int64)
    found = list[Graph]()
    for _ in range(ROWS):
        kept = np.sort(rng.choice(len(x), 30, replace=False))
        place = np.full(len(x), -1)
        place[kept] = range(len(kept))
        inside = place[ends]
        found.append(Graph(x[kept], inside[:, (inside >= 0).all(0)]))
    return found


def _digits(rng: np.random.Generator) -> list[MaskedImage]:
    threes = load_file(REPO / "memories" / "mnist-3.safetensors")["items"][:ROWS, ..., None]
    hidden = [rng.permutation(49).reshape(7, 7) < 24 for _ in threes]
    return list(map(MaskedImage, threes, hidden))


CASES: dict[str, Callable[[np.random.Generator], Sequence[Any]]] = {
    "cdat-ames": _molecules,
    "et-ames": _molecules,
    "cdat-tolokers": _neighbourhoods,
    "et-tolokers": _neighbourhoods,
    "et-mnist": _digits,
}


class _Course:
    """Outputs and residuals (rows,) after each number of steps, and the outputs at rest."""

    def __init__(self, network: Architecture, items: Sequence[Any], solver: Solver) -> None:
        batch = network.pack(items)

        def after(steps: int) -> tuple[list[np.ndarray], np.ndarray]:
            output = network.infer(batch, [DynamicsParams(steps=steps, solver=solver)] * len(items))
            outputs, rows = output.logits.double().numpy(), np.asarray(batch.row_of_outputs)
            worst_R = np.max([solution.residual_R for solution in output.solutions], axis=0)
            self.energy_TR = np.array([each.energy_R for each in output.solutions[0].trace])
            return [outputs[rows == row].ravel() for row in range(len(items))], worst_R

        self.rest, _ = after(REST)
        told = [after(steps) for steps in range(STEPS + 1)]
        self.outputs = [y for y, _ in told]
        self.residual_TR = np.array([residual_R for _, residual_R in told])
        moved = _distance(self.outputs[0], self.rest)
        self.error_TR = np.array([_distance(y, self.rest) for y in self.outputs]) / moved
        pairs = pairwise([self.outputs[0], *self.outputs])
        changed = [_distance(old, new) / np.maximum(_distance(new), 1e-12) for old, new in pairs]
        self.changed_TR = np.array(changed)
        self.changed_TR[0] = self.residual_TR[0] = np.inf

    def error(self, steps: int) -> float:
        """Of the median row."""
        return float(np.median(self.error_TR[steps]))

    def steps_as_low(self, energy_R: np.ndarray) -> float:
        """Of the median row."""
        below_TR = self.energy_TR <= energy_R
        return float(np.median(np.where(below_TR.any(0), below_TR.argmax(0), np.inf)))

    def stopped(self, by_TR: np.ndarray, error: float) -> float:
        """Mean steps of rows that stop where `by` is so small that most have no larger error."""
        for threshold in np.geomspace(1, 1e-6, 121):
            below_TR = by_TR < threshold
            if not below_TR.any(0).all():
                break
            at_R = below_TR.argmax(0)
            if np.mean(self.error_TR[at_R, range(len(at_R))] <= error) >= SHARE:
                return float(at_R.mean())
        return np.inf


def _distance(some: list[np.ndarray], others: list[np.ndarray] | None = None) -> np.ndarray:
    pairs = zip(some, others or [np.zeros_like(y) for y in some], strict=True)
    return np.array([np.linalg.norm(y - z) for y, z in pairs])


def _table(*heads: str) -> None:
    print("| " + " | ".join(heads) + f" |\n|{'---|' * len(heads)}", flush=True)


def _row(*cells: str | float) -> None:
    told = (cell if isinstance(cell, str) else f"{cell:.2g}" for cell in cells)
    print("| " + " | ".join(told) + " |", flush=True)


def main() -> None:
    print(describe())
    lower = (f"{steps} steps, by momentum | error | by momentum" for steps in SEEN)
    _table("model", "trained steps", *" | ".join(lower).split(" | "), "rest, apart")
    plain = dict[str, _Course]()
    for name, items in CASES.items():
        network = checkpoint.load_checkpoint(REPO / "checkpoints" / name).network
        found = (_Course(network, items(np.random.default_rng(0)), solver) for solver in SOLVERS)
        euler, nesterov = found
        cells = list[float]()
        for steps in SEEN:
            cells += [nesterov.steps_as_low(euler.energy_TR[steps])]
            cells += [euler.error(steps), nesterov.error(steps)]
        apart = _distance(euler.rest, nesterov.rest) / _distance(euler.outputs[0], euler.rest)
        _row(name, network.blocks_in_order()[0].steps, *cells, np.median(apart))
        plain[name] = euler
    _table("model", *(f"{error}, by {rule}" for error in ERRORS for rule in ("state", "output")))
    for name, course in plain.items():
        rules = (course.residual_TR, course.changed_TR)
        stopped = [course.stopped(by_TR, error) for error in ERRORS for by_TR in rules]
        _row(name, *(steps if np.isfinite(steps) else f"> {STEPS}" for steps in stopped))


if __name__ == "__main__":
    main()
