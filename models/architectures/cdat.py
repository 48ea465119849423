"""Controlled Dynamics Attractor Transformer (Zhang et al., 2026) for anomalies in graphs."""

from __future__ import annotations

from typing import final

from pydantic import Field, NonNegativeInt

from models.contract import Block
from models.dynamics import ControlledDynamics, LayerNorm
from models.energies import Balanced, Energy, Hopfield, Sum, VonMisesFisherAttention
from models.energies.hopfield import Kind
from models.node_scorer import NodeConfig, NodeScorer


class CDATConfig(NodeConfig):
    """Configuration of CDAT."""

    hopfield_kind: Kind = "relu"
    coupling_rank: NonNegativeInt = Field(4, description="r of eq. 8; 0 leaves W out")
    balance: float = Field(0.5, gt=0, lt=1, description="initial lambda_v of eq. 9")
    inhibition: bool = Field(True, description="False fixes omega = 0")
    locality: tuple[float, float] | None = Field(None, description="J0 and a of eq. 3")


@final
class CDAT(NodeScorer):
    """vMF attention and Hopfield energy in balance (eq. 9), controlled dynamics (eq. 4)."""

    name = "cdat"
    config_type = CDATConfig
    config: CDATConfig  # pyright: ignore[reportIncompatibleVariableOverride]

    def block(self) -> Block:
        c = self.config
        attention = VonMisesFisherAttention(c.dim, c.heads, c.head_dim)
        hopfield = Hopfield(c.dim, c.memories, c.hopfield_kind)
        energy: Energy
        if c.attention and c.hopfield:
            energy = Balanced(attention, hopfield, c.balance)
        else:
            energy = Sum(*([attention] if c.attention else []), *([hopfield] if c.hopfield else []))
        motion = ControlledDynamics(c.dim, c.coupling_rank, c.inhibition, c.locality)
        return Block(energy, motion, LayerNorm(c.dim), c)
