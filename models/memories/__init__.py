"""What is stored, and how a state reads as such a thing again."""

from models.memories.codecs import ALPHABET, CODECS, GAP, Codec, decode_letters, encode_letters
from models.memories.file import (
    MEMORY_FILE_SUFFIX,
    MemoryCard,
    MemoryFileError,
    MemoryKind,
    dump_memory,
    load_memory,
    read_card,
)
from models.memories.memory import ClampedCoordinates, InvalidMemoryError, Memory

__all__ = [
    "ALPHABET",
    "CODECS",
    "GAP",
    "MEMORY_FILE_SUFFIX",
    "ClampedCoordinates",
    "Codec",
    "InvalidMemoryError",
    "Memory",
    "MemoryCard",
    "MemoryFileError",
    "MemoryKind",
    "decode_letters",
    "dump_memory",
    "encode_letters",
    "load_memory",
    "read_card",
]
