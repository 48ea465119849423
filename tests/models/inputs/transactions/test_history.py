"""Features and links of transactions, against a loop over all earlier rows."""

from __future__ import annotations

import numpy as np
import pytest

from models.inputs.transactions import (
    TransactionHistory,
    TransactionRecipe,
    Transactions,
    fit_recipe,
)
from models.inputs.transactions.history import TimeOrderError


def make_rows(count: int, seed: int = 0, *, accounts: bool = True) -> Transactions:
    """Transactions of 12 accounts and 4 devices; some devices are blank, some amounts missing."""
    rng = np.random.default_rng(seed)
    name = "A" if accounts else "M"
    return Transactions(
        time=np.sort(rng.integers(0, 10 * count, count)).astype(float),  # some are equal
        source=np.array([f"A{i}" for i in rng.integers(0, 12, count)], object),
        target=np.array([f"{name}{i}" for i in rng.integers(0, 12, count)], object),
        amount=np.where(rng.random(count) < 0.1, np.nan, rng.normal(20, 30, count)),
        categories={
            "device": np.array([f"d{i}" if i else "" for i in rng.integers(0, 4, count)], object),
            "kind": np.array([f"k{i}" for i in rng.integers(0, 3, count)], object),
        },
        numbers={"age": np.where(rng.random(count) < 0.2, np.nan, rng.random(count))},
    )


def make_recipe(rows: Transactions, **options: int) -> TransactionRecipe:
    return fit_recipe(
        rows,
        time="t",
        source="from",
        target="to",
        amount="sum",
        categories=["kind"],
        shared=["device"],
        calendar=False,
        windows=(50.0, 400.0),
        **options,
    )


def log_scale(value: float) -> float:
    return float(np.sign(value) * np.log1p(abs(value)))


def select_earlier(rows: Transactions, row: int, view: str) -> list[int]:
    """Rows before `row` in the series of a view, oldest first."""
    source, target, device = rows.source[row], rows.target[row], rows.categories["device"]
    return [
        i
        for i in range(row)
        if {
            "source_sent": rows.source[i] == source,
            "target_received": rows.target[i] == target,
            "pair": (rows.source[i], rows.target[i]) == (source, target),
            "source_received": rows.target[i] == source,
            "target_sent": rows.source[i] == target,
            "device": device[i] == device[row] != "",
        }[view]
    ]


def compute_series_features(
    rows: Transactions, row: int, view: str, windows: tuple[float, ...]
) -> list[float]:
    series = select_earlier(rows, row, view)
    if not series:
        return [0.0, -1.0, -1.0, 0.0] + [0.0] * 2 * len(windows)
    now, amount = rows.time[row], rows.amount[row]
    amounts = np.nan_to_num(rows.amount)
    mean = amounts[series].sum() / len(series)
    values = [
        np.log1p(len(series)),
        np.log1p(now - rows.time[series[0]]),
        np.log1p(now - rows.time[series[-1]]),
        0.0 if np.isnan(amount) else log_scale(amount) - log_scale(mean),
    ]
    for window in windows:
        inside = [i for i in series if rows.time[i] > now - window]
        values += [np.log1p(len(inside)), log_scale(amounts[inside].sum())]
    return values


@pytest.mark.parametrize("accounts", [True, False])
def test_features_equal_a_loop_over_all_earlier_rows(accounts: bool) -> None:
    rows = make_rows(200, accounts=accounts)
    recipe = make_recipe(rows)
    history = TransactionHistory(recipe)
    history.append(rows)
    assert ("source_received" in recipe.views) == accounts
    names = recipe.features
    assert history.x_NF.shape == (200, len(names))
    for row in range(200):
        for view in recipe.views:
            expected = compute_series_features(rows, row, view, recipe.windows)
            start = names.index(f"{view}_count")
            actual = history.x_NF[row, start : start + len(expected)]
            np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-5)
        payees = {rows.target[i] for i in select_earlier(rows, row, "source_sent")}
        payers = {rows.source[i] for i in select_earlier(rows, row, "target_received")}
        for name, others in (("source_targets", payees), ("target_sources", payers)):
            assert history.x_NF[row, names.index(name)] == pytest.approx(np.log1p(len(others)))


