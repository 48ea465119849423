"""The part of a request that pydantic validates: all but its arrays."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from models.base import Config
from models.resonance import Resonance
from service.endpoints.common.schemas import Dynamics, Envelope
from service.errors import MAX_FAULTS, Fault, Problem, pointer, unknown_fields
from service.settings import Settings

M = TypeVar("M", bound=BaseModel)
_CODES = {
    "missing": "missing",
    "literal_error": "not_allowed",
    "too_long": "too_long",
    "string_too_long": "too_long",
    "value_error": "conflict",
}


def validated(model: type[M], fields: Mapping[str, Any], *where: str | int) -> M:
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
        raise invalid(
            Fault(
                pointer(*where, *e["loc"]),
                _CODES.get(e["type"], _code(e["type"])),
                e["msg"].removeprefix("Value error, "),  # of rules that are ours
            )
            for e in found
        ) from None


def read_envelope(fields: Mapping[str, Any], known: Iterable[str], settings: Settings) -> Envelope:
    """What every request to a network has beside its data, of the `known` names it may have.

    Raises:
        Problem: `invalid-request`.
    """
    # Unknown names are found first, and counted: pydantic would report each of a million.
    faults = unknown_fields(fields, known)
    dynamics = fields.get("dynamics")
    if isinstance(dynamics, dict):
        faults += unknown_fields(dynamics, Dynamics.model_fields, "dynamics")
        resonance = dynamics.get("resonance")
        if isinstance(resonance, dict):
            faults += unknown_fields(resonance, Resonance.model_fields, "dynamics", "resonance")
    if faults:
        raise invalid(faults)
    envelope = validated(Envelope, fields)
    if (envelope.dynamics.steps or 0) > settings.max_steps:
        rule = f"at most {settings.max_steps} steps"
        raise invalid([Fault("/dynamics/steps", "out_of_range", rule)])
    return envelope


def require_read(dynamics: Dynamics, config: Config) -> None:
    """Refuse a knob that a network of this configuration would ignore."""
    given = [name for name in sorted(config.unread) if getattr(dynamics, name) is not None]
    if given:
        rule = "this model has no attention on which it could act"
        raise invalid(Fault(pointer("dynamics", name), "not_read", rule) for name in given)


def invalid(faults: Iterable[Fault]) -> Problem:
    """A request that does not fit its schema, told by its first faults."""
    first = list(faults)[:MAX_FAULTS]
    return Problem("invalid-request", first[0].detail, first)


def _code(pydantic_type: str) -> str:
    return "wrong_type" if pydantic_type.endswith("_type") else "out_of_range"
