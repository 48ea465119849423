"""The energy: how relaxations converge, and whether inputs resemble the training data."""

from __future__ import annotations

from grafana_foundation_sdk.builders.dashboard import Dashboard, Row
from panels import choice, new_dashboard, rate, spread, time_series, value, warn

_OF = 'model=~"$model"'
_OUTSIDE = rate("basin_out_of_distribution_total", "model", _OF)
_PLACED = rate("basin_energy_percentile_count", "model", _OF)  # whose percentile is known


def build_energy() -> Dashboard:
    page = new_dashboard("energy", "Basin: energy")
    page.with_variable(choice("model", "basin_steps_count"))
    _add_state(page)
    _add_relaxation(page)
    _add_inputs(page)
    return page


def _stops(reason: str) -> str:
    """Share of the relaxations of 5 minutes that stopped for this reason."""
    stops = f"sum(rate(basin_stops_total{{{_OF}, reason=~'{reason}'}}[5m]))"
    return f"({stops} or vector(0)) / sum(rate(basin_stops_total{{{_OF}}}[5m]))"


def _add_state(page: Dashboard) -> None:
    page.with_row(Row("Now"))
    page.with_panel(
        value("Relaxations", "ops", "Chosen models.", f"sum(rate(basin_steps_count{{{_OF}}}[5m]))")
    )
    diverged = value(
        "Diverged", "percentunit", "Share of relaxations. Red: BasinDiverges.", _stops("diverged")
    )
    page.with_panel(warn(diverged, 0.001, 0.01).decimals(1))
    page.with_panel(
        value(
            "Converged",
            "percentunit",
            "Share of relaxations. Without a tolerance none can converge.",
            _stops("converged"),
        )
    )
    percentiles = f"sum(increase(basin_energy_percentile_count{{{_OF}}}[1h]))"
    outside = f"sum(increase(basin_out_of_distribution_total{{{_OF}}}[1h]))"
    page.with_panel(
        warn(
            value(
                "Out of distribution",
                "percentunit",
                "Share outside the central 99 % of training, of the last hour. Red: "
                "BasinUnfamiliar.",
                f"({outside} or vector(0)) / ({percentiles} > 0)",
            ).decimals(1),
            0.03,
            0.1,
        ).no_value("No percentiles")
    )


def _add_relaxation(page: Dashboard) -> None:
    page.with_row(Row("Relaxation"))
    drop = "basin_energy_drop_per_node"
    page.with_panel(
        time_series(
            "Energy drop",
            "short",
            "Per node, atom, patch or window, from the first state to the last.",
            *spread(drop, "model", _OF, 0.95),
        )
    )
    steps = rate("basin_steps_sum", "model", _OF), rate("basin_steps_count", "model", _OF)
    page.with_panel(
        time_series(
            "Steps taken",
            "short",
            "Mean, all blocks together.",
            (f"{steps[0]} / {steps[1]}", "{{model}}"),
        )
    )
    page.with_panel(
        time_series(
            "Why relaxations stopped",
            "ops",
            "Stop reasons of the dynamics.",
            (rate("basin_stops_total", "reason", _OF), "{{reason}}"),
        )
    )
    converged = rate("basin_stops_total", "model", f'{_OF}, reason="converged"')
    page.with_panel(
        time_series(
            "Converged",
            "percentunit",
            "With a tolerance all should; without one none can.",
            (f"{converged} / {rate('basin_stops_total', 'model', _OF)}", "{{model}}"),
        )
        .max(1)
        .no_value("No relaxation has converged")
    )
    page.with_panel(
        time_series(
            "Residual at the last step",
            "short",
            "|dx/dt| / |x|: small means at rest.",
            *spread("basin_residual", "model", _OF, 0.9),
        )
    )
    page.with_panel(
        time_series(
            "Acceptance of MALA",
            "percentunit",
            "Median of the mean acceptance rates of POST /sample.",
            (f"histogram_quantile(0.5, {rate('basin_acceptance_bucket', 'le')})", "median"),
        )
        .max(1)
        .no_value("No chains of MALA")
    )


def _add_inputs(page: Dashboard) -> None:
    page.with_row(Row("Inputs beside the training data"))
    below = rate("basin_energy_percentile_bucket", "model", f'{_OF}, le="50.0"')
    page.with_panel(
        time_series(
            "Below the median energy of training",
            "percentunit",
            "One half, if inputs resemble the training data.",
            (f"{below} / {_PLACED}", "{{model}}"),
        )
        .span(12)
        .max(1)
    )
    page.with_panel(
        time_series(
            "Outside the central 99 % of training",
            "percentunit",
            "One hundredth, if inputs resemble the training data.",
            (f"{_OUTSIDE} / {_PLACED}", "{{model}}"),
        )
        .span(12)
        .max(1)
        .no_value("None")
    )
