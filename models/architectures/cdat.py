"""Controlled Dynamics Attractor Transformer (Zhang et al., 2026): for anomalies, whole graphs."""

from __future__ import annotations

from typing import final

from pydantic import Field, NonNegativeInt

from models.base import Architecture, Block, Config
from models.dynamics import ControlledDynamics, EnergyLayerNorm
from models.energies import Balanced, Energy, Hopfield, Sum, VonMisesFisherAttention
from models.energies.hopfield import HopfieldKind
from models.tasks.graph_classifier import GraphClassifier, GraphConfig
from models.tasks.node_config import NodeConfig
from models.tasks.node_scorer import NodeScorer


class _Settings(Config):
    """What CDAT has beyond its task."""

    hopfield_kind: HopfieldKind = "relu"
    coupling_rank: NonNegativeInt = Field(4, description="r of eq. 8; 0 leaves W out")
    balance: float = Field(0.5, gt=0, lt=1, description="initial lambda_v of eq. 9")
    inhibition: bool = Field(True, description="False fixes omega = 0")
    locality: tuple[float, float] | None = Field(None, description="J0 and a of eq. 3")


class CDATConfig(NodeConfig, _Settings):
    """Configuration of CDAT for anomalies."""


class CDATGraphConfig(GraphConfig, _Settings):
    """Configuration of CDAT for whole graphs."""


class _Blocks(Architecture):
    """vMF attention and Hopfield energy in balance (eq. 9), controlled dynamics (eq. 4)."""

    config: _Settings  # pyright: ignore[reportIncompatibleVariableOverride]

    def build_block(self) -> Block:
        c = self.config
        attention = VonMisesFisherAttention(c.dim, c.heads, c.head_dim)
        hopfield = Hopfield(c.dim, c.memories, c.hopfield_kind)
        energy: Energy
        if c.attention and c.hopfield:
            energy = Balanced(attention, hopfield, c.balance)
        else:
            energy = Sum(*([attention] if c.attention else []), *([hopfield] if c.hopfield else []))
        motion = ControlledDynamics(c.dim, c.coupling_rank, c.inhibition, c.locality)
        return Block(energy, motion, EnergyLayerNorm(c.dim), c)


@final
class CDAT(_Blocks, NodeScorer):
    """CDAT that scores nodes."""

    name = "cdat"
    config_type = CDATConfig
    config: CDATConfig  # pyright: ignore[reportIncompatibleVariableOverride]


@final
class CDATGraph(_Blocks, GraphClassifier):
    """CDAT that classifies graphs."""

    name = "cdat-graph"
    config_type = CDATGraphConfig
    config: CDATGraphConfig  # pyright: ignore[reportIncompatibleVariableOverride]
