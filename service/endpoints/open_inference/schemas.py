"""What the Open Inference Protocol asks and answers, typed once."""

from __future__ import annotations

from http import HTTPStatus
from typing import Annotated, Any, Literal, get_args

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from service.endpoints.common.api_docs import Responses, schema_ref
from service.endpoints.common.schemas import Strict
from service.media_types import JSON

Datatype = Literal[
    "BOOL",
    "UINT8",
    "UINT16",
    "UINT32",
    "UINT64",
    "INT8",
    "INT16",
    "INT32",
    "INT64",
    "FP16",
    "FP32",
    "FP64",
    "BYTES",
]
_TYPES = (
    *(np.bool_, np.uint8, np.uint16, np.uint32, np.uint64),
    *(np.int8, np.int16, np.int32, np.int64, np.float16, np.float32, np.float64, None),
)
DATATYPES: dict[str, type[np.generic] | None] = dict(zip(get_args(Datatype), _TYPES, strict=True))
"""Names of the protocol and their types; None: strings."""
Size = Annotated[int, Field(ge=0, le=2**40)]
Parameters = dict[str, bool | int | float | str]


class InferTensor(Strict):
    name: str = Field(max_length=64)
    shape: list[Size]
    datatype: Datatype
    parameters: Parameters = Field(
        {},
        description="`binary_data_size`: number of bytes of the tensor after the JSON part",
    )
    data: list[Any] | None = Field(None, description="elements in row-major order, flat or nested")


class WantedTensor(Strict):
    name: str = Field(max_length=64)
    parameters: Parameters = Field({}, description="`binary_data`: return this output as bytes")


class InferRequest(Strict):
    """Tensors by name, as `GET /v2/models/{name}` tells them."""

    id: str | None = Field(None, max_length=256)
    parameters: Parameters = Field(
        {},
        description="parameters of the dynamics by name, `include` as comma-separated words, and "
        "other fields of the model's route; objects as JSON. `binary_data_output`: return "
        "outputs as bytes",
    )
    inputs: list[InferTensor]
    outputs: list[WantedTensor] | None = None


class _Told(BaseModel):
    model_config = ConfigDict(protected_namespaces=())


class InferredTensor(_Told):
    name: str
    shape: list[int]
    datatype: Datatype
    parameters: dict[str, Any] | None = None
    data: list[Any] | None = None


class InferResponse(_Told):
    """`parameters` has, as JSON in `response`, what the route of the model tells besides."""

    model_name: str
    model_version: str
    id: str | None = None
    parameters: dict[str, Any]
    outputs: list[InferredTensor]


class InferError(_Told):
    error: str


class TensorMetadata(_Told):
    name: str
    datatype: Datatype
    shape: list[int] = Field(description="-1: any length")


class ModelMetadata(_Told):
    name: str
    versions: list[str]
    platform: str
    inputs: list[TensorMetadata]
    outputs: list[TensorMetadata]


class ServerMetadata(_Told):
    name: str
    version: str
    extensions: list[str]


class Live(_Told):
    live: bool


class Ready(_Told):
    ready: bool


class ModelReady(_Told):
    name: str
    ready: bool


class IndexEntry(_Told):
    name: str
    version: str
    state: str
    reason: str


def protocol_problems(*statuses: int) -> Responses:
    """`api_docs.problems`, in the form of the Open Inference Protocol."""
    content = {JSON: {"schema": schema_ref(InferError)}}
    return {
        status: {"description": HTTPStatus(status).phrase, "content": content}
        for status in statuses
    }
