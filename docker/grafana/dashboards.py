"""The dashboards of Grafana: what is watched, in the few words that differ from panel to panel.

python docker/grafana/dashboards.py     writes dashboards/*.json beside this file
"""

from __future__ import annotations

import json
from pathlib import Path

from panels import Dashboard, Panel, grafana

FOLDER = Path(__file__).parent / "dashboards"
_RATE = "[$__rate_interval]"


def _rate(metric: str, by: str, where: str = "") -> str:
    return f"sum by ({by}) (rate({metric}{{{where}}}{_RATE}))"


def _quantile(q: float, metric: str, by: str, where: str = "") -> str:
    return f"histogram_quantile({q}, {_rate(f'{metric}_bucket', f'{by}, le', where)})"


def _spread(metric: str, by: str, where: str, high: float) -> list[tuple[str, str]]:
    """The median, and a quantile that few exceed."""
    named = ((0.5, "median"), (high, f"p{100 * high:g}"))
    return [(_quantile(q, metric, by, where), f"{name} {{{{{by}}}}}") for q, name in named]


_TOTAL = 'phase="total", route=~"$route"'
_OF = 'model=~"$model"'

DASHBOARDS = (
    Dashboard(
        "service",
        "Basin: service",
        (
            Panel(
                "Requests",
                [(_rate("basin_requests_total", "route", 'route=~"$route"'), "{{route}}")],
                "reqps",
            ),
            Panel(
                "Answers by status",
                [(_rate("basin_requests_total", "status", 'route=~"$route"'), "{{status}}")],
                "reqps",
            ),
            Panel(
                "Refusals",
                [(_rate("basin_problems_total", "type"), "{{type}}")],
                "reqps",
                "Why requests were refused: each type is in the table of errors.",
                quiet=True,
            ),
            Panel(
                "Latency",
                _spread("basin_request_seconds", "route", _TOTAL, 0.99),
                "s",
            ),
            Panel(
                "Latency by model",
                _spread("basin_request_seconds", "model", f'{_TOTAL}, model!=""', 0.99),
                "s",
            ),
            Panel(
                "Where the time goes",
                [
                    (
                        _rate(
                            "basin_request_seconds_sum", "phase", 'phase!="total", route=~"$route"'
                        ),
                        "{{phase}}",
                    )
                ],
                "s",
                "Seconds of all requests in each phase, a second.",
            ),
            Panel(
                "p99 by phase",
                [
                    (
                        _quantile(
                            0.99,
                            "basin_request_seconds",
                            "phase",
                            'phase!="total", route=~"$route"',
                        ),
                        "{{phase}}",
                    )
                ],
                "s",
            ),
            Panel(
                "Queue",
                [
                    ("sum by (instance) (basin_queue_depth)", "waits or runs, {{instance}}"),
                    ("sum by (instance) (basin_queue_limit)", "places, {{instance}}"),
                ],
                about="Requests beyond the queue size are answered 429.",
            ),
            Panel(
                "Saturation",
                [("max by (instance) (basin_backlog_seconds)", "{{instance}}")],
                "s",
                "Seconds of compute for all that waits or runs.",
            ),
            Panel(
                "Cache",
                [(_rate("basin_cache_total", "outcome"), "{{outcome}}")],
                "reqps",
            ),
            Panel(
                "Jobs",
                [
                    ("sum by (instance) (basin_jobs_unfinished)", "unfinished, {{instance}}"),
                    (f"{_rate('basin_jobs_total', 'status')} * 60", "{{status}}, a minute"),
                ],
            ),
            Panel(
                "Redis",
                [
                    ("min by (instance) (basin_redis_up)", "up, {{instance}}"),
                    (f"{_rate('basin_redis_failures_total', 'part')} * 60", "{{part}}, a minute"),
                ],
                about="Whether it answers, and how often it did not do what was asked.",
                quiet=True,
            ),
        ),
        {"route": "basin_requests_total"},
    ),
    Dashboard(
        "energy",
        "Basin: energy",
        (
            Panel(
                "Energy lost on the way",
                [
                    (
                        _quantile(q, "basin_energy_drop_per_node", "model", _OF),
                        f"{name} {{{{model}}}}",
                    )
                    for q, name in ((0.5, "median"), (0.95, "p95"))
                ],
                about="Per node, atom, patch or window, from the first state to the last.",
            ),
            Panel(
                "Steps taken",
                [
                    (
                        f"{_rate('basin_steps_sum', 'model', _OF)} / "
                        f"{_rate('basin_steps_count', 'model', _OF)}",
                        "{{model}}",
                    )
                ],
                about="Mean of all blocks together.",
            ),
            Panel(
                "Why the state stopped",
                [(_rate("basin_stops_total", "reason", _OF), "{{reason}}")],
                "ops",
            ),
            Panel(
                "Converged",
                [
                    (
                        f'sum by (model) (rate(basin_stops_total{{{_OF}, reason="converged"}}'
                        f"{_RATE})) / {_rate('basin_stops_total', 'model', _OF)}",
                        "{{model}}",
                    )
                ],
                "percentunit",
                "Of those that were given a tolerance, all should; without one none can.",
                most=1,
                quiet=True,
            ),
            Panel(
                "Residual at the last step",
                _spread("basin_residual", "model", _OF, 0.9),
                about="|dx/dt| / |x|: how far from rest an answer was read.",
            ),
            Panel(
                "Below the median energy of training",
                [
                    (
                        "sum by (model) (rate(basin_energy_percentile_bucket{"
                        f'{_OF}, le="50.0"}}{_RATE})) / '
                        f"{_rate('basin_energy_percentile_count', 'model', _OF)}",
                        "{{model}}",
                    )
                ],
                "percentunit",
                "Half, where what is sent is as what was learned from.",
                most=1,
            ),
            Panel(
                "Outside the central 99 % of training",
                [
                    (
                        f"{_rate('basin_out_of_distribution_total', 'model', _OF)} / "
                        f"{_rate('basin_energy_percentile_count', 'model', _OF)}",
                        "{{model}}",
                    )
                ],
                "percentunit",
                "A hundredth, where what is sent is as what was learned from.",
                most=1,
                quiet=True,
            ),
            Panel(
                "Acceptance of MALA",
                [(f"histogram_quantile(0.5, {_rate('basin_acceptance_bucket', 'le')})", "median")],
                "percentunit",
                most=1,
                quiet=True,
            ),
        ),
        {"model": "basin_steps_count"},
    ),
    Dashboard(
        "models",
        "Basin: models",
        (
            Panel(
                "Versions served",
                [("basin_model_info", "{{name}} {{version}}, {{instance}}")],
            ),
            Panel("Bytes of weights", [("basin_model_bytes", "{{model}}, {{instance}}")], "bytes"),
            Panel(
                "Relaxed",
                [(_rate("basin_steps_count", "model", _OF), "{{model}}")],
                "ops",
                "Graphs, molecules, windows and pictures.",
            ),
            Panel(
                "Rows that take a step together",
                [
                    (
                        f"{_rate('basin_batch_rows_sum', 'model', _OF)} / "
                        f"{_rate('basin_batch_rows_count', 'model', _OF)}",
                        "{{model}}",
                    )
                ],
                about="Mean: how well requests share their steps.",
            ),
            Panel(
                "Seconds of a step",
                _spread("basin_step_seconds", "model", _OF, 0.99),
                "s",
            ),
            Panel(
                "Compute",
                [(_rate("basin_step_seconds_sum", "model", _OF), "{{model}}")],
                "s",
                "Seconds of steps, a second: the whole thread is 1.",
            ),
            Panel(
                "Molecules, windows, pictures, samples",
                [
                    (_rate("basin_classified_total", "model"), "classified, {{model}}"),
                    (_rate("basin_windows_total", "model"), "windows, {{model}}"),
                    (_rate("basin_images_total", "model"), "pictures, {{model}}"),
                    (_rate("basin_samples_total", "kind"), "samples, {{kind}}"),
                ],
                "ops",
            ),
            Panel(
                "Transactions stored and scored",
                [(_rate("basin_transactions_total", "model", _OF), "{{model}}")],
                "ops",
                quiet=True,
            ),
            Panel(
                "Alerts of stored transactions",
                [
                    (
                        f"{_rate('basin_alerts_total', 'model', _OF)} / "
                        f"{_rate('basin_transactions_total', 'model', _OF)}",
                        "{{model}}",
                    )
                ],
                "percentunit",
                "Share of the transactions: about that of the budget for which the threshold was "
                "chosen.",
                quiet=True,
            ),
            Panel(
                "Transactions not scored in time",
                [("basin_transactions_pending", "{{instance}}")],
                about="0: what a request did not score is scored within seconds of its deadline.",
                quiet=True,
            ),
            Panel(
                "Nodes of watched graphs scored after changes",
                [
                    (_rate("basin_watched_nodes_total", "model", _OF), "{{model}}"),
                    (
                        f"{_rate('basin_alerts_total', 'model', _OF)} and "
                        f"{_rate('basin_watched_nodes_total', 'model', _OF)}",
                        "alerts, {{model}}",
                    ),
                ],
                "ops",
                quiet=True,
            ),
            Panel(
                "Nodes of watched graphs that wait",
                [
                    ("basin_watched_nodes_waiting", "{{instance}}"),
                    ("basin_watched_graphs_failing", "graphs that fail, {{instance}}"),
                ],
                about="Requests go first. Why graphs fail is in the server log.",
                quiet=True,
            ),
            Panel(
                "Inputs without an answer",
                [(_rate("basin_item_errors_total", "model, code"), "{{code}}, {{model}}")],
                "ops",
                quiet=True,
            ),
        ),
        {"model": "basin_steps_count"},
    ),
    Dashboard(
        "resources",
        "Basin: resources",
        (
            Panel(
                "Processors",
                [(f'rate(process_cpu_seconds_total{{job="basin"}}{_RATE})', "{{instance}}")],
                about="Of one, 1 is all.",
            ),
            Panel(
                "Memory",
                [
                    ('process_resident_memory_bytes{job="basin"}', "{{instance}}"),
                    ('basin_heap_bytes{state="in_use"}', "in use by malloc, {{instance}}"),
                    ("basin_gpu_bytes", "GPU, {{instance}}"),
                ],
                "bytes",
            ),
            Panel(
                "File descriptors",
                [
                    ('process_open_fds{job="basin"}', "open, {{instance}}"),
                    ('process_max_fds{job="basin"}', "allowed, {{instance}}"),
                ],
            ),
            Panel(
                "Cached answers and stored graphs",
                [
                    ("basin_cache_bytes", "answers, {{instance}}"),
                    ("basin_graph_bytes", "graphs, {{instance}}"),
                ],
                "bytes",
            ),
            Panel(
                "Up",
                [('up{job="basin"}', "{{instance}}")],
                most=1,
            ),
            Panel(
                "Age of the process",
                [('time() - process_start_time_seconds{job="basin"}', "{{instance}}")],
                "s",
            ),
        ),
    ),
)


def texts() -> dict[str, str]:
    """What each file holds, by its name."""
    return {f"{d.name}.json": json.dumps(grafana(d), indent=1) + "\n" for d in DASHBOARDS}


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, text in texts().items():
        (FOLDER / name).write_text(text)
