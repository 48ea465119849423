"""Labels of the nodes of a stored graph: what a part of it reads of them, and how they are kept."""

from __future__ import annotations

import numpy as np
import pytest

from models.inputs.graph import UNKNOWN, Graph
from models.inputs.graph_batch import pack_graphs
from models.inputs.label_columns import describe_labels
from models.inputs.neighbor_means import NeighborRule
from service.errors import Problem
from service.storage.graphs import (
    DynamicGraph,
    Edge,
    GraphMetadata,
    GraphSnapshot,
    Schema,
    Update,
    description,
)
from service.storage.graphs.snapshot_file import decode_snapshot, encode_snapshot
from service.validation.ids import NodeId
from tests.support.trees import TREES

SCHEMA = Schema(("a", "b"), ("follows", "pays"), labels=True)
RULE = NeighborRule(2, 2, undirected=True, self_loops=False, trees=TREES, labels=True)
PRIOR = 0.2
NO_ROWS = np.empty((0, 2), np.float32)


def describe(graph: Graph) -> np.ndarray:
    return describe_labels(pack_graphs([graph], num_relations=2), PRIOR).numpy()


def build(nodes: int, rng: np.random.Generator) -> DynamicGraph:
    x = rng.standard_normal((nodes, 2)).astype(np.float32)
    edges, kinds = rng.integers(0, nodes, (2, 2 * nodes)), rng.integers(0, 2, 2 * nodes)
    labels = rng.integers(-1, 2, nodes).astype(np.int8)
    snapshot = GraphSnapshot(Graph(x, edges, kinds, labels=labels), list(range(nodes)), 0)
    return DynamicGraph(SCHEMA, snapshot)


def update(graph: DynamicGraph, one: Update) -> bool:
    """Apply an update as it is kept; return whether it changed anything."""
    logged = Update.from_json(one.to_json(), 2)
    if (change := graph.plan(logged)) is None:
        return False
    graph.commit(change, graph.revision + 1)
    return True


def draw_update(graph: DynamicGraph, rng: np.random.Generator) -> Update:
    """Return one that adds and deletes a node, adds and deletes edges, and sets labels."""
    ids = graph.snapshot().node_ids
    gone, new = ids[rng.integers(len(ids))], max(int(id) for id in ids) + 1
    stay: list[NodeId] = [id for id in ids if id != gone]

    def choose() -> NodeId:
        return [*stay, new][rng.integers(len(stay) + 1)]

    edges: list[Edge] = [(choose(), choose(), int(rng.integers(2))) for _ in range(3)]
    labelled = {choose(): int(rng.integers(-1, 2)) for _ in range(3)}
    return Update(
        nodes=(new,),
        x=rng.standard_normal((1, 2)).astype(np.float32),
        edges=tuple(edges),
        delete_nodes=(gone,) if len(ids) > 10 else (),
        delete_edges=((choose(), choose(), 0),),
        labels=tuple(labelled.items()),
    )


@pytest.mark.parametrize("max_edges", [description.MAX_EDGES, 0])
def test_a_part_reads_labels_as_the_whole_graph(
    max_edges: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(description, "MAX_EDGES", max_edges)
    monkeypatch.setattr(description, "PAUSE_FACTOR", 0)
    rng = np.random.default_rng(4)
    graph = build(24, rng)
    for _ in range(25):
        assert update(graph, draw_update(graph, rng))
        whole = graph.snapshot()
        rows = {id: row for row, id in enumerate(whole.node_ids)}
        expected = describe(whole.graph)
        target = whole.node_ids[rng.integers(len(rows))]
        for hops in (0, 1, 2):
            near = graph.sample_neighborhood([target], hops, 3, 0, 99, 999, RULE)
            assert whole.graph.labels is not None
            assert near.graph.labels is not None
            places = [rows[id] for id in near.node_ids]
            assert (near.graph.labels == whole.graph.labels[places]).all()
            np.testing.assert_array_equal(describe(near.graph)[0], expected[rows[target]])
            if hops == 2:
                np.testing.assert_array_equal(describe(near.graph), expected[places])


def test_labels_are_kept() -> None:
    """In the snapshot, whatever became of the rows, and not for a network that reads none."""
    rng = np.random.default_rng(5)
    graph = build(12, rng)
    for _ in range(40):
        update(graph, draw_update(graph, rng))
    whole = graph.snapshot()
    assert whole.graph.labels is not None
    assert len(np.unique(whole.graph.labels)) == 3
    file, head = encode_snapshot(graph), GraphMetadata.from_schema(SCHEMA, 0, 0)
    for other in (graph.compacted(), decode_snapshot(head, file)):
        assert isinstance(other, DynamicGraph)
        assert other.schema == SCHEMA
        np.testing.assert_array_equal(other.snapshot().graph.labels, whole.graph.labels)
    rule = NeighborRule(2, 2, undirected=True, self_loops=False)
    near = graph.sample_neighborhood(whole.node_ids[:1], 1, 3, 0, 99, 999, rule)
    assert near.graph.labels is None
    assert near.graph.outside is not None
    assert near.graph.outside.labels is None


def test_an_update_of_labels() -> None:
    graph = build(4, np.random.default_rng(0))

    def set_label(label: int) -> bool:
        return update(graph, Update((), NO_ROWS, (), labels=((2, label),)))

    def label_of(id: NodeId) -> int:
        whole = graph.snapshot()
        assert whole.graph.labels is not None
        return int(whole.graph.labels[whole.node_ids.index(id)])

    set_label(1)
    assert label_of(2) == 1
    assert not set_label(1)  # as it is
    change = graph.plan(Update((), NO_ROWS, (), labels=((2, 0), (1, label_of(1)))))
    assert change is not None
    assert [id for id in graph.list_touched(change).node_ids if id == 2] == [2]
    assert set_label(UNKNOWN)
    assert label_of(2) == UNKNOWN
    # A node that is replaced keeps its label, one that is deleted and comes again has none.
    set_label(1)
    update(graph, Update((2,), np.ones((1, 2), np.float32), ()))
    assert label_of(2) == 1
    update(graph, Update((2,), np.ones((1, 2), np.float32), (), delete_nodes=(2,)))
    assert label_of(2) == UNKNOWN
    with pytest.raises(Problem) as refused:
        graph.plan(Update((), NO_ROWS, (), delete_nodes=(1,), labels=((3, 1), (1, 1), (9, 0))))
    assert [(f.pointer, f.code) for f in refused.value.faults] == [
        ("/labels/1", "unknown_node"),
        ("/labels/2", "unknown_node"),
    ]
