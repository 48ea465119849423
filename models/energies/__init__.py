"""What is low? Scalar energies with named components and closed-form forces."""

from models.energies.associative_memory import AssociativeMemory
from models.energies.attention import Attending, DotProductAttention, VonMisesFisherAttention
from models.energies.base import Energy, Featured, Field, SumField, Terms
from models.energies.hopfield import Hopfield
from models.energies.mixture import Balanced, Sum
from models.energies.modern_hopfield import ModernHopfield

__all__ = [
    "AssociativeMemory",
    "Attending",
    "Balanced",
    "DotProductAttention",
    "Energy",
    "Featured",
    "Field",
    "Hopfield",
    "ModernHopfield",
    "Sum",
    "SumField",
    "Terms",
    "VonMisesFisherAttention",
]
