"""How the rows of a batch moved, and where they stopped."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from models.dynamics import Solution, StopReason
from models.manifest import EnergyReference

_WORST_FIRST = (
    StopReason.DIVERGED,
    StopReason.CANCELLED,
    StopReason.DEADLINE,
    StopReason.STEP_LIMIT,
    StopReason.CONVERGED,
)
_TOTALS = ("energy_initial", "energy_final", "energy_drop", "steps")


class ConvergenceReports:
    """What the blocks did, step by step, out of torch: `row` tells it of one row.

    A row that stopped early has moments of its own, the first of the batch's. `resonance` tells of
    a row what each head made of it. Unless it moved `as_trained` its energy says nothing of whether
    it is out of distribution.
    """

    def __init__(
        self,
        solutions: Sequence[Solution],
        resonance: Sequence[list[dict[str, Any]]] | None = None,
        *,
        as_trained: bool = True,
    ) -> None:
        self._as_trained = as_trained
        self._blocks = [_Course(solution) for solution in solutions]
        self._resonance = resonance

    def row(
        self,
        row: int,
        num_nodes: int,
        energy: EnergyReference | None,
        include: Collection[str],
        given: float | None = None,
    ) -> dict[str, Any]:
        """Energies and steps summed over the blocks, the largest residual, the worst reason.

        `given` is what energies are compared by: the share hidden, or the mean log degree.
        """
        blocks = self._blocks
        last = [int(block.steps_R[row]) for block in blocks]
        ends = list(zip(blocks, last, strict=True))  # each block and the index of its last step
        initial = sum(float(block.trace[0].energy_R[row]) for block in blocks)
        final = sum(float(block.trace[end].energy_R[row]) for block, end in ends)
        per_node = final / num_nodes
        percentile = outside = None
        if energy is not None and math.isfinite(per_node):
            percentile = energy.percentile(per_node, given)
            outside = energy.out_of_distribution(percentile)
        report: dict[str, Any] = {
            "energy_initial": initial,
            "energy_final": final,
            "energy_drop": initial - final,
            "steps": sum(last),
            "residual": max((float(b.residual_R[row]) for b, end in ends if end), default=None),
            "stop_reason": worst(block.reasons[row] for block in blocks),
            "energy_rose": _any_known(block.energy_rose[row] for block in blocks),
            "energy_percentile": percentile,
            "out_of_distribution": outside if self._as_trained else None,
        }
        if "components" in include:
            names = dict.fromkeys(name for block in blocks for name in block.names)
            report["components"] = {
                name: {
                    "initial": sum(float(b.trace[0].components[name][row]) for b in blocks),
                    "final": sum(float(b.trace[end].components[name][row]) for b, end in ends),
                }
                for name in names
            }
        if "resonance" in include:
            report["resonance"] = self._resonance[row] if self._resonance else []
        if "trace" in include:
            report["trace"] = [
                {"block": index, **block.moment(step, row)}
                for index, block in enumerate(blocks)
                for step in range(last[index] + 1)
            ]
        return report

    def totals(self) -> list[dict[str, np.ndarray]]:
        """Energy and its parts of all rows together, of each block at each of its moments."""
        return [block.totals() for block in self._blocks]


class MeanConvergence:
    """Many rows as one: their mean at each moment. A row that stopped stays as it is."""

    def __init__(self) -> None:
        self._rows, self._blocks = 0, list[dict[str, np.ndarray]]()

    def add(self, courses: ConvergenceReports, rows: int) -> None:
        """Count the `rows` of `courses`."""
        totals = courses.totals()
        if self._blocks:
            totals = [
                {name: _added(old[name], new[name]) for name in new}
                for old, new in zip(self._blocks, totals, strict=True)
            ]
        self._blocks = totals
        self._rows += rows

    def trace(self, num_nodes: int) -> list[dict[str, Any]]:
        """The moments of each block in turn, per node."""
        count = self._rows * num_nodes
        return [
            {
                "block": index,
                "step": step,
                **{name: float(total[step]) / count for name, total in block.items()},
            }
            for index, block in enumerate(self._blocks)
            for step in range(len(block["energy"]))
        ]


def aggregate(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What the rows of one request come to together.

    Energies and steps are totals, the residual is the largest, the reason the worst, the percentile
    the mean of those there are, and `energy_rose` and `out_of_distribution` their shares of those
    that are judged.
    """
    residuals = [row["residual"] for row in rows if row["residual"] is not None]
    percentiles = [p for row in rows if (p := row["energy_percentile"]) is not None]
    stops = Counter(row["stop_reason"].value for row in rows)
    report: dict[str, Any] = {
        "rows": len(rows),
        **{name: sum(row[name] for row in rows) for name in _TOTALS},
        "residual": max(residuals, default=None),
        "stop_reason": worst(row["stop_reason"] for row in rows),
        "stops": dict(stops),
        "energy_rose": _share(row["energy_rose"] for row in rows),
        "energy_percentile": float(np.mean(percentiles)) if percentiles else None,
        "out_of_distribution": _share(row["out_of_distribution"] for row in rows),
    }
    if "components" in rows[0]:
        report["components"] = {
            name: {end: sum(row["components"][name][end] for row in rows) for end in ends}
            for name, ends in rows[0]["components"].items()
        }
    if "resonance" in rows[0]:
        heads = zip(*(row["resonance"] for row in rows), strict=True)
        report["resonance"] = [_mean_head(list(head_rows)) for head_rows in heads]
    return report


