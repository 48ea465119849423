"""Snapshot files of stored graphs."""

from __future__ import annotations

import numpy as np
import orjson
import safetensors.numpy

from models.inputs.graph import Graph
from service.storage.graphs.dynamic_graph import DynamicGraph, GraphSnapshot
from service.storage.graphs.metadata import GraphMetadata
from service.storage.graphs.stored_graph import Schema, StoredGraph
from service.storage.graphs.transaction_graph import TransactionGraph


def encode_snapshot(graph: StoredGraph) -> bytes:
    """Serialize a graph as a safetensors file."""
    if isinstance(graph, TransactionGraph):
        return graph.to_file()
    assert isinstance(graph, DynamicGraph)
    whole = graph.snapshot()
    arrays = {
        "x": np.ascontiguousarray(whole.graph.x),
        "edge_index": np.ascontiguousarray(whole.graph.edge_index, np.int32),
        "node_ids": np.frombuffer(orjson.dumps(whole.node_ids), np.uint8),
    }
    if whole.graph.edge_type is not None:
        arrays["edge_type"] = np.ascontiguousarray(whole.graph.edge_type, np.int16)
    if whole.graph.edge_attr is not None:
        arrays["edge_attr"] = np.ascontiguousarray(whole.graph.edge_attr)
    if whole.graph.labels is not None:
        arrays["labels"] = np.ascontiguousarray(whole.graph.labels)
    return safetensors.numpy.save(arrays)


def decode_snapshot(metadata: GraphMetadata, file: bytes) -> StoredGraph:
    """Restore a graph, as it was at `metadata.since`, from its snapshot file."""
    graph: StoredGraph
    if metadata.model is not None:
        graph = TransactionGraph.from_file(file, metadata.since)
    else:
        arrays = safetensors.numpy.load(file)
        relation = arrays.get("edge_type")
        whole = Graph(
            arrays["x"],
            arrays["edge_index"].astype(np.int64),
            None if relation is None else relation.astype(np.int64),
            arrays.get("edge_attr"),
            labels=arrays.get("labels"),
        )
        node_ids = orjson.loads(arrays["node_ids"].tobytes())
        schema = Schema(
            metadata.features,
            metadata.relations,
            edge_features=metadata.edge_features,
            labels=metadata.labels,
        )
        snapshot = GraphSnapshot(whole, node_ids, metadata.since)
        graph = DynamicGraph(schema, snapshot, metadata.watch)
    graph.digest = metadata.base_digest
    return graph
