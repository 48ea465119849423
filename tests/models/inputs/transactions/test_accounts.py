"""Accounts as of a row, against a loop over the rows up to it."""

from __future__ import annotations

import numpy as np
import pytest
from pydantic import ValidationError

from models.checkpoint import load_checkpoint
from models.inputs.transactions import (
    NeighborhoodTooLargeError,
    RollingHistory,
    TransactionHistory,
    TransactionRecipe,
    Transactions,
    find_history_kind,
    find_last_states,
    rolling,
)
from tests.models.inputs.transactions.test_history import log_scale, make_recipe, make_rows
from tests.support.paths import CHECKPOINTS


def make_account_recipe(rows: Transactions, **options: int) -> TransactionRecipe:
    recipe = make_recipe(rows, **options)
    of_accounts = {"scores": "accounts", "accounts_pay_and_are_paid": True}
    return TransactionRecipe.model_validate(recipe.model_dump() | of_accounts)


def make_history(rows: Transactions, recipe: TransactionRecipe) -> TransactionHistory:
    history = find_history_kind(recipe)(recipe)
    history.append(rows)
    return history


def compute_features(
    rows: Transactions, account: str, row: int, windows: tuple[float, ...]
) -> list[float]:
    """The features of `account` as of `row`, by looking at every row up to it."""
    now, values = rows.time[row], list[float]()
    totals = np.zeros((2, len(windows)))
    for side, (ends, others) in enumerate(((rows.source, rows.target), (rows.target, rows.source))):
        series = [
            i for i in range(row + 1) if ends[i] == account and rows.time[i] > now - windows[-1]
        ]
        values.append(np.log1p(now - rows.time[series[-1]]) if series else -1.0)
        for w, window in enumerate(windows):
            inside = [i for i in series if rows.time[i] > now - window]
            totals[side, w] = np.nan_to_num(rows.amount[inside]).sum()
            values += [np.log1p(len(inside)), log_scale(totals[side, w])]
            values.append(np.log1p(len({others[i] for i in inside})))
            values.append(np.log1p(np.diff(rows.time[inside]).mean()) if len(inside) > 1 else -1.0)
    return [*values, *(log_scale(sent - received) for sent, received in totals.T)]


def test_features_equal_a_loop_over_all_rows_up_to_the_last_one() -> None:
    rows = make_rows(200)
    assert (rows.source == rows.target).any()  # an account may pay itself
    recipe = make_account_recipe(rows)
    history = make_history(rows, recipe)
    x = history.describe(np.arange(400))
    own = x[:, recipe.own_features]
    assert own.shape[1] == len(recipe.account_features)
    assert (x[:, 0] == 1).all()
    assert not x[:, 1 : recipe.own_features.start].any()
    for state in range(400):
        row, side = divmod(state, 2)
        account = (rows.source, rows.target)[side][row]
        expected = compute_features(rows, account, row, recipe.windows)
        np.testing.assert_allclose(own[state], expected, rtol=1e-5, atol=1e-5)


def test_an_account_is_linked_with_its_last_transactions_and_they_with_theirs() -> None:
    rows = make_rows(200)
    recipe = make_account_recipe(rows, neighbors=2)
    history = make_history(rows, recipe)
    plain = TransactionHistory(make_recipe(rows, neighbors=2))
    plain.append(rows)
    states = np.arange(100, 400)
    graph, nodes, own = history.build_graph(states)
    assert (nodes[own] == -1).all()
    assert (nodes >= 0).sum() == len(nodes) - len(own)
    source, target = graph.edge_index
    for place, state in enumerate(states):
        row, side = divmod(int(state), 2)
        account = (rows.source, rows.target)[side][row]
        oldest = rows.time[row] - recipe.memory
        first, end = own[place], np.append(own, len(nodes))[place + 1]
        linked = {int(nodes[s]) for s in source[target == first]}
        expected = set[int]()
        for ends in (rows.source, rows.target):
            series = [i for i in range(row + 1) if ends[i] == account and rows.time[i] > oldest]
            expected |= set(series[-2:])
        assert linked == expected
        for node in range(first + 1, end):
            x = graph.x[node]
            assert x[:3].tolist() == [
                *(0, rows.source[nodes[node]] == account, rows.target[nodes[node]] == account)
            ]
            np.testing.assert_array_equal(x[3 : recipe.own_features.start], plain.x_NF[nodes[node]])
            assert not x[recipe.own_features.start :].any()
            assert rows.time[nodes[node]] > oldest
            assert nodes[node] <= row
        edges = (target >= first) & (target < end)
        assert ((source[edges] > first) & (source[edges] < end)).all()
    pairs = list(zip(source.tolist(), target.tolist(), strict=True))
    assert len(set(pairs)) == len(pairs)
    with pytest.raises(NeighborhoodTooLargeError):
        history.build_graph(states, max_nodes=300)
    # What was noted on the way is forgotten.
    again, _, _ = history.build_graph(states)
    np.testing.assert_array_equal(again.edge_index, graph.edge_index)


