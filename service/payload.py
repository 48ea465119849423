"""Response payloads, before request id and timings are added.

Two rules hold for all responses:

- None has more than `BASIN_MAX_RESPONSE_BYTES`. `require_response_bytes` refuses it before it is
  computed where its size can be known by then.
- A large one is encoded on a codec thread (`AppContext.offload_if_large`), and its long lists part
  by part (`dump_parts`): orjson holds the GIL while it encodes, so that the event loop would stand
  still all the same. Starlette compresses large ones in threads of its own (`service.app`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import numpy as np
import orjson
import safetensors.numpy

from service.errors import make_problem
from service.imaging.encode import embed_json
from service.media_types import JSON, PNG, SAFETENSORS

_PART_ITEMS = 1024  # objects of a list that are encoded together: about a millisecond
_PART_NUMBERS = 1 << 15  # numbers of an array that are encoded together: about a millisecond


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


def require_response_bytes(size_bytes: int, limit: int, at: str, remedy: str) -> None:
    """Refuse a response that would be too large.

    Args:
        size_bytes: about how large it would be.
        limit: `max_response_bytes` of the settings.
        at: JSON pointer of what makes it large.
        remedy: what the client can do, as a sentence.

    Raises:
        Problem: `invalid-request`, `too_large`.
    """
    if size_bytes > limit:
        rule = (
            f"The response would have about {size_bytes} bytes; at most {limit} "
            f"(BASIN_MAX_RESPONSE_BYTES) are allowed. {remedy}"
        )
        raise make_problem("invalid-request", at, "too_large", rule)


def split_items(items: Iterable[Any]) -> Iterator[list[Any]]:
    """Yield the items of a long list, some at a time, for `dump_parts`."""
    rest = iter(items)
    while part := list(islice(rest, _PART_ITEMS)):
        yield part


def split_rows(array: np.ndarray) -> Iterator[np.ndarray]:
    """Yield the rows of an array, some at a time, for `dump_parts`."""
    row_numbers = max(array[:1].size, 1)
    step = max(_PART_NUMBERS // row_numbers, 1)
    for start in range(0, len(array), step):
        yield np.ascontiguousarray(array[start : start + step])


def dump_parts(parts: Iterable[Sequence[Any] | np.ndarray]) -> orjson.Fragment:
    """Encode the items of all parts as one JSON array, for a field of a document. Between parts
    other threads can run."""
    encoded = (_dumps(part)[1:-1] for part in parts)
    return orjson.Fragment(b"[%s]" % b",".join(part for part in encoded if part))


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
