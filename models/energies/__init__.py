"""What is low? Scalar energies with named components and closed-form forces."""

from models.energies.associative_memory import AssociativeMemory
from models.energies.attention import AttentionEnergy, DotProductAttention, VonMisesFisherAttention
from models.energies.base import Energy, EnergyFn, LinearFeatureEnergy, PreparedSum, Terms
from models.energies.clamped_memory import ClampedMemory
from models.energies.grid_hopfield import GridHopfield
from models.energies.hopfield import Hopfield
from models.energies.mixture import Balanced, Scaled, Sum
from models.energies.modern_hopfield import ModernHopfield

__all__ = [
    "AssociativeMemory",
    "AttentionEnergy",
    "Balanced",
    "ClampedMemory",
    "DotProductAttention",
    "Energy",
    "EnergyFn",
    "GridHopfield",
    "Hopfield",
    "LinearFeatureEnergy",
    "ModernHopfield",
    "PreparedSum",
    "Scaled",
    "Sum",
    "Terms",
    "VonMisesFisherAttention",
]
