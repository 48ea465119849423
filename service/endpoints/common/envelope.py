"""The part of a request that pydantic validates: all but its arrays."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from models.base import Config
from models.resonance import Resonance
from service.endpoints.common.schemas import Dynamics, Envelope
from service.errors import FieldError, pointer, unknown_fields
from service.settings import Settings
from service.validation.schema_errors import make_request_problem, validate_fields


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
        raise make_request_problem(faults)
    envelope = validate_fields(Envelope, fields)
    if (envelope.dynamics.steps or 0) > settings.max_steps:
        rule = f"`steps` may be at most {settings.max_steps} (BASIN_MAX_STEPS)."
        raise make_request_problem([FieldError("/dynamics/steps", "out_of_range", rule)])
    return envelope


def require_supported_params(dynamics: Dynamics, config: Config) -> None:
    """Refuse a parameter that a network of this configuration would ignore."""
    given = [name for name in sorted(config.ignored_params) if getattr(dynamics, name) is not None]
    if given:
        rule = "This model has no attention that the parameter could act on. Leave it out."
        raise make_request_problem(
            FieldError(pointer("dynamics", name), "not_read", rule) for name in given
        )
