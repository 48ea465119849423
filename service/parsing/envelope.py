"""The part of a request that pydantic validates: all but its arrays."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from service.errors import MAX_FAULTS, Fault, Problem, pointer

M = TypeVar("M", bound=BaseModel)
_CODES = {
    "missing": "missing",
    "literal_error": "not_allowed",
    "too_long": "too_long",
    "string_too_long": "too_long",
    "value_error": "conflict",
}


def validated(model: type[M], fields: Mapping[str, Any]) -> M:
    """A `model` from those of its fields that are given; null is as good as not given.

    Raises:
        Problem: `invalid-request`.
    """
    given = {name: fields[name] for name in model.model_fields if fields.get(name) is not None}
    try:
        return model.model_validate(given)
    except ValidationError as error:
        found = error.errors(include_url=False, include_context=False, include_input=False)
        raise invalid(
            Fault(pointer(*e["loc"]), _CODES.get(e["type"], _code(e["type"])), e["msg"])
            for e in found
        ) from None


def invalid(faults: Iterable[Fault]) -> Problem:
    """A request that does not fit its schema, told by its first faults."""
    first = list(faults)[:MAX_FAULTS]
    return Problem("invalid-request", first[0].detail, first)


def _code(pydantic_type: str) -> str:
    return "wrong_type" if pydantic_type.endswith("_type") else "out_of_range"
