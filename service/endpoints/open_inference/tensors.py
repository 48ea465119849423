"""Tensors of the Open Inference Protocol, in requests and responses."""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson

from service.endpoints.open_inference.schemas import (
    DATATYPES,
    InferRequest,
    InferTensor,
    Parameters,
    TensorMetadata,
    WantedTensor,
)
from service.errors import FieldError, Problem, make_problem, pointer, unknown_fields
from service.media_types import JSON
from service.payload import ResponsePayload, dump_parts, require_response_bytes, split_rows
from service.validation.arrays import (
    make_graph_problem_at,
    pointer_builder,
    require_list,
    require_types,
    reraise_as,
)
from service.validation.json_body import parse_json_object
from service.validation.schema_errors import make_request_problem, validate_fields
from service.workers.large_json import LARGE_BODY_BYTES

HEADER = "inference-header-content-length"
BINARY = "application/octet-stream"
_MAX_ENTRIES = 32  # tensors of a request, and parameters of each
_MAX_DIMS = 8
_MAX_ELEMENTS = 1 << 31
_MAX_STRINGS = 1 << 16
_IN_JSON = {"b": 6, "u": 4, "i": 12, "f": 24}  # bytes of an entry, by kind
_ITEM = struct.Struct("<I")  # length of a string


@dataclass(frozen=True)
class Inference:
    """A request: its tensors by name (BYTES as strings), its parameters, and the wanted outputs,
    each with whether it is returned as bytes; None: all outputs, by `as_bytes`."""

    id: str | None
    parameters: Parameters
    inputs: dict[str, np.ndarray]
    wanted: dict[str, bool] | None
    as_bytes: bool


def read(body: bytes, header: str | None) -> Inference:
    """Parse a request.

    Args:
        header: value of `HEADER`, the length of the JSON part; None: the whole body is JSON.

    Raises:
        Problem: the body cannot be parsed.
    """
    size = _header_size(header, len(body))
    if size > LARGE_BODY_BYTES:
        detail = (
            f"The JSON part has {size} bytes; at most {LARGE_BODY_BYTES} are allowed. Send "
            "tensors as binary data after it."
        )
        raise Problem("body-too-large", detail)
    fields = parse_json_object(body[:size], "invalid-json")
    _require_few(fields)
    asked = validate_fields(InferRequest, fields)
    rest, inputs = memoryview(body)[size:], dict[str, np.ndarray]()
    for i, tensor in enumerate(asked.inputs):
        if tensor.name in inputs:
            detail = "Two inputs have this name. Names of inputs must be unique."
            raise make_problem("invalid-request", pointer("inputs", i, "name"), "duplicate", detail)
        with reraise_as("invalid-request"):
            inputs[tensor.name], rest = _taken(tensor, rest, i)
    if rest:
        detail = (
            f"{len(rest)} bytes follow the last input. `binary_data_size` of the inputs must "
            "cover the whole body."
        )
        raise make_problem("invalid-request", "/inputs", "too_long", detail)
    by_default = asked.parameters.get("binary_data_output", False) is True
    wanted = None
    for i, each in enumerate(asked.outputs or ()):
        if "classification" in each.parameters:
            at = pointer("outputs", i, "parameters", "classification")
            detail = "The classification extension is not supported. Leave out this parameter."
            raise make_problem("invalid-request", at, "not_read", detail)
    if asked.outputs:
        wanted = {
            each.name: each.parameters.get("binary_data", by_default) is True
            for each in asked.outputs
        }
    return Inference(asked.id, asked.parameters, inputs, wanted, by_default)


def require_results_fit(
    inference: Inference, outputs: Sequence[TensorMetadata], count: int, limit: int
) -> None:
    """Refuse a response that would be too large, before it is computed.

    Args:
        outputs: of the model, each with a number for every result.
        count: number of results.
        limit: maximum bytes.
    """
    wanted = inference.wanted
    if wanted is None:
        wanted = dict.fromkeys((each.name for each in outputs), inference.as_bytes)
    sizes = {each.name: _IN_JSON[np.dtype(DATATYPES[each.datatype]).kind] for each in outputs}
    in_json = [name for name, as_bytes in wanted.items() if not as_bytes]
    _require_json_fits(count * sum(sizes.get(name, 0) for name in in_json), limit)


def _require_json_fits(size_bytes: int, limit: int) -> None:
    require_response_bytes(size_bytes, limit, "/outputs", "Ask for `binary_data`.")


