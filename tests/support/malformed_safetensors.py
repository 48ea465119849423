"""Safetensors files with wrong headers, and with tensors of any bits."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from random import Random
from typing import Any

import numpy as np

from tests.support.extreme_numbers import draw_literal, dump_marked, mark

_DTYPES = (
    *("BOOL", "U8", "I8", "I16", "U16", "F16", "BF16", "I32", "U32", "F32", "F64", "I64", "U64"),
    *("F8_E4M3", "F8_E5M2", "F4", "C64", "", "f32", "F32 ", "NaN"),
)
_NUMPY = {
    **{"U8": np.uint8, "I32": np.int32, "I64": np.int64},
    **{"F16": np.float16, "F32": np.float32, "F64": np.float64},
}
_INTEGERS = ("edge_index", "edge_type", "targets", "ptr", "clamp_index")
_FIELDS = ("beta", "shape")  # lists of numbers that are not data
_SIZES = (
    0,
    0,
    1,
    2,
    3,
    5,
    1 << 31,
    1 << 32,
    1 << 62,
    (1 << 63) - 1,
    1 << 63,
    (1 << 64) - 1,
    1 << 64,
)
_BITS = {2: "<e", 4: "<f", 8: "<d"}


def make_file(tensors: Mapping[str, np.ndarray], request: bytes, rng: Random) -> bytes:
    """Write a file of `tensors`, float64 or int64, and `request` in its metadata, with one to three
    things wrong or extreme in it."""
    header: dict[str, Any] = {"__metadata__": {"request": request.decode()}}
    parts, start = list[bytes](), 0
    changed = rng.choice(list(tensors))
    for name, values in tensors.items():
        dtype = "I64" if name in _INTEGERS else "F32"
        if rng.random() < 0.2:
            dtype = rng.choice(list(_NUMPY))
        with np.errstate(all="ignore"):
            data = values.astype(np.dtype(_NUMPY[dtype]).newbyteorder("<")).tobytes()
        if name == changed and data and rng.random() < 0.5:
            data = _set_bits(data, len(data) // max(values.size, 1), rng)
        end = start + len(data)
        header[name] = {"dtype": dtype, "shape": list(values.shape), "data_offsets": [start, end]}
        parts.append(data)
        start = end
    for _ in range(rng.choice((0, 0, 0, 1, 1, 2))):
        _change_entry(header[changed], start, rng)
    if rng.random() < 0.03:
        header[changed].pop(rng.choice(list(header[changed])))
    if rng.random() < 0.1:
        number = {"a": mark(draw_literal(rng))}
        broken = ({}, [], None, {"request": 1}, {"request": "NaN"}, {"request": '{"a":'}, number)
        header["__metadata__"] = rng.choice(broken)
    text = dump_marked(header)
    if rng.random() < 0.05:  # the name a second time
        text = text[:-1] + b"," + dump_marked({changed: header[changed]})[1:]
    if rng.random() < 0.1:
        at = rng.randrange(len(text))
        text = text[:at] + bytes([text[at] ^ (1 << rng.randrange(8))]) + text[at + 1 :]
    size = len(text)
    if rng.random() < 0.04:
        size = rng.choice((0, size - 1, size + 1, 1 << 20, 100_000_001, 1 << 63, (1 << 64) - 1))
    file = struct.pack("<Q", size) + text + b"".join(parts)
    if rng.random() < 0.04:
        return file[: rng.randrange(len(file))]
    return file + b"\0" * rng.choice((0,) * 30 + (1, 8))


def _set_bits(data: bytes, item: int, rng: Random) -> bytes:
    """Set one entry, or all, to any bits or to an end of its type."""
    value = rng.randbytes(item)
    if item in _BITS and rng.random() < 0.5:
        end = rng.choice((np.inf, -np.inf, np.nan, -0.0, 6e-8, 65504.0))
        value = struct.pack(_BITS[item], end)
    if rng.random() < 0.3:
        return value * (len(data) // item)
    at = rng.randrange(len(data) // item) * item
    return data[:at] + value + data[at + item :]


def _change_entry(entry: dict[str, Any], total: int, rng: Random) -> None:
    kind = rng.random()
    if kind < 0.2:
        entry["dtype"] = rng.choice(_DTYPES)
    elif kind < 0.3:  # no entries at all, and so no bytes
        entry["shape"] = rng.sample([0, rng.choice(_SIZES)], 2)
        entry["data_offsets"] = [entry["data_offsets"][0]] * 2
    elif kind < 0.6:
        entry["shape"] = [rng.choice(_SIZES) for _ in range(rng.choice((0, 1, 2, 2, 3, 4, 40)))]
    elif kind < 0.7 and entry["shape"]:
        entry["shape"][rng.randrange(len(entry["shape"]))] = mark(draw_literal(rng))
    elif kind < 0.9:
        ends = (0, 1, total, total + 1, *_SIZES)
        entry["data_offsets"] = [rng.choice(ends), rng.choice(ends)]
    else:
        entry["data_offsets"][rng.randrange(2)] = mark(draw_literal(rng))


def split_tensors(body: dict[str, Any]) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Part a JSON body into tensors, the lists of numbers of its data, and the rest."""
    tensors, rest = dict[str, np.ndarray](), dict[str, Any]()
    whole = dict(body)
    for name in ("graph", "memory"):
        if isinstance(whole.get(name), dict):
            whole |= whole.pop(name)
    if isinstance(whole.get("graphs"), list):
        graph = whole.pop("graphs")[0]
        whole |= graph | {"ptr": [0, len(graph["x"])]}
    for name, value in whole.items():
        array = to_array(value)
        if array is None or name in _FIELDS:
            rest[name] = value
        else:
            tensors[name] = array
    return tensors, rest


def to_array(value: Any) -> np.ndarray | None:
    """Return a list of numbers, or of equally long lists of them, as an array."""
    try:
        array = np.array(value if isinstance(value, list) else None)
    except ValueError:  # lists of several lengths
        return None
    return array if array.size and array.dtype.kind in "if" else None
