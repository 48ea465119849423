"""What is stored, and how a state reads as such a thing again."""

from models.memories.codecs import ALPHABET, CODECS, GAP, Codec, letters_of, sequences_of
from models.memories.file import SUFFIX, Card, Kind, MemoryFileError, card_of, dump, load
from models.memories.memory import ClampedCoordinates, Memory, MemoryFault

__all__ = [
    "ALPHABET",
    "CODECS",
    "GAP",
    "SUFFIX",
    "Card",
    "ClampedCoordinates",
    "Codec",
    "Kind",
    "Memory",
    "MemoryFault",
    "MemoryFileError",
    "card_of",
    "dump",
    "letters_of",
    "load",
    "sequences_of",
]
