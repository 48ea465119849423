"""The models: what is loaded, what it computes, and what is scored outside of requests."""

from __future__ import annotations

from grafana_foundation_sdk.builders.dashboard import Dashboard, Row
from panels import choice, new_dashboard, rate, spread, time_series, value, warn

_OF = 'model=~"$model"'


def build_models() -> Dashboard:
    page = new_dashboard("models", "Basin: models")
    page.with_variable(choice("model", "basin_steps_count"))
    _add_state(page)
    _add_compute(page)
    _add_results(page)
    _add_stored_graphs(page)
    return page


def _add_state(page: Dashboard) -> None:
    page.with_row(Row("Now"))
    loaded = "count(count by (name) (basin_model_info)) or vector(0)"
    page.with_panel(warn(value("Models loaded", "short", "By name.", loaded), 1, 0.5))
    busy = "max(sum by (instance) (rate(basin_step_seconds_sum[5m])))"
    busy = value("Compute thread", "percentunit", "Share of the time, on the busiest server.", busy)
    page.with_panel(warn(busy, 0.7, 0.95))
    page.with_panel(
        warn(
            value(
                "Transactions not scored",
                "short",
                "Stored and overdue. Red: BasinTransactionsPending.",
                "max(basin_transactions_pending)",
            ),
            0.5,
            1,
        )
    )
    page.with_panel(
        warn(
            value(
                "Graphs that fail",
                "short",
                "Watched graphs whose nodes cannot be scored. Red: BasinNodesNotScored.",
                "sum(basin_watched_graphs_failing)",
            ),
            0.5,
            1,
        )
    )


def _add_compute(page: Dashboard) -> None:
    page.with_row(Row("Models and their compute"))
    page.with_panel(
        time_series(
            "Versions served",
            "short",
            "1 for each model and version that a server has loaded.",
            ("basin_model_info", "{{name}} {{version}}, {{instance}}"),
        )
    )
    page.with_panel(
        time_series(
            "Size of the weights",
            "bytes",
            "Weights and buffers of each model.",
            ("basin_model_bytes", "{{model}}, {{instance}}"),
        )
    )
    page.with_panel(
        time_series(
            "Relaxations",
            "ops",
            "Graphs, molecules, windows and images.",
            (rate("basin_steps_count", "model", _OF), "{{model}}"),
        )
    )
    rows = rate("basin_batch_rows_sum", "model", _OF), rate("basin_batch_rows_count", "model", _OF)
    page.with_panel(
        time_series(
            "Rows of a batched step",
            "short",
            "Mean: how well requests share their steps.",
            (f"{rows[0]} / {rows[1]}", "{{model}}"),
        )
    )
    page.with_panel(
        time_series(
            "Time of a step",
            "s",
            "One batched step of the dynamics.",
            *spread("basin_step_seconds", "model", _OF, 0.99),
        )
    )
    page.with_panel(
        time_series(
            "Compute",
            "percentunit",
            "Share of the compute thread: at 100 % it is fully used.",
            (rate("basin_step_seconds_sum", "model", _OF), "{{model}}"),
        )
    )


def _add_results(page: Dashboard) -> None:
    page.with_row(Row("Results"))
    page.with_panel(
        time_series(
            "Molecules, windows, images, samples",
            "ops",
            "Of POST /classify, /complete, /images and /sample.",
            (rate("basin_classified_total", "model"), "classified, {{model}}"),
            (rate("basin_windows_total", "model"), "windows, {{model}}"),
            (rate("basin_images_total", "model"), "images, {{model}}"),
            (rate("basin_samples_total", "kind"), "samples, {{kind}}"),
        ).span(12)
    )
    page.with_panel(
        time_series(
            "Inputs without a result",
            "ops",
            "Molecules and graphs of POST /classify, by error code.",
            (rate("basin_item_errors_total", "model, code"), "{{code}}, {{model}}"),
        )
        .span(12)
        .no_value("None")
    )


def _add_stored_graphs(page: Dashboard) -> None:
    page.with_row(Row("Transactions and watched graphs"))
    transactions = rate("basin_transactions_total", "model", _OF)
    alerts = rate("basin_alerts_total", "model", _OF)
    nodes = rate("basin_watched_nodes_total", "model", _OF)
    page.with_panel(
        time_series(
            "Transactions stored and scored",
            "ops",
            "Of graphs of transactions.",
            (transactions, "{{model}}"),
        ).no_value("No transactions")
    )
    page.with_panel(
        time_series(
            "Alerts of stored transactions",
            "percentunit",
            "Share of the transactions: about that of the budget for which the threshold was "
            "chosen.",
            (f"{alerts} / {transactions}", "{{model}}"),
        ).no_value("No transactions")
    )
    page.with_panel(
        time_series(
            "Transactions not scored in time",
            "short",
            "0: what a request did not score is scored within seconds of its deadline.",
            ("basin_transactions_pending", "{{instance}}"),
        )
    )
    page.with_panel(
        time_series(
            "Nodes of watched graphs scored after changes",
            "ops",
            "And those that raised an alert.",
            (nodes, "{{model}}"),
            (f"{alerts} and {nodes}", "alerts, {{model}}"),
        ).no_value("No watched graphs")
    )
    page.with_panel(
        time_series(
            "Nodes of watched graphs that wait",
            "short",
            "Requests go first. Why graphs fail is in the server log.",
            ("basin_watched_nodes_waiting", "{{instance}}"),
            ("basin_watched_graphs_failing", "graphs that fail, {{instance}}"),
        )
    )