def written(
    inference: Inference,
    model: str,
    version: str,
    arrays: Mapping[str, np.ndarray],
    response_json: bytes,
    limit: int,
) -> ResponsePayload:
    """Return the response with these tensors; `response_json` has all other results.

    Args:
        limit: maximum bytes of tensors in JSON.

    Raises:
        Problem: an unknown output is wanted.
    """
    wanted = inference.wanted
    if wanted is None:
        wanted = dict.fromkeys(arrays, inference.as_bytes)
    elif missing := [name for name in wanted if name not in arrays]:
        rule = f"No such output. This model has the outputs {', '.join(arrays)}."
        index = list(wanted).index(missing[0])
        raise make_problem("invalid-request", pointer("outputs", index, "name"), "unknown", rule)
    listed = [arrays[name] for name, as_bytes in wanted.items() if not as_bytes]
    _require_json_fits(sum(map(_json_bytes, listed)), limit)
    outputs, parts = list[dict[str, Any]](), list[bytes]()
    for name, as_bytes in wanted.items():
        array = arrays[name]
        entry = {"name": name, "datatype": _datatype(array), "shape": list(array.shape)}
        if as_bytes:
            parts.append(_as_bytes(array))
            entry["parameters"] = {"binary_data_size": len(parts[-1])}
        else:
            entry["data"] = dump_parts(part.tolist() for part in split_rows(array.reshape(-1)))
        outputs.append(entry)
    document = {
        "model_name": model,
        "model_version": version,
        **({} if inference.id is None else {"id": inference.id}),
        "parameters": {"response": response_json.decode()},
        "outputs": outputs,
    }
    head = orjson.dumps(document)
    if not any(wanted.values()):
        return ResponsePayload(JSON, b"", head)
    headers = ((HEADER, str(len(head))),)
    return ResponsePayload(BINARY, b"", b"".join((head, *parts)), headers=headers)


def _require_few(fields: dict[str, Any]) -> None:
    """Refuse unknown names and large lists, before validation spends time on them."""
    faults = unknown_fields(fields, InferRequest.model_fields)
    faults += _parameter_faults(fields)
    for name, shape in (("inputs", InferTensor), ("outputs", WantedTensor)):
        several = fields.get(name)
        if not isinstance(several, list):
            continue
        if len(several) > _MAX_ENTRIES:
            detail = f"At most {_MAX_ENTRIES} entries are allowed."
            raise make_problem("invalid-request", pointer(name), "too_many", detail)
        for i, each in enumerate(several):
            if isinstance(each, dict):
                faults += unknown_fields(each, shape.model_fields, name, i)
                faults += _parameter_faults(each, name, i)
                dims = each.get("shape")
                if isinstance(dims, list) and len(dims) > _MAX_DIMS:
                    at = pointer(name, i, "shape")
                    faults.append(
                        FieldError(at, "too_long", f"At most {_MAX_DIMS} dimensions are allowed.")
                    )
    if faults:
        raise make_request_problem(faults)


def _parameter_faults(fields: dict[str, Any], *where: str | int) -> list[FieldError]:
    values, at = fields.get("parameters"), pointer(*where, "parameters")
    if not isinstance(values, dict):
        return []
    if len(values) > _MAX_ENTRIES:
        return [FieldError(at, "too_many", f"At most {_MAX_ENTRIES} entries are allowed.")]
    if not all(re.fullmatch(r"\w{1,64}", name, re.ASCII) for name in values):
        return [
            FieldError(at, "not_allowed", "A parameter name has 1 to 64 letters, digits and _.")
        ]
    rule = "Must be a number, a boolean or a string."
    return [
        FieldError(f"{at}/{name}", "wrong_type", rule)
        for name, value in values.items()
        if not isinstance(value, bool | int | float | str)
    ]


def _json_bytes(array: np.ndarray) -> int:
    if array.dtype == object:
        return sum(len(text) + 4 for text in array.reshape(-1).tolist())
    return array.size * _IN_JSON[array.dtype.kind]


def _header_size(header: str | None, size: int) -> int:
    if header is None:
        return size
    if not (header.isascii() and header.isdecimal() and len(header) < 12 and int(header) <= size):
        detail = f"`{HEADER}` must be the length of the JSON part, from 0 to {size} bytes."
        raise make_problem("invalid-request", "", "out_of_range", detail)
    return int(header)


