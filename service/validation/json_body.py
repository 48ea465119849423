"""Parse JSON objects."""

from __future__ import annotations

from typing import Any

import orjson

from service.errors import Problem, make_problem


def parse_json_object(text: bytes, kind: str) -> dict[str, Any]:
    """Parse a JSON object.

    Raises:
        Problem: of `kind` if `text` is not JSON; `invalid-request` if it is not an object.
    """
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        # error.msg gives reason and position, and never quotes the text.
        if "infinity" in error.msg:
            detail = (
                f"A number at line {error.lineno}, column {error.colno} is too large. Send "
                "finite 64-bit numbers."
            )
            raise make_problem("invalid-request", "", "not_finite", detail) from None
        reason = error.msg.split(":")[0]
        detail = (
            f"JSON syntax error at line {error.lineno}, column {error.colno}: {reason}. NaN and "
            "Infinity are not valid JSON."
        )
        raise Problem(kind, detail) from None
    if not isinstance(value, dict):
        raise make_problem(
            "invalid-request", "", "wrong_type", "The request must be a JSON object."
        )
    return value
