"""Name, version and digest of the checkpoint that answered."""

from __future__ import annotations

from pydantic import BaseModel, Field


class ModelRef(BaseModel):
    """Which weights answered."""

    name: str
    version: str
    sha256: str = Field(description="of the manifest, which holds the hash of every file")