def _any_known(flags: Iterable[bool | None]) -> bool | None:
    """Is any of those true that are not None? None if all are."""
    known = [flag for flag in flags if flag is not None]
    return any(known) if known else None


def _share(flags: Iterable[bool | None]) -> float | None:
    """How many are true of those that are not None; None if all are."""
    known = [flag for flag in flags if flag is not None]
    return float(np.mean(known)) if known else None


def _mean_head(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """One head over many rows that have any pairs."""
    rows_with_pairs = [row for row in rows if row["mean"] is not None]
    mean = {
        k: float(np.mean([r[k] for r in rows_with_pairs])) if rows_with_pairs else None
        for k in ("crossing", "mean")
    }
    return {name: rows[0][name] for name in ("attention", "kind", "head")} | mean


def worst(reasons: Iterable[StopReason]) -> StopReason:
    """The one of `reasons` that says least good of the answer."""
    present = set(reasons)
    return next(reason for reason in _WORST_FIRST if reason in present)


class _Course:
    """One block, of which the rows were looked at in each moment of the trace."""

    def __init__(self, solution: Solution) -> None:
        self.trace = solution.trace
        self.names = list(self.trace[0].components)
        self.steps_R = solution.steps_R
        self.residual_R = solution.residual_R
        self.reasons = solution.stop_reasons
        self.energy_rose = solution.energy_rose

    def totals(self) -> dict[str, np.ndarray]:
        """Of all rows, at each moment."""
        named: dict[str, list[Any]] = {"energy": [moment.energy_R for moment in self.trace]}
        named |= {name: [moment.components[name] for moment in self.trace] for name in self.names}
        if self.trace[0].storage_R is not None:
            named["storage"] = [moment.storage_R for moment in self.trace]
        return {name: np.stack(part).sum(1, dtype=np.float64) for name, part in named.items()}

    def moment(self, at: int, row: int) -> dict[str, Any]:
        moment = self.trace[at]
        entry: dict[str, Any] = {
            "step": moment.step,
            "energy": float(moment.energy_R[row]),
            **{name: float(moment.components[name][row]) for name in self.names},
        }
        if moment.storage_R is not None:
            entry["storage"] = float(moment.storage_R[row])
        return entry


def _added(one_T: np.ndarray, other_T: np.ndarray) -> np.ndarray:
    """Their sum, the shorter one going on as it ended."""
    length = max(len(one_T), len(other_T))
    one_T, other_T = (np.pad(part, (0, length - len(part)), "edge") for part in (one_T, other_T))
    return one_T + other_T
