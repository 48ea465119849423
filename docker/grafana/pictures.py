"""Draws the dashboards from what a Prometheus has, for documents and reports, without Grafana.

python docker/grafana/pictures.py --prometheus http://127.0.0.1:9090 --minutes 60 --out figures
"""

from __future__ import annotations

import argparse
import re
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import matplotlib as mpl
from dashboards import DASHBOARDS
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.dates import DateFormatter
from panels import Dashboard, Panel

_COLUMNS, _POINTS, _LINES = 3, 240, 9
_UNITS = {"s": "seconds", "reqps": "a second", "bytes": "bytes", "percentunit": "share"}


def draw(dashboard: Dashboard, asked: httpx.Client, seconds: float, out: Path) -> Path:
    """A picture of the last `seconds`, `<out>/dashboard-<name>.png`; of a panel with many lines the
    highest are drawn."""
    rows = -(-len(dashboard.panels) // _COLUMNS)
    figure, axes = plt.subplots(
        rows, _COLUMNS, figsize=(5 * _COLUMNS, 2.9 * rows), squeeze=False, layout="constrained"
    )
    figure.suptitle(dashboard.title, x=0.01, ha="left", weight="bold")
    for place in axes.flat[len(dashboard.panels) :]:
        place.axis("off")
    for panel, place in zip(dashboard.panels, axes.flat, strict=False):
        _draw(panel, asked, seconds, place)
    path = out / f"dashboard-{dashboard.name}.png"
    figure.savefig(path, dpi=75)
    plt.close(figure)
    return path


def _draw(panel: Panel, asked: httpx.Client, seconds: float, axes: Axes) -> None:
    axes.set_title(panel.title, fontsize=9, loc="left")
    axes.set_ylabel(_UNITS.get(panel.unit, ""), fontsize=7)
    lines = sorted(_lines(panel, asked, seconds), key=lambda line: -max(line[2]))[:_LINES]
    for name, times, values in lines:
        axes.plot(times, values, label=name, linewidth=1)
    if lines:
        axes.legend(fontsize=6, frameon=False, loc="upper left")
        axes.set_ylim(bottom=0, top=panel.most)
    else:
        axes.text(0.5, 0.5, "nothing", ha="center", color="grey", transform=axes.transAxes)
    axes.xaxis.set_major_formatter(DateFormatter("%H:%M:%S"))
    axes.tick_params(labelsize=6)
    axes.grid(alpha=0.3)


def _lines(
    panel: Panel, asked: httpx.Client, seconds: float
) -> Iterator[tuple[str, list[datetime], list[float]]]:
    end = time.time()
    step = max(seconds / _POINTS, 1.0)
    for query, legend in panel.queries:
        query = query.replace("$__rate_interval", f"{max(round(4 * step), 10)}s")
        query = re.sub(r"\$(model|route)\b", ".*", query)
        span: dict[str, Any] = {"query": query, "start": end - seconds, "end": end, "step": step}
        answer = asked.get("/api/v1/query_range", params=span).raise_for_status().json()
        for series in answer["data"]["result"]:
            points = [(at, float(value)) for at, value in series["values"]]
            points = [(at, value) for at, value in points if value == value]  # NaN: of nothing
            if points:
                name = legend
                for label, value in series["metric"].items():
                    name = name.replace(f"{{{{{label}}}}}", value)
                times = [datetime.fromtimestamp(at, UTC) for at, _ in points]
                yield name, times, [value for _, value in points]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--prometheus", default="http://127.0.0.1:9090")
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--out", type=Path, default=Path())
    told = parser.parse_args()
    mpl.use("agg")
    with httpx.Client(base_url=told.prometheus, timeout=30) as asked:
        for dashboard in DASHBOARDS:
            print(draw(dashboard, asked, 60 * told.minutes, told.out))


if __name__ == "__main__":
    main()
