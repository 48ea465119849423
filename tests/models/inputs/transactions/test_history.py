"""Features and links of transactions, against a loop over all earlier rows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from models.inputs.transactions import (
    NeighborhoodTooLargeError,
    RollingHistory,
    TransactionError,
    TransactionHistory,
    TransactionRecipe,
    Transactions,
    fit_recipe,
    rolling,
)
from models.inputs.transactions import history as history_module


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


def make_recipe(rows: Transactions, **options: Any) -> TransactionRecipe:
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


def select_recent(rows: Transactions, row: int, view: str, memory: float) -> list[int]:
    oldest = rows.time[row] - memory
    return [i for i in select_earlier(rows, row, view) if rows.time[i] > oldest]


def compute_series_features(
    rows: Transactions, row: int, view: str, windows: tuple[float, ...]
) -> list[float]:
    series = select_recent(rows, row, view, windows[-1])
    now, amount = rows.time[row], rows.amount[row]
    present = [i for i in series if not np.isnan(rows.amount[i])]
    values = [-1.0, 0.0]
    if series:
        values[0] = np.log1p(now - rows.time[series[-1]])
    if present and not np.isnan(amount):
        values[1] = log_scale(amount) - log_scale(rows.amount[present].mean())
    for window in windows:
        inside = [i for i in series if rows.time[i] > now - window]
        total = np.nan_to_num(rows.amount[inside]).sum()
        values += [np.log1p(len(inside)), log_scale(float(total))]
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
            start = names.index(f"{view}_gap")
            actual = history.x_NF[row, start : start + len(expected)]
            np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-5)
        memory = recipe.memory
        payees = {rows.target[i] for i in select_recent(rows, row, "source_sent", memory)}
        payers = {rows.source[i] for i in select_recent(rows, row, "target_received", memory)}
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
@pytest.mark.parametrize("at_a_time", [4, 1000])
def test_added_in_parts_is_added_whole(
    part: int, at_a_time: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history_module, "_ROWS_AT_A_TIME", at_a_time)
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
                    for earlier in select_recent(rows, node, view, recipe.memory)[-2:][::-1]:
                        if rows.time[earlier] <= rows.time[row] - recipe.memory:
                            break
                        links.add((earlier, node))
                        if earlier not in expected:
                            expected.append(earlier)
                            following.append(earlier)
            level = following
        start, stop = bounds[row], bounds[row + 1]
        assert nodes[start:stop].tolist() == expected
        inside = (graph.edge_index[0] >= start) & (graph.edge_index[0] < stop)
        ends = nodes[graph.edge_index[:, inside]]
        assert ends.shape[1] == len(links)  # one edge for each pair
        assert set(map(tuple, ends.T.tolist())) == links
    np.testing.assert_array_equal(graph.x, history.x_NF[nodes])


@pytest.mark.parametrize("hops", [0, 1, 2])
def test_rows_beyond_the_reach_change_nothing(hops: int) -> None:
    rows = make_rows(600)
    recipe = make_recipe(rows, hops=hops)
    whole, recent = TransactionHistory(recipe), TransactionHistory(recipe)
    whole.append(rows)
    first = int((rows.time > rows.time[-1] - recipe.reach).argmax())
    assert 0 < first < 599
    recent.append(rows.take(np.arange(first, 600)))
    expected, _, _ = whole.build_graph(np.array([599]))
    actual, _, _ = recent.build_graph(np.array([599 - first]))
    np.testing.assert_allclose(actual.x, expected.x, rtol=1e-6, atol=1e-6)
    np.testing.assert_array_equal(actual.edge_index, expected.edge_index)


@pytest.mark.parametrize("hops", [0, 1, 2])
def test_a_rolling_history_forgets_what_no_score_depends_on(
    hops: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rolling, "_MIN_EXPIRED", 50)
    ordered = make_rows(1500)
    recipe = make_recipe(ordered, hops=hops)
    shuffled = ordered.take(np.random.default_rng(1).permutation(1500))
    order = np.argsort(shuffled.time, kind="stable")
    whole = TransactionHistory(recipe)
    whole.append(shuffled.take(order))
    forgetful = RollingHistory(recipe, shuffled, order)
    longest = 0
    for start in range(0, 1500, 100):
        places = forgetful.advance(start + 100)
        longest = max(longest, len(forgetful.history))
        for row, place in zip(range(start, start + 100), places, strict=True):
            expected, nodes, _ = whole.build_graph(np.array([row]))
            actual, own_nodes, _ = forgetful.history.build_graph(np.array([place]))
            np.testing.assert_allclose(actual.x, expected.x, rtol=1e-6, atol=1e-6)
            np.testing.assert_array_equal(actual.edge_index, expected.edge_index)
            np.testing.assert_array_equal(own_nodes - place, nodes - row)
    assert longest < 1000


def test_a_shared_column_may_have_any_name() -> None:
    rows = make_rows(100)
    rows = replace(rows, categories={**rows.categories, "payer": rows.categories["device"]})
    recipe = make_recipe(rows).model_copy(update={"shared": ("device", "payer")})
    history = TransactionHistory(recipe)
    history.append(rows)
    names = recipe.features
    width = len(recipe.view_features)
    ours, theirs = (names.index(f"{view}_gap") for view in ("device", "payer"))
    np.testing.assert_array_equal(
        history.x_NF[:, ours : ours + width], history.x_NF[:, theirs : theirs + width]
    )


def test_a_large_amount_leaves_nothing_behind() -> None:
    rows = make_rows(5)
    rows.source[:], rows.target[:] = "A", "B"
    rows.time[:] = 0, 1000, 1001, 1002, 1003
    rows.amount[:] = 1e12, 5, 5, 5, 5
    recipe = make_recipe(rows)
    history = TransactionHistory(recipe)
    history.append(rows)
    place = recipe.features.index("source_sent_sum_50")
    assert history.x_NF[4, place] == pytest.approx(np.log1p(15))


@pytest.mark.parametrize(
    ("column", "value", "words"), [("amount", 1e13, "sum"), ("time", 1e300, "t")]
)
def test_numbers_beyond_reason_are_refused(column: str, value: float, words: str) -> None:
    rows = make_rows(10)
    history = TransactionHistory(make_recipe(rows))
    getattr(rows, column)[7] = value
    with pytest.raises(TransactionError, match=rf"row 8, column '{words}': The value .* is beyond"):
        history.append(rows)
    assert len(history) == 0


def test_neighborhoods_beyond_a_limit_are_refused() -> None:
    rows = make_rows(200)
    history = TransactionHistory(make_recipe(rows))
    history.append(rows)
    with pytest.raises(NeighborhoodTooLargeError):
        history.build_graph(np.arange(200), max_nodes=300)


def test_a_category_called_other_shares_the_feature_of_rare_values() -> None:
    rows = make_rows(200)
    kinds = rows.categories["kind"]
    kinds[kinds == "k1"] = "other"
    recipe = make_recipe(rows)
    assert set(recipe.categories["kind"]) == {"k0", "k2"}
    other = recipe.describe_rows(rows)[:, recipe.row_features.index("kind=other")]
    np.testing.assert_array_equal(other, kinds == "other")


@pytest.mark.parametrize(
    "change", [{"source": "id"}, {"amount": "t"}, {"windows": (5.0, 1.0)}, {"windows": (0.0,)}]
)
def test_recipes_that_cannot_be_meant_are_refused(change: dict[str, object]) -> None:
    recipe = make_recipe(make_rows(50))
    with pytest.raises(ValueError, match=r"Rename|Windows"):
        TransactionRecipe.model_validate(recipe.model_dump() | change)


def test_a_time_before_the_last_is_refused_and_nothing_is_added() -> None:
    rows = make_rows(50)
    history = TransactionHistory(make_recipe(rows))
    history.append(rows)
    late = rows.take(np.array([49, 3]))
    with pytest.raises(TransactionError) as error:
        history.append(late)
    assert error.value.row == 1
    assert len(history) == 50


def test_calendar_windows_have_names_in_hours_and_days() -> None:
    rows = make_rows(60)
    recipe = fit_recipe(
        rows, time="t", source="s", target="d", amount="a", calendar=True, windows=None
    )
    assert recipe.view_features[2:4] == ("count_1h", "sum_1h")
    assert recipe.view_features[-2:] == ("count_30d", "sum_30d")
    again = TransactionRecipe.model_validate_json(recipe.model_dump_json())
    assert again == recipe
