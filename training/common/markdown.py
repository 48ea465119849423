"""Rows and cells of Markdown tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np


def format_table_row(cells: Iterable[object]) -> str:
    """Return one line of a table."""
    return f"| {' | '.join(map(str, cells))} |"


def format_table_header(titles: Sequence[str]) -> list[str]:
    """Return the line of titles and the line under it."""
    return [format_table_row(titles), "|---" * len(titles) + "|"]


def format_percent(values: Iterable[float]) -> str:
    """Return mean ± standard deviation of shares, in percent with two decimals."""
    percents = 100 * np.array(list(values))
    return f"{percents.mean():.2f} ± {percents.std():.2f}"


def format_metric(value: float | None) -> str:
    """Return a metric with four decimals; empty if it is not defined."""
    return "" if value is None else f"{value:.4f}"
