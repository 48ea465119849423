"""What occlusion found, as an explanation tells it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from models.interpret import occlusion
from models.interpret.occlusion import NUM_RANDOM_SETS, Attribution

_Part = Callable[[int], dict[str, Any]]


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
