"""Validate fields with a pydantic model, and report what is wrong as a problem document."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from service.errors import MAX_FIELD_ERRORS, FieldError, Problem, pointer

M = TypeVar("M", bound=BaseModel)


_CODES = {
    "missing": "missing",
    "literal_error": "not_allowed",
    "too_long": "too_long",
    "string_too_long": "too_long",
    "value_error": "conflict",
}


def validate_fields(model: type[M], fields: Mapping[str, Any], *where: str | int) -> M:
    """A `model` from those of its fields that are given; null is as good as not given.

    Args:
        where: keys and indices that lead to `fields` in the request.

    Raises:
        Problem: `invalid-request`.
    """
    given = {name: fields[name] for name in model.model_fields if fields.get(name) is not None}
    try:
        return model.model_validate(given)
    except ValidationError as error:
        found = error.errors(include_url=False, include_context=False, include_input=False)
        raise make_request_problem(
            FieldError(
                pointer(*where, *e["loc"]),
                _CODES.get(e["type"], _code(e["type"])),
                e["msg"].removeprefix("Value error, "),  # of rules that are ours
            )
            for e in found
        ) from None


def make_request_problem(faults: Iterable[FieldError]) -> Problem:
    """A request that does not fit its schema, told by its first faults."""
    first = list(faults)[:MAX_FIELD_ERRORS]
    return Problem("invalid-request", first[0].detail, first)


def _code(pydantic_type: str) -> str:
    return "wrong_type" if pydantic_type.endswith("_type") else "out_of_range"
