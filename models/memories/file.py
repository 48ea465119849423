"""A memory as a file: its items as a tensor, and a card in the metadata that says what they are.

One safetensors file holds both, so replacing it replaces them together. Nothing in it is executed.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import safetensors
import safetensors.numpy
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from models.memories.codecs import ALPHABET
from models.memories.memory import InvalidMemoryError, Memory

ITEMS, CARD = "items", "memory"
MEMORY_FILE_SUFFIX = ".safetensors"

MemoryKind = Literal["vectors", "images", "sequences", "returns"]


class MemoryFileError(Exception):
    """The file holds no memory; the message says why."""


class MemoryCard(BaseModel):
    """What a memory is."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    format: Literal[1] = 1
    kind: MemoryKind
    patterns: int = Field(description="K, how many")
    shape: tuple[int, ...] = Field(description="of one item: (D,), (H, W), (H, W, 3) or (L,)")
    dim: int = Field(description="d, width of the patterns that are sampled")
    sha256: str = Field(description="of kind and items")
    licence: str = Field("", description="under what terms the items may be used")
    note: str = Field("", description="what they are and where they come from")

    @classmethod
    def from_memory(
        cls, memory: Memory, items: np.ndarray, licence: str = "", note: str = ""
    ) -> MemoryCard:
        return cls.model_validate(
            {
                "kind": memory.codec.kind,
                "patterns": memory.num_patterns,
                "shape": items.shape[1:],
                "dim": memory.dim,
                "sha256": memory.sha256,
                "licence": licence,
                "note": note,
            }
        )


def dump_memory(items: np.ndarray, card: MemoryCard) -> bytes:
    """The file of a memory."""
    text = card.model_dump_json()
    return safetensors.numpy.save({ITEMS: np.ascontiguousarray(items)}, metadata={CARD: text})


def read_card(raw: bytes) -> MemoryCard:
    """The card of a file, without its items.

    Raises:
        MemoryFileError: there is none.
    """
    try:
        header = raw[8 : 8 + int.from_bytes(raw[:8], "little")]
        return _Header.model_validate_json(header).metadata.card()
    except ValidationError as error:
        raise MemoryFileError("the file has no card") from error


def load_memory(raw: bytes) -> tuple[MemoryCard, Memory]:
    """Read a file and build its memory again.

    Raises:
        MemoryFileError: the items are not those of the card.
    """
    card = read_card(raw)
    try:
        items = read_items(raw)
        memory = Memory.from_items(card.kind, items)
    except (
        InvalidMemoryError,
        safetensors.SafetensorError,
        KeyError,
        IndexError,
        ValueError,
    ) as error:
        raise MemoryFileError(f"the items make no memory: {error}") from error
    if MemoryCard.from_memory(memory, items, card.licence, card.note) != card:
        raise MemoryFileError("the items are not those of the card; the file was altered")
    return card, memory


def read_items(raw: bytes) -> np.ndarray:
    """The items of a file as they were stored."""
    items = safetensors.numpy.load(raw)[ITEMS]
    if items.dtype == np.uint8 and items.size and items.ndim == 2 and items.max() >= len(ALPHABET):
        raise ValueError("a letter that is none")
    return items


class _Metadata(BaseModel):
    memory: str

    def card(self) -> MemoryCard:
        return MemoryCard.model_validate_json(self.memory)


class _Header(BaseModel):
    metadata: _Metadata = Field(alias="__metadata__")
