"""Schemas of a memory that comes with a request."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pydantic import BaseModel, Field

from models.memories import Memory
from service.endpoints.common.schemas import Strict


class InlineMemory(Strict):
    """Patterns sent along. They are normalised; their lengths come back with the samples."""

    patterns: list[list[float]] = Field(min_length=1, description="one row per pattern")
    kind: Literal["vectors", "images", "returns"] = "vectors"
    shape: list[int] | None = Field(
        None,
        description="shape of an image, [H, W] or [H, W, 3], in row-major order; values from 0 to "
        "1",
    )


class InlineSequences(Strict):
    """An alignment of protein sequences; `-` or `.` is a gap."""

    sequences: list[str] = Field(min_length=1)


class MemoryRef(BaseModel):
    """The memory that a response comes from."""

    id: str | None = Field(description="null if the patterns were sent with the request")
    kind: str
    patterns: int
    dim: int
    shape: list[int]
    sha256: str

    @classmethod
    def from_memory(cls, memory: Memory, name: str | None, shape: Sequence[int]) -> MemoryRef:
        return cls(
            id=name,
            kind=memory.codec.kind,
            patterns=memory.num_patterns,
            dim=memory.dim,
            shape=list(shape),
            sha256=memory.sha256,
        )


MAX_STATE = 1e6
WORK_PER_COST = 10_000
"""Products with numbers of patterns in the time that a network takes for one step of one token."""
