"""A graph as the file that is its base."""

from __future__ import annotations

import numpy as np
import orjson
import safetensors.numpy

from models.inputs.graph import Graph
from service.storage.graphs.base import StoredGraph
from service.storage.graphs.dynamic_graph import DynamicGraph, GraphSnapshot
from service.storage.graphs.update import Update


def dump(whole: GraphSnapshot) -> bytes:
    """As a safetensors file."""
    graph, ids = whole.graph, orjson.dumps(whole.node_ids)
    arrays = {
        "x": np.ascontiguousarray(graph.x),
        "edge_index": np.ascontiguousarray(graph.edge_index, np.int32),
        "node_ids": np.frombuffer(ids, np.uint8),
    }
    if graph.edge_type is not None:
        arrays["edge_type"] = np.ascontiguousarray(graph.edge_type, np.int16)
    return safetensors.numpy.save(arrays)


def live(stored: StoredGraph) -> DynamicGraph:
    """A graph that is stored, with all that has changed in it."""
    assert stored.base is not None
    arrays = safetensors.numpy.load(stored.base)
    relation = arrays.get("edge_type")
    graph = Graph(
        arrays["x"],
        arrays["edge_index"].astype(np.int64),
        None if relation is None else relation.astype(np.int64),
    )
    node_ids = orjson.loads(arrays["node_ids"].tobytes())
    found = DynamicGraph(stored.head.schema, GraphSnapshot(graph, node_ids, stored.head.since))
    follow(found, stored)
    return found


def follow(graph: DynamicGraph, stored: StoredGraph) -> None:
    """Make the changes in `graph` that it has not."""
    width = len(stored.head.features)
    for made in stored.updates:
        change = graph.plan(Update.loads(made, width))
        if change is None:  # each was a change when it was written
            graph.revision += 1
        else:
            graph.commit(change, graph.revision + 1)
