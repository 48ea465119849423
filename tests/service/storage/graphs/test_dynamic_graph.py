"""A graph in memory against a plain model of one, whatever is done to it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from models.inputs import neighbor_means
from models.inputs.features import NodeFeatures
from models.inputs.graph import Graph
from models.inputs.graph_batch import pack_graphs
from models.inputs.neighbor_means import NeighborRule
from service.errors import Problem
from service.storage.graphs import (
    DynamicGraph,
    Edge,
    GraphSnapshot,
    Neighborhood,
    Schema,
    Update,
    description,
)
from service.validation.ids import NodeId
from tests.support.trees import TREES

SCHEMA = Schema(("a", "b"), ("follows", "pays"))
WITH_AMOUNTS = replace(SCHEMA, edge_features=("amount", "hour"))
SCHEMAS = pytest.mark.parametrize("schema", [SCHEMA, WITH_AMOUNTS], ids=["plain", "amounts"])
IDS = [1, 2, "1", "two", "three", 6, 7]  # 1 and "1" are two nodes
MOST = 1000


@dataclass
class Model:
    """What a graph should be."""

    nodes: dict[NodeId, tuple[float, float]] = field(default_factory=dict)
    edges: dict[Edge, tuple[float, ...]] = field(default_factory=dict)  # with their features

    def apply(self, update: Update) -> bool:
        """Is it one that can be made?"""
        gone = set(update.delete_nodes)
        nodes = {id: x for id, x in self.nodes.items() if id not in gone}
        edges = {
            edge: attr
            for edge, attr in self.edges.items()
            if edge not in update.delete_edges and not gone & set(edge[:2])
        }
        nodes |= {id: tuple(x) for id, x in zip(update.nodes, update.x.tolist(), strict=True)}
        if not all(end in nodes for edge in update.edges for end in edge[:2]):
            return False
        rows = [()] * len(update.edges) if update.edge_attr is None else update.edge_attr.tolist()
        self.nodes, self.edges = (
            nodes,
            edges | dict(zip(update.edges, map(tuple, rows), strict=True)),
        )
        return True

    def around(self, targets: list[NodeId], hops: int) -> set[NodeId]:
        found = set(targets)
        for _ in range(hops):
            pairs = [(s, t) for s, t, _ in self.edges]
            found |= {t for s, t in pairs if s in found} | {s for s, t in pairs if t in found}
        return found


ids = st.sampled_from(IDS)
edges = st.lists(st.tuples(ids, ids, st.integers(0, 1)), max_size=8)


# Few, so that an edge comes again with the same ones; float32 has none of them exactly but one.
numbers = st.sampled_from([0.1, 3.7e8, -2.3, 0.5])


@st.composite
def updates(draw: st.DrawFn, schema: Schema) -> Update:
    nodes = draw(st.lists(ids, unique=True, max_size=4))
    x = np.array([[draw(st.integers(0, 3)), 0.5] for _ in nodes], np.float32).reshape(-1, 2)
    gone = draw(st.lists(ids, unique=True, max_size=2))
    new, attr = tuple(draw(edges)), None
    if schema.edge_features and new:
        attr = np.array([[draw(numbers), draw(numbers)] for _ in new], np.float32)
    return Update(tuple(nodes), x, new, tuple(gone), tuple(draw(edges)), attr)


def small(schema: Schema) -> Model:
    attr = (0.5, np.float32(0.1).item()) if schema.edge_features else ()
    return Model({1: (0.0, 0.0), "two": (1.0, 1.0)}, {(1, "two", 0): attr, (1, 1, 1): attr})


def live(model: Model, order: list[NodeId] | None = None, schema: Schema = SCHEMA) -> DynamicGraph:
    node_ids = list(model.nodes) if order is None else order
    row = {id: i for i, id in enumerate(node_ids)}
    ends = [(row[s], row[t], relation) for s, t, relation in model.edges]
    table = np.array(ends, np.int64).reshape(-1, 3).T
    x = np.array([model.nodes[id] for id in node_ids], np.float32).reshape(-1, 2)
    width = len(schema.edge_features)
    attr = np.array(list(model.edges.values()), np.float32).reshape(len(ends), width)
    graph = Graph(x, table[:2], table[2], attr)
    return DynamicGraph(schema, GraphSnapshot(graph, node_ids, 0))


def as_model(graph: Graph, node_ids: list[NodeId]) -> Model:
    assert graph.edge_type is not None
    rows = zip(*graph.edge_index.tolist(), graph.edge_type.tolist(), strict=True)
    listed = [(node_ids[s], node_ids[t], relation) for s, t, relation in rows]
    assert len(set(listed)) == len(listed)
    attr = [()] * len(listed) if graph.edge_attr is None else map(tuple, graph.edge_attr.tolist())
    nodes = dict(zip(node_ids, map(tuple, graph.x.tolist()), strict=True))
    return Model(nodes, dict(zip(listed, attr, strict=True)))


def update(graph: DynamicGraph, one: Update) -> None:
    if (change := graph.plan(one)) is not None:
        graph.commit(change, graph.revision + 1)


def assert_attr_equal(one: Graph, other: Graph) -> None:
    if one.edge_attr is None:
        assert other.edge_attr is None
    else:
        np.testing.assert_array_equal(one.edge_attr, other.edge_attr)


def describe(graph: Graph, rule: NeighborRule) -> np.ndarray:
    """The table of a network that reads neighbours by `rule`."""
    batch = pack_graphs(
        [graph],
        num_relations=rule.relations,
        undirected=rule.undirected,
        self_loops=rule.self_loops,
        edge_features=0 if graph.edge_attr is None else graph.edge_attr.shape[1],
    )
    features = NodeFeatures(
        *(2, rule.hops, 4, 4), deviation_hops=rule.deviation_hops, trees=rule.trees
    )
    table = features.compute_table(batch).numpy()
    own = features._compute_table_torch(batch)  # without what trees and edges add
    # A deviation of zero is the root of a rounding error.
    np.testing.assert_allclose(own, table[:, : own.shape[1]], rtol=0, atol=1e-7)
    return table


@SCHEMAS
@settings(deadline=None)
@given(st.booleans(), st.booleans(), st.data())
def test_nodes_are_described_as_in_the_whole_graph(
    schema: Schema, undirected: bool, self_loops: bool, data: st.DataObject
) -> None:
    several = data.draw(st.lists(updates(schema), max_size=6))
    model = small(schema)
    graph = live(model, schema=schema)
    rules = [
        NeighborRule(hops, 2, undirected, self_loops, deviation_hops)
        for hops, deviation_hops in ((0, 0), (1, 1), (3, 1), (3, 2))
    ]
    rules += [replace(rule, trees=TREES) for rule in rules[1:]]
    for one in several:
        if not model.apply(one) or not model.nodes:
            return
        update(graph, one)
        target, hops = data.draw(st.sampled_from(list(model.nodes))), data.draw(st.integers(0, 2))
        most = data.draw(st.sampled_from([1, MOST]))
        for rule in rules:
            whole = graph.snapshot()
            rows = {id: row for row, id in enumerate(whole.node_ids)}
            near = graph.sample_neighborhood([target], hops, most, 0, MOST, MOST, rule)
            expected = describe(whole.graph, rule)[[rows[id] for id in near.node_ids]]
            near_table = describe(near.graph, rule)
            np.testing.assert_allclose(near_table, expected, rtol=1e-12, atol=1e-7)
            # Bit for bit as of a graph that was built in another way, and has changed by nothing.
            other = live(model, data.draw(st.permutations(list(model.nodes))), schema)
            again = other.sample_neighborhood([target], hops, most, 0, MOST, MOST, rule)
            assert near.graph.outside is not None
            assert again.graph.outside is not None
            np.testing.assert_array_equal(near.graph.outside.sums, again.graph.outside.sums)
            np.testing.assert_array_equal(near.graph.outside.squares, again.graph.outside.squares)
            np.testing.assert_array_equal(describe(again.graph, rule), near_table)


def test_what_depends_on_too_much_is_computed_later_and_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(description, "MAX_EDGES", 0)
    now = 100.0
    monkeypatch.setattr(description.time, "monotonic", lambda: now)
    nodes: list[NodeId] = [1, 2, "1", "two", "three", 6, 7]
    model = Model(
        {id: (float(i), 0.5) for i, id in enumerate(nodes)},
        {(a, b, 0): () for a, b in pairwise(nodes)},
    )
    graph, rule = live(model), NeighborRule(3, 2, undirected=True, self_loops=False)

    def take() -> Neighborhood:
        return graph.sample_neighborhood([1], 0, MOST, 0, MOST, MOST, rule)

    def whole() -> np.ndarray:
        return describe(graph.snapshot().graph, rule)[:1]

    assert take().means_revision == 0
    graph._descriptions[rule]._due = now + 1  # nothing large is due for a second
    far = Update(("1",), np.array([[9.0, 9.0]], np.float32), ())  # two edges away
    assert model.apply(far)
    update(graph, far)
    stale = take()
    assert (stale.revision, stale.means_revision) == (1, 0)
    apart = np.abs(describe(stale.graph, rule) - whole()) > 1e-6
    assert apart.any()
    near = Update((2,), np.array([[5.0, 5.0]], np.float32), ())  # next to it, which counts
    update(graph, near)
    stale = take()
    assert stale.means_revision == 0
    np.testing.assert_allclose(describe(stale.graph, rule)[:, 3:5], whole()[:, 3:5], atol=1e-7)
    now += 1
    current = take()
    assert (current.revision, current.means_revision) == (2, 2)
    np.testing.assert_allclose(describe(current.graph, rule), whole(), atol=1e-7)
    now += 1000  # long after the pause, where all was complete
    update(graph, Update(("1",), np.array([[-7.0, 1.0]], np.float32), ()))
    current = take()
    assert (current.revision, current.means_revision) == (3, 3)
    np.testing.assert_allclose(describe(current.graph, rule), whole(), atol=1e-7)


def test_what_failed_halfway_is_computed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Model({1: (0.0, 0.5), 2: (1.0, 0.5), 3: (2.0, 0.5)}, {(1, 2, 0): (), (2, 3, 0): ()})
    graph, rule = live(model), NeighborRule(3, 2, undirected=True, self_loops=False)
    given = [1], 0, MOST, 0, MOST, MOST, rule
    graph.sample_neighborhood(*given)
    update(graph, Update((3,), np.array([[9.0, 9.0]], np.float32), ()))

    def fail(*_: object) -> None:
        raise MemoryError

    with monkeypatch.context() as patched:
        patched.setattr(neighbor_means.kernels, "average", fail)
        with pytest.raises(MemoryError):
            graph.sample_neighborhood(*given)
    near = graph.sample_neighborhood(*given)
    expected = describe(graph.snapshot().graph, rule)[:1]
    np.testing.assert_allclose(describe(near.graph, rule), expected, atol=1e-7)


@SCHEMAS
@settings(deadline=None)
@given(st.data())
def test_it_is_what_the_updates_make_of_it(schema: Schema, data: st.DataObject) -> None:
    model, width = small(schema), len(schema.edge_features)
    graph = live(model, schema=schema)
    for one in data.draw(st.lists(updates(schema), max_size=6)):
        before = as_model(graph.snapshot().graph, graph.snapshot().node_ids)
        if model.apply(one):
            update(graph, Update.from_json(one.to_json(), 2, width))  # as it is kept
            assert graph.plan(one) is None or one.delete_nodes
        else:
            with pytest.raises(Problem, match="invalid-graph"):
                graph.plan(one)
            assert as_model(graph.snapshot().graph, graph.snapshot().node_ids) == before
        whole = graph.snapshot()
        assert as_model(whole.graph, whole.node_ids) == model
        assert (graph.num_nodes, graph.num_edges) == (len(model.nodes), len(model.edges))
    if not model.nodes:
        return
    there = list(model.nodes)
    targets = data.draw(st.lists(st.sampled_from(there), min_size=1, unique=True))
    hops, most = data.draw(st.integers(0, 3)), data.draw(st.sampled_from([1, 2, MOST]))
    near = graph.sample_neighborhood(targets, hops, most, 5, MOST, MOST)
    assert near.node_ids[: len(targets)] == targets
    found = as_model(near.graph, near.node_ids)
    kept = set(near.node_ids)
    assert found.nodes == {id: model.nodes[id] for id in kept}
    assert found.edges == {edge: attr for edge, attr in model.edges.items() if {*edge[:2]} <= kept}
    everyone = model.around(targets, hops)
    assert kept == everyone if most == MOST else kept <= everyone
    # The same, bit for bit, of a graph that was built in another way.
    other = live(model, data.draw(st.permutations(there)), schema)
    again = other.sample_neighborhood(targets, hops, most, 5, MOST, MOST)
    assert again.node_ids == near.node_ids
    np.testing.assert_array_equal(again.graph.x, near.graph.x)
    np.testing.assert_array_equal(again.graph.edge_index, near.graph.edge_index)
    np.testing.assert_array_equal(again.graph.edge_type, near.graph.edge_type)
    assert_attr_equal(again.graph, near.graph)


def star(leaves: int) -> DynamicGraph:
    model = Model(dict.fromkeys(range(leaves + 1), (0.0, 0.0)))
    model.edges = {(0, i, i % 2): () for i in range(1, leaves + 1)}
    return live(model)


def test_of_many_neighbours_some_are_chosen_fairly() -> None:
    graph, counts = star(40), np.zeros(41)
    for seed in range(400):
        near = graph.sample_neighborhood([0], 1, 10, seed, MOST, MOST)
        assert len(near.node_ids) == 11
        counts[np.array(near.node_ids)] += 1
    assert counts[0] == 400
    spread = np.abs(counts[1:] - 100) / np.sqrt(400 * 0.25 * 0.75)
    assert spread.max() < 4.5


def test_a_new_edge_changes_at_most_one_of_the_chosen() -> None:
    graph = star(40)
    before = set(graph.sample_neighborhood([0], 1, 10, 0, MOST, MOST).node_ids)
    new = tuple(range(100, 110))
    for id in new:
        x = np.zeros((1, 2), np.float32)
        update(graph, Update((id,), x, ((0, id, 0),)))
        after = set(graph.sample_neighborhood([0], 1, 10, 0, MOST, MOST).node_ids)
        assert len(after) == len(before)
        assert after - before <= {id}
        before = after
    assert before & set(new)


def test_several_edges_to_one_neighbour_count_once() -> None:
    model = Model(dict.fromkeys(range(4), (0.0, 0.0)))
    edges = [(0, 1, 0), (0, 1, 1), (1, 0, 0), (1, 0, 1), (0, 0, 0), (0, 2, 0), (3, 0, 1)]
    model.edges = dict.fromkeys(edges, ())
    assert len(live(model).sample_neighborhood([0], 1, 3, 0, MOST, MOST).node_ids) == 4


def test_what_is_too_much_is_refused_and_nothing_stays_behind() -> None:
    graph = star(40)
    for _ in range(2):
        with pytest.raises(Problem) as refused:
            graph.sample_neighborhood([0], 1, MOST, 0, 20, MOST)
        assert refused.value.faults[0].code == "too_many_nodes"
    assert len(graph.sample_neighborhood([0], 1, MOST, 0, 41, MOST).node_ids) == 41
    with pytest.raises(Problem) as refused:
        graph.sample_neighborhood([0], 1, 2, 0, MOST, 19)
    assert refused.value.faults[0].code == "too_many_edges"


@pytest.mark.parametrize(("targets", "code"), [([99], "unknown_node"), ([1, 2, 1], "duplicate")])
def test_targets_are_nodes_named_once(targets: list[NodeId], code: str) -> None:
    with pytest.raises(Problem) as refused:
        star(3).sample_neighborhood(targets, 1, 5, 0, MOST, MOST)
    assert refused.value.faults[0].code == code
