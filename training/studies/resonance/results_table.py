"""The table of docs/resonance.md: strength by vigilance, in one resumable command."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import product
from typing import Any

import numpy as np

from models.resonance import Resonance
from training.common.hardware import format_machines
from training.common.results_log import ResultsLog, config_hash
from training.studies.resonance.study import CheckpointStudy, RetrainOptions

_UNITS = {"roc_auc": ("ROC-AUC in percent", 100.0), "psnr": ("PSNR in dB", 1.0)}
Row = dict[str, Any]


def evaluate_checkpoint(
    subject: CheckpointStudy, ledger: ResultsLog, grid: Iterable[Resonance]
) -> list[Row]:
    """The weights as they are, with no resonance and with each of `grid`; rows there are are kept.

    `error` is the standard error of the difference to none, on the same test rows.
    """
    base: list[np.ndarray] = []

    def measured(resonance: Resonance | None) -> Row:
        if not base:
            base.append(subject.compute_scores(None))
        scores = base[0] if resonance is None else subject.compute_scores(resonance)
        told = {
            "value": subject.compute_metric(scores),
            "error": subject.compute_standard_error(scores, base[0]),
        }
        return _build_row(subject, resonance, None) | told

    identity = subject.checkpoint.sha256
    return [_kept(subject, ledger, identity, r, None, measured) for r in (None, *grid)]


def evaluate_retrained(
    subject: CheckpointStudy,
    ledger: ResultsLog,
    grid: Iterable[Resonance],
    seeds: int,
    how: RetrainOptions,
) -> list[Row]:
    """Trained anew with each of `grid` and with none, several seeds each."""
    cells = [(seed, r) for seed in range(seeds) for r in (None, *grid)]
    task = how.progress.add_task(subject.manifest.name, total=len(cells))
    rows = []
    for seed, resonance in cells:

        def measured(resonance: Resonance | None, seed: int = seed) -> Row:
            added = {} if resonance is None else {"resonance": resonance.model_dump(mode="json")}
            value = subject.retrain(added, seed, how)
            return _build_row(subject, resonance, seed) | {"epochs": how.epochs, "value": value}

        identity = [subject.manifest.training["recipe"], how.smoke, how.epochs]
        rows.append(_kept(subject, ledger, identity, resonance, seed, measured))
        how.progress.advance(task)
    return rows


def _kept(
    subject: CheckpointStudy,
    ledger: ResultsLog,
    identity: Any,
    resonance: Resonance | None,
    seed: int | None,
    measured: Callable[[Resonance | None], Row],
) -> Row:
    told = None if resonance is None else resonance.model_dump(mode="json")
    split = str(subject.manifest.training.get("split"))
    key = subject.manifest.name, split, config_hash([identity, told, seed])
    return ledger.get_or_compute(key, partial(measured, resonance))


def _build_row(subject: CheckpointStudy, resonance: Resonance | None, seed: int | None) -> Row:
    return {
        "dataset": subject.manifest.training["dataset"],
        "strength": 0.0 if resonance is None else resonance.strength,
        "vigilance": None if resonance is None else resonance.vigilance,
        "retrained": seed is not None,
        "seed": seed,
        "figure": subject.metric_name,
    }


def resonance_grid(strengths: Sequence[float], vigilances: Sequence[float]) -> list[Resonance]:
    """Every pair of them, the rest as it is by default."""
    pairs = product(strengths, vigilances)
    return [Resonance.model_validate({"strength": s, "vigilance": v}) for s, v in pairs]


def format_table(rows: Sequence[Row]) -> str:
    """The figure without resonance, and what each adds to it; the machines under it."""
    vigilances = sorted({row["vigilance"] for row in rows if row["vigilance"] is not None})
    names = " | ".join(f"vigilance {vigilance:g}" for vigilance in vigilances)
    lines = [
        f"| checkpoint | weights | strength | {names} |",
        "|---|---|---|" + "---|" * len(vigilances),
    ]
    lines += format_lines(rows)
    units = " and ".join(dict.fromkeys(_UNITS[row["figure"]][0] for row in rows))
    return "\n".join([*lines, "", f"{units}. {format_machines(rows)}"])


def format_lines(rows: Sequence[Row]) -> list[str]:
    """The lines of a table: the figure itself for strength 0, else the difference to it.

    ± is the standard error of the difference: on the test rows where weights are as they are, over
    the seeds where they are new; of a single seed there is none.
    """
    lines = []
    for name, new, epochs in dict.fromkeys(map(_training, rows)):
        mine = [row for row in rows if _training(row) == (name, new, epochs)]
        vigilances = sorted({row["vigilance"] for row in mine if row["vigilance"] is not None})
        base = {row["seed"]: row["value"] for row in mine if row["strength"] == 0}
        scale = _UNITS[mine[0]["figure"]][1]
        count = len(base)
        weights = f"new, {count} seed{'s' * (count != 1)}" if new else "as they are"
        if epochs is not None:
            weights += f" of {epochs} epoch{'s' * (epochs != 1)}"
        none = f"{scale * np.mean(list(base.values())):.2f}"
        lines.append(f"| `{name}` | {weights} | 0 | {' | '.join([none] * len(vigilances))} |")
        for strength in sorted({row["strength"] for row in mine if row["strength"] != 0}):
            cells = [
                _cell([r for r in mine if (r["strength"], r["vigilance"]) == (strength, v)], base)
                for v in vigilances
            ]
            lines.append(f"| `{name}` | {weights} | {strength:g} | {' | '.join(cells)} |")
    return lines


def _training(row: Row) -> tuple[str, bool, int | None]:
    """What the rows of one part of the table have in common: no figure is compared with others."""
    return row["model"], row["retrained"], row.get("epochs")


def _cell(rows: Sequence[Row], base: dict[int | None, float]) -> str:
    if not rows:
        return "-"
    scale = _UNITS[rows[0]["figure"]][1]
    apart = np.array([row["value"] - base[row["seed"]] for row in rows])
    error = rows[0].get("error")
    if error is None and len(rows) > 1:
        error = float(apart.std(ddof=1) / len(rows) ** 0.5)
    told = f"{scale * apart.mean():+.2f}"
    return told if error is None else f"{told} ± {scale * error:.2f}"