def test_row_features_are_scaled_filled_and_counted_by_category() -> None:
    rows = make_rows(300)
    recipe = make_recipe(rows)
    x = recipe.describe_rows(rows)
    names = list(recipe.row_features)
    assert recipe.with_missing == ("sum", "age")
    missing = np.isnan(rows.amount)
    assert (x[:, names.index("sum_missing")] == missing).all()
    filled = np.where(missing, np.nanmedian(rows.amount), rows.amount)
    expected = np.sign(filled) * np.log1p(np.abs(filled))
    np.testing.assert_allclose(x[:, names.index("sum")], expected, rtol=1e-6)
    kinds = x[:, [names.index(f"kind={kind}") for kind in (*recipe.categories["kind"], "other")]]
    assert (kinds.sum(1) == 1).all()
    unseen = rows.take(np.arange(3))
    unseen.categories["kind"][:] = "k99"
    assert (recipe.describe_rows(unseen)[:, names.index("kind=other")] == 1).all()


def test_the_future_changes_nothing_of_the_past() -> None:
    rows = make_rows(400)
    recipe = make_recipe(rows, hops=2)
    whole, past = TransactionHistory(recipe), TransactionHistory(recipe)
    whole.append(rows)
    shuffled = np.r_[:250, 250 + np.random.default_rng(1).permutation(150)]
    other = rows.take(shuffled)
    other.time[:] = rows.time
    past.append(other)
    np.testing.assert_array_equal(past.x_NF[:250], whole.x_NF[:250])
    for a, b in zip(
        past.collect_neighborhoods(np.arange(250)),
        whole.collect_neighborhoods(np.arange(250)),
        strict=True,
    ):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("part", [1, 7, 150])
def test_added_in_parts_is_added_whole(part: int) -> None:
    rows = make_rows(400)
    recipe = make_recipe(rows)
    whole, grown = TransactionHistory(recipe), TransactionHistory(recipe)
    whole.append(rows)
    for start in range(0, 400, part):
        grown.append(rows.take(np.arange(start, min(start + part, 400))))
    np.testing.assert_array_equal(grown.x_NF, whole.x_NF)
    every = np.arange(400)
    for a, b in zip(
        grown.collect_neighborhoods(every), whole.collect_neighborhoods(every), strict=True
    ):
        np.testing.assert_array_equal(a, b)


def test_neighborhoods_are_the_last_rows_of_each_series() -> None:
    rows = make_rows(200)
    recipe = make_recipe(rows, neighbors=2, hops=2)
    history = TransactionHistory(recipe)
    history.append(rows)
    graph, nodes, places = history.build_graph(np.arange(200))
    bounds = [*places.tolist(), len(nodes)]
    for row in range(200):
        expected, level = [row], [row]
        links = set()
        for _ in range(2):
            following = []
            for node in level:
                for view in recipe.views:
                    for earlier in select_earlier(rows, node, view)[-2:][::-1]:
                        links.add((earlier, node))
                        if earlier not in expected:
                            expected.append(earlier)
                            following.append(earlier)
            level = following
        start, stop = bounds[row], bounds[row + 1]
        assert nodes[start:stop].tolist() == expected
        inside = (graph.edge_index[0] >= start) & (graph.edge_index[0] < stop)
        ends = nodes[graph.edge_index[:, inside]]
        assert set(map(tuple, ends.T.tolist())) == links
    np.testing.assert_array_equal(graph.x, history.x_NF[nodes])


def test_a_time_before_the_last_is_refused_and_nothing_is_added() -> None:
    rows = make_rows(50)
    history = TransactionHistory(make_recipe(rows))
    history.append(rows)
    late = rows.take(np.array([49, 3]))
    with pytest.raises(TimeOrderError) as error:
        history.append(late)
    assert error.value.row == 1
    assert len(history) == 50


def test_calendar_windows_have_names_in_hours_and_days() -> None:
    rows = make_rows(60)
    recipe = fit_recipe(
        rows, time="t", source="s", target="d", amount="a", calendar=True, windows=None
    )
    assert recipe.view_features[4:] == (
        *("count_1h", "sum_1h", "count_1d", "sum_1d", "count_7d", "sum_7d"),
    )
    again = TransactionRecipe.model_validate_json(recipe.model_dump_json())
    assert again == recipe
