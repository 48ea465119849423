"""The tables of docs/out-of-distribution.md: every checkpoint, in one resumable command."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from models.checkpoint import Checkpoint
from training.common.hardware import format_machines
from training.common.results_log import ResultsLog, config_hash
from training.studies.ood.rows import SAME_ROWS
from training.studies.ood.scores import Mahalanobis, RowOutputs, auroc, evaluate_rows, score_rows
from training.studies.ood.sources import load_study_rows

DETECTORS = {
    "energy": "energy",
    "energy_two_sided": "energy, two-sided",
    "max_softmax": "max-softmax",
    "mahalanobis": "Mahalanobis",
}
_PARTS = ("train", "val", "test")
_CENTRAL = (90, 95, 98)  # percent; what the rule might have been


def run_study(
    checkpoints: Iterable[Checkpoint],
    out: Path,
    data: Path | None,
    most: int,
    fitted: int,
) -> list[dict[str, Any]]:
    """A row for each checkpoint; those of the same weights and numbers of rows in `out` are kept.

    Raises:
        FileNotFoundError: saying which data are not here.
        ValueError: the data are not those of a checkpoint, or it has no other datasets.
    """
    ledger = ResultsLog(out)
    rows = []
    for one in checkpoints:
        split = str(one.manifest.training["split"])
        key = one.manifest.name, split, config_hash([one.sha256, most, fitted])
        make = partial(_row, one, data, most, fitted)
        rows.append(ledger.get_or_compute(key, make))
    return rows


def _row(checkpoint: Checkpoint, data: Path | None, most: int, fitted: int) -> dict[str, Any]:
    source, reference = load_study_rows(checkpoint, data, most, fitted), checkpoint.manifest.energy
    own = {part: evaluate_rows(checkpoint, source.own[part]) for part in _PARTS}
    labels = source.own["train"].labels
    assert labels is not None
    mahalanobis = Mahalanobis(own["train"].head_input_RK, labels)
    inside = score_rows(own["test"], mahalanobis)

    def flagged(seen: RowOutputs) -> dict[str, Any]:
        told = [reference.out_of_distribution(p) for p in seen.percentile_R]
        return {"rows": len(told), "flagged": float(np.mean(told))}

    others = {}
    for name, rows in source.others.items():
        seen = evaluate_rows(checkpoint, rows)
        outside = score_rows(seen, mahalanobis)
        others[name] = flagged(seen) | {d: auroc(inside[d], outside[d]) for d in outside}
    return {
        "dataset": str(checkpoint.manifest.training["dataset"]),
        "own": {
            part: flagged(seen) | {f"outside_{c}": _outside(seen, c) for c in _CENTRAL}
            for part, seen in own.items()
        },
        "others": others,
    }


def _outside(seen: RowOutputs, central: float) -> float:
    """Share of rows whose percentile is not among the `central` percent in the middle."""
    return float(np.mean(np.abs(seen.percentile_R - 50) > central / 2))


def format_tables(rows: Sequence[dict[str, Any]]) -> str:
    """Both tables, with the machines under them."""
    names = " | ".join(DETECTORS.values())
    lines = [
        f"| checkpoint | against | {names} | flagged |",
        "|---|---|" + "---|" * (len(DETECTORS) + 1),
        *(format_line(row, name) for row in rows for name in row["others"]),
        format_median_line(rows),
        "",
        "| checkpoint | validation rows | "
        + " | ".join(f"outside the central {c} %" for c in _CENTRAL)
        + " | 99 %: flagged | training rows flagged | test rows flagged |",
        "|---|---|" + "---|" * (len(_CENTRAL) + 3),
        *(format_own_line(row) for row in rows),
        "",
        format_machines(rows),
    ]
    return "\n".join(lines)


def format_line(row: dict[str, Any], name: str) -> str:
    """AUROC of each detector between a checkpoint's test rows and others, and of how many of those
    it says `out_of_distribution`."""
    other = row["others"][name]
    cells = [f"{other[d]:.3f}" if d in other else "-" for d in DETECTORS]
    flagged = f"{100 * other['flagged']:.1f} % of {other['rows']}"
    return f"| `{row['model']}` | {name} | {' | '.join(cells)} | {flagged} |"


def format_median_line(rows: Sequence[dict[str, Any]]) -> str:
    """Of what is foreign: what is a checkpoint's own, asked for otherwise, is left out."""
    found = [
        other
        for row in rows
        for name, other in row["others"].items()
        if not name.startswith(SAME_ROWS)
    ]
    columns = ([other[d] for other in found if d in other] for d in (*DETECTORS, "flagged"))
    cells = [f"{np.median(column):.3f}" if column else "-" for column in columns]
    share = f"{100 * float(cells.pop()):.1f} %"
    return (
        f"| all | median of {len(found)}, without `{SAME_ROWS}` | {' | '.join(cells)} | {share} |"
    )


def format_own_line(row: dict[str, Any]) -> str:
    """How many of a checkpoint's own rows this rule or that would take for others."""
    train, val, test = (row["own"][part] for part in _PARTS)
    shares = [val[f"outside_{c}"] for c in _CENTRAL]
    shares += [part["flagged"] for part in (val, train, test)]
    cells = [f"{100 * share:.1f} %" for share in shares]
    return f"| `{row['model']}` | {val['rows']} | {' | '.join(cells)} |"
