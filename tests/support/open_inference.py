"""Requests of the Open Inference Protocol, by NVIDIA's client and by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from service.endpoints.open_inference.adapters import Arrays
from tests.support.checkpoints import make_sample
from tests.support.image_files import smooth

triton = pytest.importorskip("tritonclient.http")
DATATYPES = {"f": "FP32", "i": "INT64", "u": "UINT8", "b": "BOOL", "O": "BYTES"}
SMALL = smooth(20, 24)
HOLE = np.zeros((20, 24), bool)
HOLE[5:11, 6:14] = True


def inferred(
    client: Any, model: str, binary: bool, tensors: Arrays, *wanted: str, **parameters: Any
) -> Any:
    inputs = []
    for name, array in tensors.items():
        inputs.append(triton.InferInput(name, array.shape, DATATYPES[array.dtype.kind]))
        inputs[-1].set_data_from_numpy(array, binary_data=binary)
    outputs = [triton.InferRequestedOutput(name, binary_data=binary) for name in wanted]
    return client.infer(model, inputs, outputs=outputs or None, parameters=parameters or None)


def texts(*each: str) -> np.ndarray:
    return np.array([text.encode() for text in each], object)


def graph(relations: int = 1, edge_features: int = 0) -> Arrays:
    sample = make_sample(3, relations, edge_features=edge_features)
    arrays = {"x": sample.x, "edge_index": sample.edge_index}
    if sample.edge_type is not None:
        arrays["edge_type"] = sample.edge_type
    if sample.edge_attr is not None:
        arrays["edge_attr"] = sample.edge_attr
    return arrays


def as_json(tensors: Arrays, nested: bool = False, **rest: Any) -> dict[str, Any]:
    return {
        "inputs": [
            {
                "name": name,
                "shape": list(array.shape),
                "datatype": DATATYPES[array.dtype.kind],
                "data": (array if nested else array.reshape(-1)).tolist(),
            }
            for name, array in tensors.items()
        ],
        **rest,
    }
