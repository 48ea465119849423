"""What panels and dashboards of Basin have in common, on top of grafana-foundation-sdk."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeVar

from grafana_foundation_sdk.builders import common, dashboard, prometheus, stat, timeseries
from grafana_foundation_sdk.models import common as common_models
from grafana_foundation_sdk.models import dashboard as models

DATASOURCE = common_models.DataSourceRef(type_val="prometheus", uid="prometheus")
Query = tuple[str, str]
"""A query in PromQL, and the legend of its lines."""
P = TypeVar("P", stat.Panel, timeseries.Panel)


def rate(metric: str, by: str, where: str = "") -> str:
    return f"sum by ({by}) (rate({metric}{{{where}}}[$__rate_interval]))"


def quantile(q: float, metric: str, by: str, where: str = "") -> str:
    return f"histogram_quantile({q}, {rate(f'{metric}_bucket', f'{by}, le', where)})"


def spread(metric: str, by: str, where: str, high: float) -> list[Query]:
    """The median, and a quantile that few exceed."""
    names = ((0.5, "median"), (high, f"p{100 * high:g}"))
    return [(quantile(q, metric, by, where), f"{name} {{{{{by}}}}}") for q, name in names]


def time_series(title: str, unit: str, about: str, *queries: Query) -> timeseries.Panel:
    """Lines over time, three panels side by side."""
    panel = timeseries.Panel().span(8).height(7).min(0).line_width(1).fill_opacity(5)
    panel.legend(
        common.VizLegendOptions()
        .display_mode(common_models.LegendDisplayMode.LIST)
        .placement(common_models.LegendPlacement.BOTTOM)
        .show_legend(True)
    )
    panel.tooltip(
        common.VizTooltipOptions()
        .mode(common_models.TooltipDisplayMode.MULTI)
        .sort(common_models.SortOrder.DESCENDING)
    )
    return _describe(panel, title, unit, about, *queries)


def value(title: str, unit: str, about: str, query: str) -> stat.Panel:
    """The last value of one query as a number, six side by side; `warn` colors it."""
    panel = stat.Panel().span(4).height(4).color_mode(common_models.BigValueColorMode.VALUE)
    panel.graph_mode(common_models.BigValueGraphMode.AREA)
    panel.reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]))
    return _describe(panel, title, unit, about, (query, title))


def warn(panel: stat.Panel, yellow: float, red: float) -> stat.Panel:
    """Color the value: green, then yellow and red from these values on; where red is the smaller
    one, below them."""
    if yellow < red:
        bounds = [(None, "green"), (yellow, "yellow"), (red, "red")]
    else:
        bounds = [(None, "red"), (red, "yellow"), (yellow, "green")]
    steps = [models.Threshold(value=bound, color=color) for bound, color in bounds]
    absolute = models.ThresholdsMode.ABSOLUTE
    return panel.thresholds(dashboard.ThresholdsConfig().mode(absolute).steps(steps))


def _describe(panel: P, title: str, unit: str, about: str, *queries: Query) -> P:
    panel.title(title).unit(unit).description(about).datasource(DATASOURCE)
    for number, (query, legend) in enumerate(queries):
        target = prometheus.Dataquery().datasource(DATASOURCE).range()
        panel.with_target(target.ref_id(chr(ord("A") + number)).expr(query).legend_format(legend))
    return panel


def new_dashboard(name: str, title: str) -> dashboard.Dashboard:
    """A dashboard with the annotations and the links to the others, without panels."""
    links = dashboard.DashboardLink("Basin").type(models.DashboardLinkType.DASHBOARDS)
    page = dashboard.Dashboard(title).uid(f"basin-{name}").tags(["basin"]).readonly()
    page.tooltip(models.DashboardCursorSync.CROSSHAIR).refresh("30s").time("now-1h", "now")
    page.link(links.tags(["basin"]).as_dropdown(True))
    # A window of two steps of Grafana's annotations, so that nothing falls between two steps.
    for annotation in (
        _annotation("Restarts", "red", "{{instance}} restarted").expr(
            'changes(process_start_time_seconds{job="basin"}[2m]) > 0'
        ),
        _annotation("Model loads", "blue", "{{name}} {{version}} on {{instance}}").expr(
            "basin_model_info unless basin_model_info offset 2m"
        ),
        _annotation("Alerts", "orange", "{{alertname}}")
        .expr('ALERTS{alertname=~"Basin.+", alertstate="firing"}')
        .tag_keys("severity,instance,model"),
    ):
        page.annotation(annotation)
    return page


def _annotation(name: str, color: str, text: str) -> dashboard.AnnotationQuery:
    annotation = dashboard.AnnotationQuery().name(name).datasource(DATASOURCE).enable(True)
    return annotation.icon_color(color).title_format(name).text_format(text)


def choice(label: str, metric: str) -> dashboard.QueryVariable:
    """A menu of the values of `label` that `metric` has; all by default."""
    query = f"label_values({metric}, {label})"
    variable = dashboard.QueryVariable(label).datasource(DATASOURCE).query(query)
    variable.refresh(models.VariableRefresh.ON_TIME_RANGE_CHANGED).multi(True)
    everything = models.VariableOption(text="All", value="$__all")
    return variable.include_all(True).all_value(".*").current(everything)


def list_panels(page: models.Dashboard) -> Iterator[models.Panel]:
    """The panels of a dashboard, without the titles of its rows."""
    return (panel for panel in page.panels or () if isinstance(panel, models.Panel))
