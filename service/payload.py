"""Response payloads, before request id and timings are added."""

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
    """A JSON document, perhaps with the file that it is embedded in; or a file alone, for which
    request id and timings are in the headers.

    Without request id and timings it can be cached for equal requests, if `is_cacheable`: a result
    after a transient failure, such as a timeout, is not.
    """

    media_type: str
    document: bytes
    file: bytes = b""
    is_cacheable: bool = True
    phases: tuple[str, ...] = ()  # of the request; with zero seconds in a cached response
    headers: tuple[tuple[str, str], ...] = ()

    @property
    def size_bytes(self) -> int:
        return len(self.document) + len(self.file)

    def render(self, timings_ms: Mapping[str, float], request_id: str) -> bytes:
        """Return the body of the response, with both arguments at the end of the document."""
        if not self.document:
            return self.file
        took = {**dict.fromkeys(self.phases, 0.0), **timings_ms}
        tail = _dumps({"timings_ms": took, "request_id": request_id})
        document = b"".join((memoryview(self.document)[:-1], b",", memoryview(tail)[1:]))
        if self.media_type == PNG:
            return embed_json(self.file, document)
        if self.media_type == SAFETENSORS:
            return _with_metadata(self.file, {"response": document.decode()})
        return document

    def without_caching(self) -> ResponsePayload:
        """Return the payload with `is_cacheable` off."""
        return replace(self, is_cacheable=False)


def make_json_payload(document: Mapping[str, Any]) -> ResponsePayload:
    # orjson writes NaN and infinities as null
    return ResponsePayload(JSON, _dumps(document))


def make_tensors_payload(
    arrays: Mapping[str, np.ndarray], document: Mapping[str, Any]
) -> ResponsePayload:
    """Make a safetensors file of `arrays`, with `document` as JSON in the metadata (`response`)."""
    return ResponsePayload(SAFETENSORS, _dumps(document), safetensors.numpy.save(dict(arrays)))


def make_image_payload(png: bytes, document: Mapping[str, Any]) -> ResponsePayload:
    """Make a PNG with `document` as JSON in its text chunk `basin`."""
    return ResponsePayload(PNG, _dumps(document), png)


def _with_metadata(file: bytes, metadata: dict[str, str]) -> bytes:
    """Add metadata to a safetensors file that has none, without parsing its header."""
    start = 8 + int.from_bytes(file[:8], "little")
    entries = file[9:start].rstrip()  # behind the first brace
    header = b'{"__metadata__":%s%s%s' % (_dumps(metadata), b"," * (entries != b"}"), entries)
    header += b" " * (-len(header) % 8)  # so that tensors stay aligned
    return b"".join((len(header).to_bytes(8, "little"), header, memoryview(file)[start:]))


def _dumps(value: Any) -> bytes:
    return orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY)
