"""Bodies of tensors that must be refused, by what is wrong with them."""

from __future__ import annotations

import json
import struct

import numpy as np
import safetensors.numpy

from tests.support.bad_score_bodies import DEEP, SECRET, arrays, text

SAFETENSORS = "application/vnd.safetensors"


def tensors(request: object = None, **arrays) -> bytes:
    metadata = None if request is None else {"request": json.dumps(request)}
    return safetensors.numpy.save(arrays, metadata=metadata)


def raw(header: object, data: bytes = b"") -> bytes:
    encoded = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(encoded)) + encoded + data


X, EDGES = np.ones((3, 5), np.float32), np.array([[0, 1], [1, 2]])
ATTR = np.array([[1, 2], [3, 4]], np.float32)


def edge_tensors(request=None, **changes) -> bytes:
    """A good file for `et-edges`, changed."""
    good = {"x": X, "edge_index": EDGES, "edge_type": EDGES[0], "edge_attr": ATTR} | changes
    arrays = {name: array for name, array in good.items() if array is not None}
    return tensors({"model": "et-edges"} | (request or {}), **arrays)


BAD_TENSORS = {
    "no x": (tensors(edge_index=EDGES), "missing", "/x"),
    "no edges": (tensors(x=X), "missing", "/edge_index"),
    "nan": (tensors(x=np.where(X > 0, np.nan, X), edge_index=EDGES), "not_finite", "/x/0/0"),
    "beyond float32": (tensors(x=X.astype("f8") * 1e39, edge_index=EDGES), "not_finite", "/x/0/0"),
    "half infinity": (
        tensors(x=np.full((3, 5), np.inf, np.float16), edge_index=EDGES),
        "not_finite",
        "/x/0/0",
    ),
    "x of integers": (tensors(x=X.astype("i8"), edge_index=EDGES), "wrong_dtype", "/x"),
    "more columns than any array has": (
        raw(
            {
                "x": {"dtype": "F32", "shape": [0, 2**63], "data_offsets": [0, 0]},
                "edge_index": {"dtype": "I64", "shape": [2, 0], "data_offsets": [0, 0]},
            }
        ),
        "wrong_shape",
        "/x",
    ),
    "x of three dimensions": (tensors(x=X[None], edge_index=EDGES), "wrong_shape", "/x"),
    "four features": (tensors(x=X[:, :4].copy(), edge_index=EDGES), "feature_count", "/x"),
    "empty": (tensors(x=X[:0], edge_index=EDGES[:, :0].copy()), "empty", "/x"),
    "float edges": (tensors(x=X, edge_index=EDGES.astype("f4")), "wrong_dtype", "/edge_index"),
    "edges of three rows": (
        tensors(x=X, edge_index=np.zeros((3, 2), "i8")),
        "wrong_shape",
        "/edge_index",
    ),
    "edges out of range": (tensors(x=X, edge_index=EDGES + 1), "out_of_range", "/edge_index/1/1"),
    "targets": (
        tensors(x=X, edge_index=EDGES, targets=np.array([3])),
        "unknown_node",
        "/targets/0",
    ),
    "edge types": (tensors(x=X, edge_index=EDGES, edge_type=EDGES[0]), "not_read", "/edge_type"),
    "edge features": (tensors(x=X, edge_index=EDGES, edge_attr=ATTR), "not_read", "/edge_attr"),
    "edge_attr missing": (edge_tensors(edge_attr=None), "missing", "/edge_attr"),
    "edge_attr of integers": (
        edge_tensors(edge_attr=ATTR.astype("i8")),
        "wrong_dtype",
        "/edge_attr",
    ),
    "edge_attr of one dimension": (edge_tensors(edge_attr=ATTR[0]), "wrong_shape", "/edge_attr"),
    "edge_attr of too few edges": (edge_tensors(edge_attr=ATTR[:1]), "wrong_shape", "/edge_attr"),
    "edge_attr of other width": (
        edge_tensors(edge_attr=np.ones((2, 3), "f4")),
        "feature_count",
        "/edge_attr",
    ),
    "nan in edge_attr": (edge_tensors(edge_attr=ATTR * np.nan), "not_finite", "/edge_attr/0/0"),
    "edge_attr beyond float32": (
        edge_tensors(edge_attr=ATTR.astype("f8") * 1e39),
        "not_finite",
        "/edge_attr/0/0",
    ),
    "unknown edge feature": (
        edge_tensors({"edge_feature_names": ["hour", SECRET]}),
        "unknown_feature",
        "/edge_feature_names/1",
    ),
    "unknown tensor": (tensors(x=X, edge_index=EDGES, y=X), "unknown_field", "/y"),
    "bfloat16": (
        raw({"x": {"dtype": "BF16", "shape": [1, 5], "data_offsets": [0, 10]}}, bytes(10)),
        "wrong_dtype",
        "/x",
    ),
    "ids": (tensors({"node_ids": ["a"]}, x=X, edge_index=EDGES), "wrong_shape", "/node_ids"),
}


GOOD_FILE = tensors(x=X, edge_index=EDGES)
BAD_FILES = {
    "empty": b"",
    "json": text(arrays()),
    "truncated": GOOD_FILE[:-1],
    "too long": GOOD_FILE + b"!",
    "huge header": b"\xff" * 8 + GOOD_FILE[8:],
    "deep header": raw(DEEP.encode()),
    "header is a list": raw([1]),
    "offsets": raw({"x": {"dtype": "F32", "shape": [1, 5], "data_offsets": [0, 4]}}, bytes(4)),
    "shape overflows": raw(
        {"x": {"dtype": "F32", "shape": [2**63, 2**63], "data_offsets": [0, 4]}}, bytes(4)
    ),
    "tensor is text": raw({"x": SECRET}),
    "metadata is a list": raw({"__metadata__": [SECRET]}),
    "request is no text": raw({"__metadata__": {"request": 7}}),
    "request is no json": safetensors.numpy.save({"x": X}, metadata={"request": SECRET}),
}
