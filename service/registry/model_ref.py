"""Name, version and hash of a checkpoint."""

from __future__ import annotations

from pydantic import BaseModel, Field


class ModelRef(BaseModel):
    """The checkpoint that computed a response."""

    name: str
    version: str
    sha256: str = Field(description="of the manifest, which holds the hash of every file")