@pytest.mark.parametrize("kept", ["shuffled", "removed"])
def test_the_future_changes_nothing_of_an_account(kept: str) -> None:
    rows = make_rows(400)
    recipe = make_account_recipe(rows, hops=2)
    shuffled = np.r_[:250, 250 + np.random.default_rng(1).permutation(150)]
    other = rows.take(shuffled)
    other.time[:] = rows.time
    whole = make_history(rows, recipe)
    past = make_history(other if kept == "shuffled" else rows.take(np.arange(250)), recipe)
    states = np.arange(500)
    expected, nodes, _ = whole.build_graph(states)
    actual, past_nodes, _ = past.build_graph(states)
    np.testing.assert_array_equal(actual.x, expected.x)
    np.testing.assert_array_equal(actual.edge_index, expected.edge_index)
    np.testing.assert_array_equal(past_nodes, nodes)


@pytest.mark.parametrize("hops", [0, 1])
def test_a_rolling_history_has_the_same_accounts(
    hops: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rolling, "_MIN_EXPIRED", 50)
    rows = make_rows(1500)
    recipe = make_account_recipe(rows, hops=hops)
    whole = make_history(rows, recipe)
    forgetful = RollingHistory(recipe, rows, np.arange(1500))
    for start in range(0, 1500, 100):
        first = forgetful.advance(start + 100)[0]
        states = 2 * start + np.arange(200)
        expected, _, _ = whole.build_graph(states)
        actual, _, _ = forgetful.history.build_graph(states + 2 * (first - start))
        np.testing.assert_allclose(actual.x, expected.x, rtol=1e-6, atol=1e-6)
        np.testing.assert_array_equal(actual.edge_index, expected.edge_index)
    assert len(forgetful.history) < 1000


def test_accounts_come_in_order_of_their_first_row_as_of_their_last() -> None:
    rows = make_rows(6)
    rows.source[:] = ["B", "A", "B", "C", "A", "A"]
    rows.target[:] = ["A", "D", "C", "A", "E", "A"]
    recipe = make_account_recipe(rows)
    order = np.array([1, 0, 2, 3, 5, 4])
    states = find_last_states(rows, order, recipe)
    assert states == {"B": 4, "A": 10, "D": 1, "C": 6, "E": 11}
    assert list(states) == ["B", "A", "D", "C", "E"]
    payers = recipe.model_copy(update={"account_sides": ("source",)})
    assert list(find_last_states(rows, order, payers)) == ["B", "A", "C"]


def test_recipes_say_what_is_scored() -> None:
    shipped = load_checkpoint(CHECKPOINTS / "cdat-payments").manifest
    assert shipped.transactions is not None
    assert shipped.transactions.scores == "transactions"
    assert shipped.transactions.features == tuple(f.name for f in shipped.features)
    rows = make_rows(100, accounts=False)
    with pytest.raises(ValidationError, match="has accounts on both sides"):
        TransactionRecipe.model_validate(make_recipe(rows).model_dump() | {"scores": "accounts"})
