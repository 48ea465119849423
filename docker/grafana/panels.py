"""What a dashboard is, and what Grafana reads of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

_DATASOURCE = {"type": "prometheus", "uid": "prometheus"}
_WIDTH, _HEIGHT = 12, 8  # of a panel, on a page 24 wide


@dataclass(frozen=True)
class Panel:
    """Series over time: queries in PromQL, each with what its lines are called.

    `most` is the top of the axis; `quiet` says that there may be nothing to show, as of errors.
    """

    title: str
    queries: Sequence[tuple[str, str]]
    unit: str = "short"
    about: str = ""
    most: float | None = None
    quiet: bool = False


@dataclass(frozen=True)
class Dashboard:
    """A page of panels; `by` are the labels that a reader may choose among, with a metric that has
    them."""

    name: str
    title: str
    panels: Sequence[Panel]
    by: dict[str, str] = field(default_factory=dict)


def grafana(dashboard: Dashboard) -> dict[str, Any]:
    """As Grafana reads it."""
    return {
        "uid": f"basin-{dashboard.name}",
        "title": dashboard.title,
        "tags": ["basin"],
        "timezone": "browser",
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "schemaVersion": 41,
        "editable": False,
        "links": [{"type": "dashboards", "tags": ["basin"], "asDropdown": True, "title": "Basin"}],
        "templating": {"list": [_choice(label, of) for label, of in dashboard.by.items()]},
        "panels": list(_panels(dashboard.panels)),
    }


def _choice(label: str, metric: str) -> dict[str, Any]:
    query = f"label_values({metric}, {label})"
    return {
        "name": label,
        "type": "query",
        "datasource": _DATASOURCE,
        "definition": query,
        "query": {"query": query, "refId": label},
        "refresh": 2,
        "includeAll": True,
        "multi": True,
        "allValue": ".*",
        "current": {"text": "All", "value": "$__all"},
    }


def _panels(panels: Sequence[Panel]) -> Iterator[dict[str, Any]]:
    for place, panel in enumerate(panels):
        down, across = divmod(place, 24 // _WIDTH)
        defaults: dict[str, Any] = {"unit": panel.unit, "min": 0}
        if panel.most is not None:
            defaults["max"] = panel.most
        yield {
            "id": place + 1,
            "title": panel.title,
            "description": panel.about,
            "type": "timeseries",
            "datasource": _DATASOURCE,
            "gridPos": {"x": across * _WIDTH, "y": down * _HEIGHT, "w": _WIDTH, "h": _HEIGHT},
            "fieldConfig": {"defaults": defaults, "overrides": []},
            "options": {
                "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True},
                "tooltip": {"mode": "multi", "sort": "desc"},
            },
            "targets": [
                {
                    "refId": chr(ord("A") + i),
                    "datasource": _DATASOURCE,
                    "expr": query,
                    "legendFormat": legend,
                }
                for i, (query, legend) in enumerate(panel.queries)
            ],
        }
