"""Answers before they are signed: all but for whom they are and how long they took."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import orjson
import safetensors.numpy

from service.imaging.encode import embed_json
from service.media_types import JSON, PNG, SAFETENSORS


@dataclass(frozen=True)
class ResponsePayload:
    """What is told, a JSON object, and perhaps the file that it goes into; or a file alone, which
    is signed by its headers.

    Signed, it is one request's own; unsigned, it can be kept for the next that asks the same,
    unless it is not `is_cacheable`: another time there might be a better one.
    """

    media_type: str
    document: bytes
    file: bytes = b""
    is_cacheable: bool = True
    phases: tuple[str, ...] = ()  # in which it was made
    headers: tuple[tuple[str, str], ...] = ()

    @property
    def size_bytes(self) -> int:
        return len(self.document) + len(self.file)

    def render(self, timings_ms: Mapping[str, float], request_id: str) -> bytes:
        """The body of the answer, which ends what it tells with these two."""
        if not self.document:
            return self.file
        took = {**dict.fromkeys(self.phases, 0.0), **timings_ms}
        signature = _dumps({"timings_ms": took, "request_id": request_id})
        told = b"".join((memoryview(self.document)[:-1], b",", memoryview(signature)[1:]))
        if self.media_type == PNG:
            return embed_json(self.file, told)
        if self.media_type == SAFETENSORS:
            return _with_metadata(self.file, {"response": told.decode()})
        return told

    def without_caching(self) -> ResponsePayload:
        """This answer, if another time there may be another."""
        return replace(self, is_cacheable=False)


def make_json_payload(told: Mapping[str, Any]) -> ResponsePayload:
    # orjson writes what is not finite as null
    return ResponsePayload(JSON, _dumps(told))


def make_tensors_payload(
    arrays: Mapping[str, np.ndarray], told: Mapping[str, Any]
) -> ResponsePayload:
    """A safetensors file of `arrays`, with all else as JSON in its metadata entry `response`."""
    return ResponsePayload(SAFETENSORS, _dumps(told), safetensors.numpy.save(dict(arrays)))


def make_image_payload(png: bytes, told: Mapping[str, Any]) -> ResponsePayload:
    """A PNG, with all else as JSON in its text chunk `basin`."""
    return ResponsePayload(PNG, _dumps(told), png)


def _with_metadata(file: bytes, metadata: dict[str, str]) -> bytes:
    """A safetensors file without metadata, given some; neither its header nor a tensor is read."""
    start = 8 + int.from_bytes(file[:8], "little")
    entries = file[9:start].rstrip()  # behind the first brace
    header = b'{"__metadata__":%s%s%s' % (_dumps(metadata), b"," * (entries != b"}"), entries)
    header += b" " * (-len(header) % 8)  # so that tensors stay aligned
    return b"".join((len(header).to_bytes(8, "little"), header, memoryview(file)[start:]))


def _dumps(value: Any) -> bytes:
    return orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY)
