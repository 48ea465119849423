"""Snapshot files of stored graphs."""

from __future__ import annotations

import numpy as np
import orjson
import safetensors.numpy

from models.inputs.graph import Graph
from service.storage.graphs.base import LogContents
from service.storage.graphs.dynamic_graph import DynamicGraph, GraphSnapshot
from service.storage.graphs.update import Update


def encode_snapshot(whole: GraphSnapshot) -> bytes:
    """Serialize a graph as a safetensors file."""
    graph, ids = whole.graph, orjson.dumps(whole.node_ids)
    arrays = {
        "x": np.ascontiguousarray(graph.x),
        "edge_index": np.ascontiguousarray(graph.edge_index, np.int32),
        "node_ids": np.frombuffer(ids, np.uint8),
    }
    if graph.edge_type is not None:
        arrays["edge_type"] = np.ascontiguousarray(graph.edge_type, np.int16)
    return safetensors.numpy.save(arrays)


def restore_graph(stored: LogContents) -> DynamicGraph:
    """Restore a graph from its snapshot file and the updates since."""
    assert stored.snapshot_file is not None
    arrays = safetensors.numpy.load(stored.snapshot_file)
    relation = arrays.get("edge_type")
    graph = Graph(
        arrays["x"],
        arrays["edge_index"].astype(np.int64),
        None if relation is None else relation.astype(np.int64),
    )
    node_ids = orjson.loads(arrays["node_ids"].tobytes())
    found = DynamicGraph(
        stored.metadata.schema, GraphSnapshot(graph, node_ids, stored.metadata.since)
    )
    apply_updates(found, stored)
    return found


def apply_updates(graph: DynamicGraph, stored: LogContents) -> None:
    """Apply the updates of `stored` that `graph` does not have yet."""
    width = len(stored.metadata.features)
    for made in stored.updates:
        change = graph.plan(Update.from_json(made, width))
        if change is None:  # each was a change when it was written
            graph.revision += 1
        else:
            graph.commit(change, graph.revision + 1)
