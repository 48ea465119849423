"""Validate fields with a pydantic model, and convert its errors to a problem."""

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
    """Validate the fields that belong to `model`; null counts as missing.

    Args:
        where: keys and indices of `fields` in the request.

    Raises:
        Problem: `invalid-request`.
    """
    names = (field.alias or name for name, field in model.model_fields.items())
    given = {name: fields[name] for name in names if fields.get(name) is not None}
    try:
        return model.model_validate(given)
    except ValidationError as error:
        errors = error.errors(include_url=False, include_context=False, include_input=False)
        raise make_request_problem(
            FieldError(
                pointer(*where, *e["loc"]),
                _CODES.get(e["type"], _code(e["type"])),
                e["msg"].removeprefix("Value error, "),  # prefix of pydantic
            )
            for e in errors
        ) from None


def make_request_problem(faults: Iterable[FieldError]) -> Problem:
    """Return the problem of a request that does not match its schema, with its first errors."""
    first = list(faults)[:MAX_FIELD_ERRORS]
    return Problem("invalid-request", first[0].detail, first)


def _code(pydantic_type: str) -> str:
    return "wrong_type" if pydantic_type.endswith("_type") else "out_of_range"
