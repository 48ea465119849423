"""What occlusion found, as an explanation tells it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from models.interpret import occlusion
from models.interpret.occlusion import DRAWS, Causes

_Part = Callable[[int], dict[str, Any]]


def memory_to_dict(memories: Sequence[occlusion.Memory], part: int) -> dict[str, Any]:
    block, memory = memories[part]
    return {"block": block, "memory": memory}


def causes_to_dict(causes: Causes, name: _Part) -> dict[str, Any]:
    deletion = None
    if causes.moved is not None:
        removed = len(causes.supports)
        moved = {"moved": causes.moved, "random": causes.random}
        deletion = {"removed": removed, **moved, "draws": DRAWS}
    return {
        "parts": causes.parts,
        "tried": len(causes.tried),
        "supports": [{**name(part), "effect": effect} for part, effect in causes.supports],
        "opposes": [{**name(part), "effect": effect} for part, effect in causes.opposes],
        "deletion": deletion,
    }
