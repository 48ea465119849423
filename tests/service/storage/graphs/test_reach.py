"""Whose score a change may change, against the inputs of all scores before and after it."""

from __future__ import annotations

import numpy as np
import pytest

from models.inputs.graph import Graph
from models.inputs.neighbor_means import NeighborRule
from service.storage.graphs import DynamicGraph, GraphSnapshot, Schema, Update
from service.storage.graphs.dynamic_graph import Change
from service.validation.ids import NodeId
from tests.support.trees import TREES

SCHEMA = Schema(("a", "b"), ("follows", "pays"))
NODES = 40
Inputs = dict[NodeId, bytes]


def make_graph(rng: np.random.Generator, edges: int) -> DynamicGraph:
    x = rng.standard_normal((NODES, 2)).astype(np.float32)
    ends = rng.integers(0, NODES, (2, edges))
    ends[1, : edges // 4] = 0  # a hub
    graph = Graph(x, ends, rng.integers(0, 2, edges))
    return DynamicGraph(SCHEMA, GraphSnapshot(graph, [f"n{i}" for i in range(NODES)], 0))


def make_update(rng: np.random.Generator, graph: DynamicGraph) -> Update:
    """Some of: new features, a new node, new edges, edges and nodes that go."""
    whole = graph.snapshot()
    ids, edges = whole.node_ids, whole.graph.edge_index.T.tolist()

    def choose() -> NodeId:
        return ids[int(rng.integers(len(ids)))]

    what = rng.random(4) < 0.4
    deleted = (choose(),) if what[0] else ()
    rest = [node_id for node_id in ids if node_id not in deleted]
    nodes: tuple[NodeId, ...] = (rest[0], f"new{rng.integers(1000)}") if what[1] else ()
    if what[1] and deleted and rng.random() < 0.5:
        nodes = (*nodes, *deleted)  # comes back without its edges
    x = rng.standard_normal((len(nodes), 2)).astype(np.float32)
    ends = [rest[int(rng.integers(len(rest)))] for _ in range(4)]
    added = ((ends[0], ends[1], 0), (ends[2], ends[3], 1)) if what[2] else ()
    if what[1]:
        added = (*added, (nodes[1], rest[-1], 1))
    gone = ()
    if what[3] and edges:
        place = int(rng.integers(len(edges)))
        assert whole.graph.edge_type is not None
        (source, target), relation = edges[place], int(whole.graph.edge_type[place])
        gone = ((ids[source], ids[target], relation),)
    return Update(nodes, x, added, deleted, gone)


def list_inputs(graph: DynamicGraph, hops: int, max_neighbors: int, rule: NeighborRule) -> Inputs:
    """Everything that the score of each node is computed from."""
    inputs = Inputs()
    for node_id in graph.snapshot().node_ids:
        near = graph.sample_neighborhood([node_id], hops, max_neighbors, 0, 1000, 10_000, rule)
        taken, outside = near.graph, near.graph.outside
        assert outside is not None
        assert taken.edge_type is not None
        arrays = taken.x, taken.edge_index, taken.edge_type
        # A sum over neighbours depends on the order, and with it on what is inside.
        sums = outside.count, outside.sums, outside.squares
        if outside.scores is not None:
            sums = *sums, outside.scores
        rounded = [np.round(a, 8) for a in sums]
        parts = [repr(near.node_ids).encode(), *(a.tobytes() for a in (*arrays, *rounded))]
        inputs[node_id] = b"|".join(parts)
    return inputs


@pytest.mark.parametrize(
    ("rule", "hops", "max_neighbors", "edges"),
    [
        (NeighborRule(hops=0, relations=2, undirected=True, self_loops=False), 1, 3, 30),
        (NeighborRule(hops=1, relations=2, undirected=False, self_loops=False), 1, 2, 40),
        (NeighborRule(hops=2, relations=2, undirected=True, self_loops=True), 0, 5, 40),
        (NeighborRule(hops=2, relations=2, undirected=False, self_loops=False), 2, 2, 60),
        (NeighborRule(hops=1, relations=2, undirected=True, self_loops=False), 3, 100, 25),
        (NeighborRule(1, 2, undirected=True, self_loops=False, trees=TREES), 1, 2, 25),
        (NeighborRule(2, 2, True, self_loops=False, deviation_hops=2, trees=TREES), 1, 3, 25),
    ],
)
def test_a_score_that_may_change_is_found_and_most_others_are_not(
    rule: NeighborRule, hops: int, max_neighbors: int, edges: int
) -> None:
    rng = np.random.default_rng(edges)
    num_dependents = changed_count = 0
    for _ in range(12):
        graph = make_graph(rng, edges)
        touched = set[NodeId]()
        before = list_inputs(graph, hops, max_neighbors, rule)
        for _ in range(int(rng.integers(1, 4))):  # several changes are looked at together
            change = graph.plan(make_update(rng, graph))
            if change is not None:
                assert isinstance(change, Change)
                listed = graph.list_touched(change)
                graph.commit(change, graph.revision + 1)
                touched |= {*listed.node_ids, *listed.deleted}
        after = list_inputs(graph, hops, max_neighbors, rule)
        changed = {node_id for node_id, inputs in after.items() if before.get(node_id) != inputs}
        dependents = set(graph.list_dependents(touched, rule, hops, max_neighbors))
        assert changed <= dependents
        assert dependents <= after.keys()
        num_dependents, changed_count = (
            num_dependents + len(dependents),
            changed_count + len(changed),
        )
    # Exact but for what changed and came out the same, and for what earlier changes touched.
    assert num_dependents <= 1.3 * changed_count + 12


def test_all_nodes_are_found_where_all_are_new() -> None:
    graph = make_graph(np.random.default_rng(0), 20)
    rule = NeighborRule(hops=1, relations=2, undirected=True, self_loops=False)
    assert graph.list_dependents(None, rule, 1, 5) == graph.snapshot().node_ids
    assert graph.list_dependents(["unknown"], rule, 1, 5) == []
