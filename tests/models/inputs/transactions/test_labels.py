"""Known labels of earlier transactions as features, against a loop over all earlier rows."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from models.inputs.transactions import (
    RollingHistory,
    TransactionHistory,
    TransactionRecipe,
    Transactions,
    rolling,
)
from models.inputs.transactions import history as history_module
from models.inputs.transactions import labels as labels_module
from tests.models.inputs.transactions.test_history import (
    make_recipe,
    make_rows,
    select_recent,
)

COUNT, DELAY = 200, 30.0


def make_labelled(seed: int = 0) -> tuple[Transactions, TransactionRecipe]:
    rows = make_rows(COUNT, seed)
    labels = np.random.default_rng(seed + 1).integers(-1, 2, COUNT).astype(np.int8)
    return replace(rows, labels=labels), make_recipe(rows, label="fraud", known_after=DELAY)


def describe(recipe: TransactionRecipe, rows: Transactions) -> np.ndarray:
    history = TransactionHistory(recipe)
    history.append(rows)
    return history.x_NF


def compare_with_loop(
    recipe: TransactionRecipe, rows: Transactions, labels: np.ndarray, x_NF: np.ndarray
) -> int:
    """Compare the features of labels; `labels` (N, N) are those that row i knows of row j.

    Returns:
        how many series had a known fraud.
    """
    names, frauds_seen = recipe.features, 0
    for row in range(len(rows)):
        for view in recipe.views:
            near = np.array(select_recent(rows, row, view, recipe.memory), int)
            known = labels[row, near]
            frauds, count = int((known == 1).sum()), int((known >= 0).sum())
            expected = [np.log1p(frauds), np.log1p(count), frauds / count if count else -1.0]
            start = names.index(f"{view}_known_frauds")
            np.testing.assert_allclose(x_NF[row, start : start + 3], expected, rtol=1e-6)
            frauds_seen += frauds > 0
    return frauds_seen


def test_labels_count_once_they_are_known() -> None:
    rows, recipe = make_labelled()
    assert rows.labels is not None
    is_known = rows.time[None] + DELAY <= rows.time[:, None]
    labels = np.where(is_known, rows.labels[None], -1)
    assert compare_with_loop(recipe, rows, labels, describe(recipe, rows)) > 100


@pytest.mark.parametrize("merged", [1, 1 << 12])
def test_labels_that_come_later_count_for_the_rows_that_follow(
    merged: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(labels_module, "_MIN_MERGED", merged)
    rows, recipe = make_labelled()
    rng = np.random.default_rng(3)
    history = TransactionHistory(recipe)
    labels = np.full((COUNT, COUNT), -1)
    told: list[tuple[float, int, int, int]] = []  # known from, position, row, label
    for start in range(0, COUNT, 20):
        part = rows.take(slice(start, start + 20))
        history.append(replace(part, labels=None))
        chosen = rng.integers(0, start + 20, 30)  # some twice, some that have another label
        values = rng.integers(0, 2, 30).astype(np.int8)
        history.add_labels(chosen, values)
        told += [
            (max(rows.time[row] + DELAY, rows.time[start + 19]), start + 20, row, value)
            for row, value in zip(chosen.tolist(), values.tolist(), strict=True)
        ]
    for row in range(COUNT):
        for time, position, of, value in sorted(told, key=lambda each: each[0]):
            if time <= rows.time[row] and position <= row:
                labels[row, of] = value
    assert compare_with_loop(recipe, rows, labels, history.x_NF) > 100

    # The same from all rows and labels, as they are read back.
    again = TransactionHistory(recipe)
    again.add_known_labels(history.list_labels())
    again.append(replace(rows, labels=None))
    np.testing.assert_array_equal(again.x_NF, history.x_NF)


def test_neither_later_rows_nor_later_labels_change_a_feature() -> None:
    rows, recipe = make_labelled()
    assert rows.labels is not None
    x_NF = describe(recipe, rows)
    order = np.r_[:100, 100 + np.random.default_rng(0).permutation(100)]
    shuffled = replace(rows.take(order), time=rows.time)
    other = replace(shuffled, labels=np.r_[rows.labels[:100], 1 - abs(rows.labels[100:])])
    np.testing.assert_array_equal(describe(recipe, other)[:100], x_NF[:100])
    # Labels of rows before, which are not known at the time of row 100.
    late = rows.time + DELAY > rows.time[100]
    hidden = replace(rows, labels=np.where(late, 1, rows.labels).astype(np.int8))
    np.testing.assert_array_equal(describe(recipe, hidden)[:101], x_NF[:101])


@pytest.mark.parametrize("delay", [0.0, DELAY])
def test_parts_give_what_all_at_a_time_does(delay: float, monkeypatch: pytest.MonkeyPatch) -> None:
    rows, recipe = make_labelled(5)
    recipe = recipe.model_copy(update={"known_after": delay})
    x_NF = describe(recipe, rows)
    for size in (1, 7, 64):
        history = TransactionHistory(recipe)
        for start in range(0, COUNT, size):
            history.append(rows.take(slice(start, start + size)))
        np.testing.assert_array_equal(history.x_NF, x_NF)
    monkeypatch.setattr(history_module, "_ROWS_AT_A_TIME", 13)
    np.testing.assert_array_equal(describe(recipe, rows), x_NF)
    monkeypatch.setattr(rolling, "_MIN_EXPIRED", 1)
    moving = RollingHistory(recipe, rows, np.arange(COUNT))
    for end in range(20, COUNT + 1, 20):
        places = moving.advance(end)
        np.testing.assert_array_equal(moving.history.x_NF[places], x_NF[end - 20 : end])
    assert len(moving.history) < COUNT


def test_a_model_without_labels_reads_none() -> None:
    rows, recipe = make_labelled()
    without = make_recipe(rows)
    assert not any("known" in name for name in without.features)
    np.testing.assert_array_equal(
        describe(without, rows), describe(without, replace(rows, labels=None))
    )
    shared = [name for name in recipe.features if "_known_" not in name]
    places = [recipe.features.index(name) for name in shared]
    np.testing.assert_array_equal(describe(without, rows), describe(recipe, rows)[:, places])


def test_labels_known_only_after_the_longest_window_are_refused() -> None:
    with pytest.raises(ValueError, match=r"known after 400.*longest window"):
        make_recipe(make_rows(COUNT), label="fraud", known_after=400.0)
