"""Returns: fidelity of independent samples, and a sequence of days."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

from models.memories import Memory
from models.sampling import (
    Method,
    Schedule,
    compute_metrics,
    draw_null_samples,
    draw_samples,
    init_states,
)
from training.datasets.memories import load_returns
from training.studies.reproduce.tables import Table


def make_tables(data: Path | None, seed: int) -> Iterator[Table]:
    history, tickers = load_returns(data)
    memory = Memory.from_items("returns", history)
    x, dim = memory.patterns_KD, memory.dim
    beta = float(round(2 * 0.017**2 * dim / 0.01, 1))
    table = Table(
        f"Returns of {len(tickers)} stocks of the S&P 500 on {len(x)} days",
        ("samples", "novelty", "KS p, mean", "KS passed", "correlation error", "paper"),
        "30 ULA chains, 8,000 steps, burn-in 2,000, thin 200, 900 samples, alpha = 0.01; "
        f"beta = {beta:g}, which has the paper's SNR of 0.017. Two-sample KS test per stock at "
        "5 %, after the affine correction; error of the correlation matrix in Frobenius norm. "
        "Other stocks and days than the paper's, which has 2,766 days.",
    )

    def add(name: str, x_SD, paper: str | None = None) -> None:
        days = memory.decode(x_SD, beta)
        p = _p_values(days, history)
        table.add_row(
            name,
            compute_metrics(x_SD, x, beta).novelty,
            float(p.mean()),
            f"{100 * (p > 0.05).mean():.1f} %",
            f"{100 * _apart(days, history):.1f} %",
            paper,
        )

    schedule = Schedule(8000, 2000, 200, 30)
    drawn = draw_samples(x, init_states(x, 30, seed), beta, 0.01, schedule, 900, seed=seed)
    add("ULA", drawn.samples_SD, "p .193, 64.2 % passed, error 26.3 %")
    add("null", draw_null_samples(x, beta, 900, seed))
    rng = np.random.default_rng(seed)
    drawn_days = history[rng.integers(0, len(history), 900)]
    p = _p_values(drawn_days, history)
    table.add_row(
        "bootstrap",
        0.0,
        float(p.mean()),
        f"{100 * (p > 0.05).mean():.1f} %",
        f"{100 * _apart(drawn_days, history):.1f} %",
        "p .622, error 15.6 %",
    )
    yield table
    yield _days(memory, history, seed)


def _days(memory: Memory, history: np.ndarray, seed: int) -> Table:
    """One warm-started MALA chain that keeps every 500th state: a day each."""
    x, beta, count, inner = memory.patterns_KD, 3.0, len(history), 500
    schedule = Schedule(1000 + inner * count, 1000, inner, count)
    drawn = draw_samples(
        x, init_states(x, 1, seed), beta, 0.01, schedule, count, method=Method.MALA, seed=seed
    )
    days = memory.decode(drawn.samples_SD, beta)
    null = memory.decode(draw_null_samples(x, beta, count, seed), beta)
    assert drawn.acceptance_rate_C is not None
    table = Table(
        "A sequence of days: autocorrelation, mean over stocks",
        ("series", "returns, lag 1", "returns, lags 2-20", "squared, lag 1", "squared, lags 2-20"),
        f"{count} days, {inner} MALA steps from one day to the next (appendix H.3), beta = "
        f"{beta:g}, alpha = 0.01, accepted {float(drawn.acceptance_rate_C.mean()):.3f} (the paper: "
        ".994). 99 % of white noise is within "
        f"{2.576 / count**0.5:.3f}. The paper: returns within it, squares do not cluster.",
    )
    for name, series in (("history", history), ("MALA", days), ("null", null)):
        table.add_row(name, *_lags(series), *_lags(series**2))
    return table


def _p_values(days: np.ndarray, history: np.ndarray) -> np.ndarray:
    """Of the two-sample KS test, stock by stock."""
    tests: list[Any] = [stats.ks_2samp(a, b) for a, b in zip(days.T, history.T, strict=True)]
    return np.array([test.pvalue for test in tests])


def _lags(series: np.ndarray) -> tuple[float, float]:
    z = (series - series.mean(0)) / series.std(0)
    found = [float((z[:-k] * z[k:]).mean()) for k in range(1, 21)]
    return found[0], float(np.mean(found[1:]))


def _apart(a: np.ndarray, b: np.ndarray) -> float:
    ours, theirs = np.corrcoef(a.T), np.corrcoef(b.T)
    return float(np.linalg.norm(ours - theirs) / np.linalg.norm(theirs))
