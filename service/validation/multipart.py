"""multipart/form-data (RFC 7578): few parts, each under its own name."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from python_multipart import multipart
from python_multipart.exceptions import FormParserError

from service.errors import MAX_FIELD_ERRORS, FieldError, Problem, pointer, unknown_fields
from service.validation.schema_errors import make_request_problem

_MAX_HEADERS, _MAX_HEADER = 8, 4096  # of a part, and bytes of each
_BROKEN = "its parts do not follow from its boundary"


def parse_multipart(
    body: bytes, content_type: str, most: Mapping[str, int]
) -> dict[str, list[bytes]]:
    """The parts of a body by name. What they call themselves otherwise (file name, type) is not
    looked at.

    Args:
        most: how often each name may come.

    Raises:
        Problem: `invalid-multipart`; `invalid-request` for a name that is not there or comes too
            often.
    """
    boundary = multipart.parse_options_header(content_type)[1].get(b"boundary", b"")
    if not 1 <= len(boundary) <= 70:
        raise Problem(
            "invalid-multipart", "the content type needs a boundary of 1 to 70 characters"
        )
    # Before the parser, which goes over boundaries and blanks after them byte by byte.
    line = b"\r\n--" + boundary
    if body.count(line) > sum(most.values()) + MAX_FIELD_ERRORS:
        raise Problem("invalid-multipart", f"there are {sum(most.values())} parts at most")
    if line + b" " in body or line + b"\t" in body:
        raise Problem("invalid-multipart", "boundaries end their lines")
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
        raise Problem("invalid-multipart", "the body ends before its last boundary")
    parts: dict[str, list[bytes]] = defaultdict(list)
    for name, data in form.parts:
        parts[name].append(data)
    faults = unknown_fields(parts, most)
    often = sorted(name for name in parts if len(parts[name]) > most.get(name, len(form.parts)))
    faults += [_too_often(name, most[name]) for name in often]
    if faults:
        raise make_request_problem(faults)
    return dict(parts)


def _too_often(name: str, most: int) -> FieldError:
    if most == 1:
        return FieldError(pointer(name), "duplicate", "give it once")
    return FieldError(pointer(name), "too_many", f"at most {most}")


class _Form:
    """Collects the parts as the parser finds them."""

    def __init__(self) -> None:
        self.parts: list[tuple[str, bytes]] = []
        self.ended = False
        self._headers: dict[bytes, bytes] = {}
        self._field, self._value = bytearray(), bytearray()
        self._data: list[bytes] = []  # one piece as a rule, which is then not copied again

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
        told = self._headers.get(b"content-disposition", b"").decode("latin-1")
        kind, options = multipart.parse_options_header(told)
        if kind != b"form-data" or b"name" not in options:
            raise Problem("invalid-multipart", "every part needs a name in its content-disposition")
        transfer = self._headers.get(b"content-transfer-encoding", b"binary").strip().lower()
        if transfer not in (b"binary", b"8bit", b"7bit"):
            raise Problem("invalid-multipart", "parts come as they are, not encoded for transfer")
        name = options[b"name"].decode(errors="replace")
        self.parts.append((name, b"".join(self._data)))

    def _finish(self) -> None:
        self.ended = True
