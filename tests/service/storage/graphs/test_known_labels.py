"""Labels of stored transactions: what they change, and that they last."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from service.errors import Problem
from service.storage.graphs import NewLabels, NewTransactions, StreamSettings, TransactionGraph
from tests.support.graph_stores import play
from tests.support.transaction_graphs import AT, RECIPE, make_rows

SETTINGS = StreamSettings(
    "model",
    RECIPE.model_copy(update={"label": "fraud", "known_after": 3.0}),
    None,
    2 * RECIPE.reach,
)
COUNT = 200


def make_labelled() -> NewTransactions:
    """Rows of which the first half comes with labels."""
    rows, labels = make_rows(COUNT), np.full(COUNT, -1, np.int8)
    labels[: COUNT // 2] = np.random.default_rng(1).integers(-1, 2, COUNT // 2)
    return replace(rows, rows=replace(rows.rows, labels=labels))


def draw_labels(seed: int, end: int) -> NewLabels:
    rng = np.random.default_rng(seed)
    places = rng.choice(end, 8, replace=False).tolist()
    return NewLabels([f"t{place}" for place in places], rng.integers(0, 2, 8).astype(np.int8))


def features(graph: TransactionGraph, names: list[str]) -> np.ndarray:
    return graph.build_neighborhoods(graph.find_targets(names, AT), 10_000, AT)[0].x[: len(names)]


def test_labels_last_and_no_feature_changes(opened, monkeypatch) -> None:
    monkeypatch.setattr("service.storage.graphs.graph_cache._LOG_BYTES", 2000)
    rows = make_labelled()

    async def work() -> None:
        seen, changed = list[np.ndarray](), 0
        async with opened() as store:
            empty = TransactionGraph(SETTINGS, None, -math.inf, 0)
            await store.put("g", *await store.build(lambda: empty))
            for begin in range(0, COUNT, 10):
                part = rows.take(np.arange(begin, begin + 10))
                added = await store.add_transactions("g", SETTINGS.schema, part, scored=False)
                seen.append(features(added.graph, part.node_ids))
                labels = draw_labels(begin, begin + 10)
                head, new = await store.add_labels("g", SETTINGS.schema, labels)
                again, none = await store.add_labels("g", SETTINGS.schema, labels)
                assert (again, none) == (head, 0)
                changed += new
            assert changed > 60
            graph = await store.get_transactions("g")
            described = graph.describe(rows.node_ids)
            np.testing.assert_array_equal(features(graph, rows.node_ids), np.concatenate(seen))
        assert sum(row["fraud"] is not None for row in described) > 80
        async with opened() as store:
            graph = await store.get_transactions("g")
            assert graph.describe(rows.node_ids) == described
            np.testing.assert_array_equal(features(graph, rows.node_ids), np.concatenate(seen))

    play(work)
    frauds = [name.endswith("_known_frauds") for name in SETTINGS.recipe.features]
    assert len(frauds) == len(SETTINGS.schema.features)


def test_features_of_labels_are_those_of_a_graph_without_what_is_forgotten() -> None:
    rows = make_labelled()
    whole = TransactionGraph(replace(SETTINGS, keep=math.inf), None, -math.inf, 0)
    short = TransactionGraph(SETTINGS, None, -math.inf, 0)
    for begin in range(0, COUNT, 10):
        part = rows.take(np.arange(begin, begin + 10))
        for graph in (whole, short):
            for update in (part, draw_labels(begin, begin + 10)):
                if isinstance(update, NewLabels) and graph is short:
                    here = np.array([name in graph for name in update.node_ids])
                    names = [name for name in update.node_ids if name in graph]
                    update = NewLabels(names, update.labels[here])
                if (change := graph.plan(update)) is not None:
                    graph.commit(change, graph.revision + 1)
        short = short.compacted()
        np.testing.assert_array_equal(
            features(short, part.node_ids), features(whole, part.node_ids)
        )
    assert short.num_nodes < COUNT


def test_labels_that_do_not_fit_are_refused() -> None:
    rows = make_labelled()
    graph = TransactionGraph(SETTINGS, None, -math.inf, 0)
    change = graph.plan(rows)
    assert change is not None
    graph.commit(change, 1)
    assert rows.rows.labels is not None
    with pytest.raises(Problem) as raised:
        graph.plan(NewLabels(["t1", "other"], np.ones(2, np.int8)))
    [error] = raised.value.faults
    assert (error.pointer, error.code) == ("/labels/1/id", "unknown_node")
    changed = np.where(rows.rows.labels == 1, 0, 1).astype(np.int8)
    with pytest.raises(Problem) as raised:
        graph.plan(replace(rows, rows=replace(rows.rows, labels=changed)))
    assert raised.value.faults[0].pointer == "/transactions/0/fraud"
    assert "POST /graphs/{id}/labels" in raised.value.faults[0].detail
    # One that it had before is a repetition of the first request.
    relabelled = graph.plan(NewLabels(rows.node_ids, changed))
    assert relabelled is not None
    graph.commit(relabelled, 2)
    assert graph.plan(rows) is None
    unknown = replace(rows, rows=replace(rows.rows, labels=np.full(COUNT, -1, np.int8)))
    assert graph.plan(unknown) is None


def test_a_label_of_a_row_that_this_server_has_forgotten_changes_nothing() -> None:
    rows = make_labelled()
    graph = TransactionGraph(SETTINGS, None, -math.inf, 0)
    change = graph.plan(rows)
    assert change is not None
    graph.commit(change, 1)
    short = graph.compacted()
    assert rows.node_ids[0] not in short
    described = short.describe(rows.node_ids[-2:-1])
    # As another server logs it that has not compacted yet.
    short.apply_logged(
        NewLabels([rows.node_ids[0], rows.node_ids[-1]], np.ones(2, np.int8)).to_json()
    )
    assert short.revision == 2
    assert short.describe(rows.node_ids[-2:-1]) == described
    assert short.describe(rows.node_ids[-1:])[0]["fraud"] == 1
    restored = TransactionGraph.from_file(short.to_file(), 2)
    np.testing.assert_array_equal(
        features(restored, rows.node_ids[-5:]), features(short, rows.node_ids[-5:])
    )
