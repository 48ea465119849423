"""Schemas of a memory that comes with a request."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

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


MAX_STATE = 1e6
