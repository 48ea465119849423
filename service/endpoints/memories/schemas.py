"""Schemas of stored memories."""

from __future__ import annotations

from pydantic import BaseModel, Field

from models.memories import MemoryCard
from service.endpoints.common.memory_schemas import InlineMemory, InlineSequences
from service.endpoints.common.schemas import Strict


class MemoryBody(MemoryCard):
    """A stored memory."""

    id: str


class MemoryList(BaseModel):
    memories: list[MemoryBody]


class StoredDescription(Strict):
    """What is known of a memory to be stored, besides its patterns."""

    licence: str = Field("", max_length=200)
    note: str = Field("", max_length=2000)


class StoreMemory(InlineMemory, StoredDescription):
    """A memory to store, from patterns."""


class StoreSequences(InlineSequences, StoredDescription):
    """A memory to store, from an alignment."""
