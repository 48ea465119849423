"""Draws the dashboards with matplotlib from what a Prometheus has, for documents, without Grafana.

python docker/grafana/pictures.py --prometheus http://127.0.0.1:9090 --minutes 60 --out figures

Queries, units, thresholds and layout are those of the dashboards; the look is not Grafana's.
"""

from __future__ import annotations

import argparse
import re
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import matplotlib as mpl
from dashboards import DASHBOARDS
from grafana_foundation_sdk.models.dashboard import Dashboard, Panel, RowPanel
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.dates import DateFormatter
from matplotlib.ticker import EngFormatter, MaxNLocator
from panels import list_panels

_GRID, _POINTS, _LINES = 24, 240, 9
_UNIT_INCHES = 0.45
_UNITS = {"s": "seconds", "reqps": "per second", "ops": "per second", "percentunit": "share"}
_COLORS = {"green": "tab:green", "yellow": "goldenrod", "red": "tab:red"}


class Line(NamedTuple):
    """A series: name of the legend, times and values."""

    name: str
    times: list[datetime]
    values: list[float]


def draw(page: Dashboard, prometheus: httpx.Client, seconds: float, out: Path) -> Path:
    """Draw the last `seconds` as `<out>/<uid>.png`; of a panel with many lines the highest."""
    rows = max(panel.grid_pos.y + panel.grid_pos.h for panel in list_panels(page))
    figure = plt.figure(figsize=(15, _UNIT_INCHES * rows))
    for panel in list_panels(page):
        place = panel.grid_pos  # in units of the grid, from the top
        box = place.x + 1, rows - place.y - place.h + 0.7, place.w - 1.4, place.h - 1.8
        axes = figure.add_axes((box[0] / _GRID, box[1] / rows, box[2] / _GRID, box[3] / rows))
        axes.set_title(panel.title, fontsize=9, loc="left")
        lines = list(_read_lines(panel, prometheus, seconds))
        if panel.type_val == "stat":
            _draw_value(panel, lines, axes)
        else:
            _draw_lines(panel, lines, axes)
    for row in page.panels:
        if isinstance(row, RowPanel):
            height = 1 - (row.grid_pos.y + 0.6) / rows
            figure.text(0.01, height, f"{page.title}: {row.title}", weight="bold")
    path = out / f"dashboard-{page.uid.removeprefix('basin-')}.png"
    figure.savefig(path, dpi=75)
    plt.close(figure)
    return path


def _draw_lines(panel: Panel, lines: list[Line], axes: Axes) -> None:
    defaults = panel.field_config.defaults
    if not lines:
        axes.set(xticks=[], yticks=[])
        _write(defaults.no_value or "No data", 9, "grey", axes)
        return
    for line in sorted(lines, key=lambda line: -max(line.values))[:_LINES]:
        axes.plot(line.times, line.values, label=line.name, linewidth=1)
    axes.legend(fontsize=6, loc="upper left", framealpha=0.6)
    top = defaults.max_val or max(max(line.values) for line in lines) or 1
    axes.set_ylim(bottom=0, top=1.05 * top)
    axes.set_ylabel(_UNITS.get(defaults.unit, ""), fontsize=7)
    if defaults.unit == "bytes":
        axes.yaxis.set_major_formatter(EngFormatter(unit="B"))
    axes.xaxis.set_major_formatter(DateFormatter("%H:%M:%S"))
    axes.xaxis.set_major_locator(MaxNLocator(5))
    axes.tick_params(labelsize=6)
    axes.grid(alpha=0.3)


def _draw_value(panel: Panel, lines: list[Line], axes: Axes) -> None:
    axes.axis("off")
    defaults = panel.field_config.defaults
    if not lines:
        _write(defaults.no_value or "No data", 9, "grey", axes)
        return
    last = lines[0].values[-1]
    steps = defaults.thresholds.steps if defaults.thresholds else []
    reached = [step.color for step in steps if step.value is None or last >= step.value]
    text = f"{last:.1%}" if defaults.unit == "percentunit" else f"{last:.3g}"
    unit = {"s": " s", "reqps": " /s", "ops": " /s"}.get(defaults.unit, "")
    _write(text + unit, 16, _COLORS[reached[-1]] if reached else "black", axes)


def _write(text: str, size: int, color: str, axes: Axes) -> None:
    place = {"ha": "center", "va": "center", "transform": axes.transAxes}
    axes.text(0.5, 0.5, text, fontsize=size, color=color, **place)


def _read_lines(panel: Panel, prometheus: httpx.Client, seconds: float) -> Iterator[Line]:
    end = time.time()
    step = max(seconds / _POINTS, 1.0)
    for target in panel.targets:
        query = target.expr.replace("$__rate_interval", f"{max(round(4 * step), 10)}s")
        query = re.sub(r"\$(model|route)\b", ".*", query)
        span: dict[str, Any] = {"query": query, "start": end - seconds, "end": end, "step": step}
        answer = prometheus.get("/api/v1/query_range", params=span).raise_for_status().json()
        for series in answer["data"]["result"]:
            points = [(at, float(number)) for at, number in series["values"]]
            points = [(at, number) for at, number in points if number == number]  # NaN: of nothing
            if points:
                name = target.legend_format
                for label, text in series["metric"].items():
                    name = name.replace(f"{{{{{label}}}}}", text)
                times = [datetime.fromtimestamp(at, UTC) for at, _ in points]
                yield Line(name, times, [number for _, number in points])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--prometheus", default="http://127.0.0.1:9090")
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--out", type=Path, default=Path())
    args = parser.parse_args()
    mpl.use("agg")
    with httpx.Client(base_url=args.prometheus, timeout=30) as prometheus:
        for page in DASHBOARDS.values():
            print(draw(page, prometheus, 60 * args.minutes, args.out))


if __name__ == "__main__":
    main()
