"""Parse graphs in safetensors files: arrays as tensors, other fields as JSON in the metadata."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import orjson
import safetensors

from models.inputs.graph import Graph
from service.errors import Problem, unknown_fields
from service.validation.arrays import (
    make_graph_problem,
    make_graph_problem_at,
    pointer_builder,
    require_list,
    require_range,
    require_width,
    to_float32,
)
from service.validation.edge_features import edge_attr_from_tensor, match_edge_features
from service.validation.ids import check_targets, index_ids
from service.validation.json_graph import (
    GraphSchema,
    GraphSizeLimits,
    ParsedGraph,
    check_graph_size,
)
from service.validation.names import (
    match_features,
    match_relations,
    order_columns,
    relations_from_tensor,
)
from service.validation.node_labels import labels_from_tensor

FLOAT_DTYPES = {"F16": np.float16, "F32": np.float32, "F64": np.float64}
INTEGER_DTYPES = {"I32": np.int32, "I64": np.int64}
TensorSpec = tuple[Mapping[str, type[np.generic]], Sequence[int]]
"""Allowed element types and numbers of dimensions of a tensor."""
TensorSpecs = Mapping[str, TensorSpec]
GRAPH_TENSORS: TensorSpecs = {
    "x": (FLOAT_DTYPES, (2,)),
    "edge_index": (INTEGER_DTYPES, (2,)),
    "edge_attr": (FLOAT_DTYPES, (2,)),
    "edge_type": (INTEGER_DTYPES, (1,)),
    "targets": (INTEGER_DTYPES, (1,)),
    "labels": ({"I8": np.int8} | INTEGER_DTYPES, (1,)),
}
Tensors = dict[str, np.ndarray]
_MAX_HEADER_BYTES = 4 << 20  # parsing JSON of this size blocks other threads for 30 ms


def parse_safetensors(
    body: bytes, allowed: TensorSpecs = GRAPH_TENSORS
) -> tuple[Tensors, dict[str, str]]:
    """Return the tensors of a file by name (little-endian, as in the format), and its metadata."""
    header = _header(body)
    metadata = header.pop("__metadata__", {})
    if not isinstance(metadata, dict) or any(type(text) is not str for text in metadata.values()):
        raise Problem(
            "invalid-safetensors", "`__metadata__` must map names to text; `request` holds JSON."
        )
    # Check names first: a small header may list very many tensors.
    if faults := unknown_fields(header, allowed):
        raise make_graph_problem(faults)
    try:
        entries = safetensors.deserialize(body)
    except safetensors.SafetensorError as error:
        raise Problem(
            "invalid-safetensors",
            "The offsets or shapes of the tensors do not match the file. Write it with the "
            "safetensors library.",
        ) from error
    return {name: _array(name, entry, allowed[name]) for name, entry in entries}, metadata


def graph_from_tensors(
    tensors: Tensors,
    names: Mapping[str, Any],
    model: GraphSchema,
    limits: GraphSizeLimits,
    *,
    is_matched: bool = False,
) -> ParsedGraph:
    """Build the graph from the tensors.

    Args:
        tensors: of which `targets` are row numbers.
        names: `node_ids`, `feature_names`, `edge_feature_names` and `relation_names`, where they
            were sent.
        is_matched: columns and edge types are those of the model already.
    """
    for name in ("x", "edge_index"):
        if name not in tensors:
            raise make_graph_problem_at(f"/{name}", "missing", "This tensor is required.")
    x, edge_index = tensors["x"], tensors["edge_index"]
    if len(edge_index) != 2:
        detail = "Must have the shape (2, E): the source and the target of each edge."
        raise make_graph_problem_at("/edge_index", "wrong_shape", detail)
    num_nodes, num_edges = len(x), edge_index.shape[1]
    check_graph_size(num_nodes, num_edges, limits, "/x", "/edge_index")
    columns = match_features(
        names.get("feature_names"), model.features, pointer_builder("feature_names")
    )
    at_x, at_edges, at_attr, at_type, at_ids = map(
        pointer_builder, ("x", "edge_index", "edge_attr", "edge_type", "node_ids")
    )
    require_width(x, model.features, at_x)
    require_range(edge_index, num_nodes, at_edges, "out_of_range", "Must be a row number of `x`.")
    order = match_relations(
        names.get("relation_names"), model.relations, pointer_builder("relation_names")
    )
    if is_matched:
        order = np.arange(len(model.relations))
    edge_type = relations_from_tensor(
        tensors.get("edge_type"), model.relations, num_edges, at_type, order
    )
    targets = tensors.get("targets")
    if targets is not None:
        targets = check_targets(targets, num_nodes)
    node_ids = names.get("node_ids")
    if node_ids is not None:
        node_ids = require_list(node_ids, at_ids)
        if len(node_ids) != num_nodes:
            detail = f"Must hold one id per row of `x`: {num_nodes}, not {len(node_ids)}."
            raise make_graph_problem_at(at_ids(), "wrong_shape", detail)
        index_ids(node_ids, at_ids)
    x = order_columns(to_float32(x, at_x), columns)
    at_names = pointer_builder("edge_feature_names")
    columns = match_edge_features(names.get("edge_feature_names"), model.edge_features, at_names)
    attr = edge_attr_from_tensor(tensors.get("edge_attr"), num_edges, model.edge_features, at_attr)
    labels = labels_from_tensor(tensors.get("labels"), num_nodes)
    graph = Graph(x, edge_index, edge_type, order_columns(attr, columns), labels=labels)
    return ParsedGraph(graph, node_ids, targets)


def _header(body: bytes) -> dict[str, Any]:
    """Parse the header; the first eight bytes are its length."""
    size = int.from_bytes(body[:8], "little")
    if len(body) < 8 or size > len(body) - 8:
        raise Problem(
            "invalid-safetensors",
            f"The body has {len(body)} bytes and ends before its header does. Send the whole file.",
        )
    if size > _MAX_HEADER_BYTES:
        raise Problem(
            "invalid-safetensors",
            f"The header has {size} bytes; at most {_MAX_HEADER_BYTES} are allowed. Send node "
            "ids as a tensor or in JSON.",
        )
    try:
        header = orjson.loads(memoryview(body)[8 : 8 + size])
    except orjson.JSONDecodeError as error:
        raise Problem("invalid-safetensors", "The header is not valid JSON.") from error
    if not isinstance(header, dict):
        raise Problem("invalid-safetensors", "The header is not a JSON object.")
    return header


def _array(name: str, entry: dict[str, Any], kind: TensorSpec) -> np.ndarray:
    dtypes, dims = kind
    dtype = dtypes.get(entry["dtype"])
    if dtype is None:
        raise make_graph_problem_at(
            f"/{name}", "wrong_dtype", f"Must have the element type {' or '.join(dtypes)}."
        )
    if len(entry["shape"]) not in dims:
        rule = f"Must have {' or '.join(map(str, dims))} dimensions, not {len(entry['shape'])}."
        raise make_graph_problem_at(f"/{name}", "wrong_shape", rule)
    values = np.frombuffer(entry["data"], np.dtype(dtype).newbyteorder("<"))
    try:
        return values.reshape(entry["shape"])
    except (ValueError, OverflowError):  # no entries, but another dimension that no array has
        rule = "A dimension is too large."
        raise make_graph_problem_at(f"/{name}", "wrong_shape", rule) from None