def _taken(tensor: InferTensor, rest: memoryview, i: int) -> tuple[np.ndarray, memoryview]:
    """Return the array of a tensor, and the rest of the bytes."""
    at = pointer("inputs", i)
    if math.prod(size for size in tensor.shape if size) > _MAX_ELEMENTS:
        raise make_graph_problem_at(
            f"{at}/shape", "out_of_range", f"At most {_MAX_ELEMENTS} elements are allowed."
        )
    count, size = math.prod(tensor.shape), tensor.parameters.get("binary_data_size")
    if (size is None) == (tensor.data is None):
        raise make_graph_problem_at(
            at, "one_of", "Send either `data` or the parameter `binary_data_size`."
        )
    if size is None:
        return _of_json(tensor, count, i), rest
    if type(size) is not int or not 0 <= size <= len(rest):
        rule = (
            f"Must be a number of bytes from 0 to {len(rest)}, which is what is left of the body."
        )
        raise make_graph_problem_at(f"{at}/parameters/binary_data_size", "out_of_range", rule)
    return _of_bytes(tensor, count, rest[:size], at), rest[size:]


def _of_json(tensor: InferTensor, count: int, i: int) -> np.ndarray:
    """Parse elements in row-major order, flat or nested."""
    at = pointer_builder("inputs", str(i), "data")
    flat = require_list(tensor.data, at)
    for _ in tensor.shape[1:]:
        if not flat or type(flat[0]) is not list:
            break
        require_types(flat, {list}, at, "Must be a list, as the first entry is.")
        flat = [entry for row in flat for entry in row]
    if len(flat) != count:
        detail = f"Must hold {count} entries, the product of `shape`, not {len(flat)}."
        raise make_graph_problem_at(at(), "wrong_shape", detail)
    dtype = DATATYPES[tensor.datatype]
    if dtype is None:
        require_types(flat, {str}, at, "Must be a string.")
        array = np.empty(count, object)
        array[:] = flat
        return array.reshape(tensor.shape)
    kinds = {"b": {bool}, "f": {int, float}}.get(np.dtype(dtype).kind, {int})
    require_types(flat, kinds, at, f"Must be of type {tensor.datatype}.")
    try:
        with np.errstate(over="ignore"):  # what is not finite is refused where it matters
            return np.array(flat, dtype).reshape(tensor.shape)
    except OverflowError:
        rule = f"A number is out of range for {tensor.datatype}."
        raise make_graph_problem_at(at(), "out_of_range", rule) from None


def _of_bytes(tensor: InferTensor, count: int, data: memoryview, at: str) -> np.ndarray:
    dtype = DATATYPES[tensor.datatype]
    if dtype is None:
        return np.array(_strings(data, count, at), object).reshape(tensor.shape)
    kind = np.dtype(dtype).newbyteorder("<")
    if len(data) != count * kind.itemsize:
        rule = (
            f"Must have {count * kind.itemsize} bytes for its shape and datatype, not {len(data)}."
        )
        raise make_graph_problem_at(at, "wrong_shape", rule)
    if dtype is np.bool_:  # any byte but 0 is true
        return (np.frombuffer(data, np.uint8) != 0).reshape(tensor.shape)
    return np.frombuffer(data, kind).reshape(tensor.shape)


def _strings(data: memoryview, count: int, at: str) -> list[str]:
    """Parse strings, each after its length in four bytes."""
    if count > _MAX_STRINGS or len(data) > LARGE_BODY_BYTES:
        detail = (
            f"{count} strings of {len(data)} bytes exceed the limit of {_MAX_STRINGS} strings or "
            f"{LARGE_BODY_BYTES} bytes. Send several requests."
        )
        raise make_graph_problem_at(at, "too_large", detail)
    values, start = list[str](), 0
    while start < len(data) and len(values) < count:
        end = start + _ITEM.size
        if end > len(data):
            break
        (size,) = _ITEM.unpack(data[start:end])
        start = end + size
        if start > len(data):
            break
        try:
            values.append(str(data[end:start], "utf-8"))
        except UnicodeDecodeError:
            raise make_graph_problem_at(at, "wrong_type", "Strings must be UTF-8.") from None
    if len(values) != count or start != len(data):
        raise make_graph_problem_at(
            at, "wrong_shape", f"Must hold {count} strings, each after its length as 4 bytes."
        )
    return values


def _datatype(array: np.ndarray) -> str:
    if array.dtype == object:
        return "BYTES"
    native = array.dtype.newbyteorder("=")
    return next(name for name, dtype in DATATYPES.items() if dtype is not None and native == dtype)


def _as_bytes(array: np.ndarray) -> bytes:
    if array.dtype != object:
        little = array.astype(array.dtype.newbyteorder("<"), copy=False)
        return np.ascontiguousarray(little).tobytes()
    encoded = [text.encode() for text in array.reshape(-1).tolist()]
    return b"".join(_ITEM.pack(len(text)) + text for text in encoded)
