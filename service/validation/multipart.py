"""Parse multipart/form-data (RFC 7578) with few parts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from python_multipart import multipart
from python_multipart.exceptions import FormParserError

from service.errors import MAX_FIELD_ERRORS, FieldError, Problem, pointer, unknown_fields
from service.validation.schema_errors import make_request_problem

_MAX_HEADERS, _MAX_HEADER = 8, 4096  # of a part, and bytes of each
_BROKEN = "The parts do not match the boundary in Content-Type. Let an HTTP library build the body."


def parse_multipart(
    body: bytes, content_type: str, max_counts: Mapping[str, int]
) -> dict[str, list[bytes]]:
    """Return the parts of a body by name; file names and content types are ignored.

    Args:
        max_counts: maximum number of parts by name.

    Raises:
        Problem: `invalid-multipart`; `invalid-request` for an unknown name or too many parts.
    """
    boundary = multipart.parse_options_header(content_type)[1].get(b"boundary", b"")
    if not 1 <= len(boundary) <= 70:
        raise Problem(
            "invalid-multipart",
            f"Content-Type needs a `boundary` of 1 to 70 characters; this one has {len(boundary)}.",
        )
    # Checked first, because the parser visits boundaries and blanks after them byte by byte.
    line = b"\r\n--" + boundary
    max_parts = sum(max_counts.values())
    if body.count(line) > max_parts + MAX_FIELD_ERRORS:
        raise Problem("invalid-multipart", f"Too many parts: this route reads at most {max_parts}.")
    if line + b" " in body or line + b"\t" in body:
        raise Problem(
            "invalid-multipart",
            "A boundary is followed by spaces or tabs. A boundary must end its line.",
        )
    form = _Form()
    try:
        parser = multipart.MultipartParser(
            boundary, form.callbacks(), max_header_count=_MAX_HEADERS, max_header_size=_MAX_HEADER
        )
        parser.write(body)
        parser.finalize()
    except FormParserError:
        raise Problem("invalid-multipart", _BROKEN) from None
    if not form.ended:
        raise Problem(
            "invalid-multipart", "The body ends before its last boundary. Send the whole body."
        )
    parts: dict[str, list[bytes]] = defaultdict(list)
    for name, data in form.parts:
        parts[name].append(data)
    faults = unknown_fields(parts, max_counts)
    often = sorted(
        name for name in parts if len(parts[name]) > max_counts.get(name, len(form.parts))
    )
    faults += [_too_often(name, max_counts[name]) for name in often]
    if faults:
        raise make_request_problem(faults)
    return dict(parts)


def _too_often(name: str, max_count: int) -> FieldError:
    if max_count == 1:
        return FieldError(
            pointer(name), "duplicate", "The field was sent more than once. Send it once."
        )
    return FieldError(pointer(name), "too_many", f"At most {max_count} parts may have this name.")


class _Form:
    """Collects the parts from the callbacks of the parser."""

    def __init__(self) -> None:
        self.parts: list[tuple[str, bytes]] = []
        self.ended = False
        self._headers: dict[bytes, bytes] = {}
        self._field, self._value = bytearray(), bytearray()
        self._data: list[bytes] = []  # usually one piece, which is then not copied

    def callbacks(self) -> multipart.MultipartCallbacks:
        return {
            "on_part_begin": self._begin,
            "on_header_field": lambda data, start, end: self._field.extend(data[start:end]),
            "on_header_value": lambda data, start, end: self._value.extend(data[start:end]),
            "on_header_end": self._header,
            "on_part_data": lambda data, start, end: self._data.append(data[start:end]),
            "on_part_end": self._end,
            "on_end": self._finish,
        }

    def _begin(self) -> None:
        self._headers = {}
        self._data = []

    def _header(self) -> None:
        self._headers[bytes(self._field).lower()] = bytes(self._value)
        self._field, self._value = bytearray(), bytearray()

    def _end(self) -> None:
        disposition = self._headers.get(b"content-disposition", b"").decode("latin-1")
        kind, options = multipart.parse_options_header(disposition)
        if kind != b"form-data" or b"name" not in options:
            raise Problem(
                "invalid-multipart", "Every part needs a `name` in its Content-Disposition header."
            )
        transfer = self._headers.get(b"content-transfer-encoding", b"binary").strip().lower()
        if transfer not in (b"binary", b"8bit", b"7bit"):
            raise Problem(
                "invalid-multipart",
                "Unsupported Content-Transfer-Encoding of a part. Use binary, 8bit or 7bit, or "
                "leave it out.",
            )
        name = options[b"name"].decode(errors="replace")
        self.parts.append((name, b"".join(self._data)))

    def _finish(self) -> None:
        self.ended = True
