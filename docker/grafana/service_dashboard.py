"""The service: requests, latency, queue, cache, jobs, Redis."""

from __future__ import annotations

from grafana_foundation_sdk.builders.dashboard import Dashboard, Row
from panels import choice, new_dashboard, quantile, rate, spread, time_series, value, warn

_TOTAL = 'phase="total", route=~"$route"'
_PHASES = 'phase!="total", route=~"$route"'
_ROUTE = 'route=~"$route"'
_FAILED = 'status=~"5..", status!~"503|504"'


def build_service() -> Dashboard:
    page = new_dashboard("service", "Basin: service")
    page.with_variable(choice("route", "basin_requests_total"))
    _add_state(page)
    _add_requests(page)
    _add_latency(page)
    _add_queue(page)
    return page


def _add_state(page: Dashboard) -> None:
    page.with_row(Row("Now"))
    page.with_panel(
        warn(value("Servers up", "percentunit", "Share.", 'avg(up{job="basin"})'), 1, 0.99)
    )
    page.with_panel(
        value("Requests", "reqps", "All routes.", "sum(rate(basin_requests_total[5m]))")
    )
    slow = value(
        "Slow",
        "percentunit",
        "Share of scores and classifications that take more than 1 s. Red: BasinSlow.",
        "basin:slow:ratio5m",
    )
    page.with_panel(warn(slow, 0.01, 0.144).decimals(1))
    failed = f"sum(rate(basin_requests_total{{{_FAILED}}}[5m]))"
    failed = value(
        "Server errors",
        "percentunit",
        "Share of all responses; 503 and 504 are not counted. Red: BasinFails.",
        f"({failed} or vector(0)) / sum(rate(basin_requests_total[5m]))",
    )
    page.with_panel(warn(failed, 0.001, 0.01).decimals(1))
    queue = value(
        "Queue",
        "percentunit",
        "Places that are taken, on the fullest server. At 100 % requests are refused.",
        "max(basin_queue_depth / basin_queue_limit)",
    )
    page.with_panel(warn(queue, 0.5, 0.9))
    page.with_panel(
        warn(
            value(
                "Backlog", "s", "Compute for all that waits or runs.", "max(basin_backlog_seconds)"
            ),
            1,
            5,
        )
    )


def _add_requests(page: Dashboard) -> None:
    page.with_row(Row("Requests"))
    page.with_panel(
        time_series(
            "Requests",
            "reqps",
            "Responses by route.",
            (rate("basin_requests_total", "route", _ROUTE), "{{route}}"),
        )
    )
    page.with_panel(
        time_series(
            "Responses by status",
            "reqps",
            "HTTP status codes of the chosen routes.",
            (rate("basin_requests_total", "status", _ROUTE), "{{status}}"),
        )
    )
    page.with_panel(
        time_series(
            "Refusals",
            "reqps",
            "Why requests were refused: each type is in the table of problems.",
            (rate("basin_problems_total", "type"), "{{type}}"),
        ).no_value("No request was refused")
    )


def _add_latency(page: Dashboard) -> None:
    page.with_row(Row("Latency"))
    page.with_panel(
        time_series(
            "Latency",
            "s",
            "From the first byte of the request to the end of the response.",
            *spread("basin_request_seconds", "route", _TOTAL, 0.99),
        ).span(6)
    )
    page.with_panel(
        time_series(
            "Latency by model",
            "s",
            "The same, of requests that used a model.",
            *spread("basin_request_seconds", "model", f'{_TOTAL}, model!=""', 0.99),
        ).span(6)
    )
    page.with_panel(
        time_series(
            "Where the time goes",
            "s",
            "Seconds that all requests spend in each phase, per second.",
            (rate("basin_request_seconds_sum", "phase", _PHASES), "{{phase}}"),
        ).span(6)
    )
    page.with_panel(
        time_series(
            "p99 by phase",
            "s",
            "The phase with the largest value makes requests slow.",
            (quantile(0.99, "basin_request_seconds", "phase", _PHASES), "{{phase}}"),
        ).span(6)
    )


def _add_queue(page: Dashboard) -> None:
    page.with_row(Row("Queue and stores"))
    page.with_panel(
        time_series(
            "Queue",
            "short",
            "Requests beyond the limit are answered 429.",
            ("sum by (instance) (basin_queue_depth)", "queued or running, {{instance}}"),
            ("sum by (instance) (basin_queue_limit)", "limit, {{instance}}"),
        )
    )
    page.with_panel(
        time_series(
            "Saturation",
            "s",
            "Seconds of compute for all that waits or runs.",
            ("max by (instance) (basin_backlog_seconds)", "{{instance}}"),
        )
    )
    page.with_panel(
        time_series(
            "Cache",
            "reqps",
            "Lookups in the response cache.",
            (rate("basin_cache_total", "outcome"), "{{outcome}}"),
        )
    )
    page.with_panel(
        time_series(
            "Jobs",
            "short",
            "Jobs that wait or run, jobs that failed by a fault of the server and wait for the "
            "operator, and jobs that end per minute.",
            ("sum by (instance) (basin_jobs_unfinished)", "unfinished, {{instance}}"),
            ("sum by (instance) (basin_jobs_dead)", "dead, {{instance}}"),
            (f"{rate('basin_jobs_total', 'status')} * 60", "{{status}} per minute"),
        )
    )
    page.with_panel(
        time_series(
            "Redis",
            "short",
            "1 while Redis answers, and failed operations per minute.",
            ("min by (instance) (basin_redis_up)", "up, {{instance}}"),
            (f"{rate('basin_redis_failures_total', 'part')} * 60", "{{part}} per minute"),
        ).no_value("No Redis is configured")
    )
