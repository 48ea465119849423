"""What is stored, and how a state reads as such a thing again."""

from models.memories.codecs import CODECS, Codec, letters_of, sequences_of
from models.memories.memory import Known, Memory, MemoryFault

__all__ = ["CODECS", "Codec", "Known", "Memory", "MemoryFault", "letters_of", "sequences_of"]
