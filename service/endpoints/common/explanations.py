"""What occlusion found, in the one shape that every explanation has."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

from models.interpret import occlusion
from models.interpret.occlusion import NUM_RANDOM_SETS, Attribution
from service.validation.ids import NodeId

_Part = Callable[[int], dict[str, Any]]
_KINDS = ("neighbours", "features", "nodes", "memories")


def explanation_to_dict(
    target: NodeId,
    label: int | str,
    unit: Literal["score", "log_odds"],
    value: float,
    probability: float,
    **causes: dict[str, Any],
) -> dict[str, Any]:
    """An explanation as `reason_schemas.Explanation` has it, without a drawing.

    Args:
        causes: of `causes_to_dict`, by kind.
    """
    return {
        "method": "occlusion",
        "target": target,
        "label": label,
        "unit": unit,
        "value": value,
        "probability": probability,
        **dict.fromkeys(_KINDS),
        **causes,
        "svg": None,
    }


def memory_to_dict(memories: Sequence[occlusion.MemoryId], part: int) -> dict[str, Any]:
    block, memory = memories[part]
    return {"block": block, "memory": memory}


def causes_to_dict(causes: Attribution, name: _Part) -> dict[str, Any]:
    deletion = None
    if causes.deletion_effect is not None:
        removed = len(causes.supports)
        moved = {"moved": causes.deletion_effect, "random": causes.random_deletion_effect}
        deletion = {"removed": removed, **moved, "draws": NUM_RANDOM_SETS}
    return {
        "parts": causes.num_parts,
        "tried": len(causes.occluded),
        "supports": [{**name(part), "effect": effect} for part, effect in causes.supports],
        "opposes": [{**name(part), "effect": effect} for part, effect in causes.opposes],
        "deletion": deletion,
    }
