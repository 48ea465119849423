"""Energy Transformer (Hoover et al., NeurIPS 2023): for anomalies, whole graphs, and images."""

from __future__ import annotations

from typing import final

from models.base import Architecture, Block, Config
from models.dynamics import Descent, EnergyLayerNorm
from models.energies import DotProductAttention, Energy, GridHopfield, Hopfield, Scaled, Sum
from models.energies.hopfield import HopfieldKind
from models.tasks.graph_classifier import GraphClassifier, GraphConfig
from models.tasks.image_completer import ImageCompleter, ImageConfig
from models.tasks.node_config import NodeConfig
from models.tasks.node_scorer import NodeScorer
from models.tasks.window_completer import WindowCompleter, WindowConfig

_FIRST_STEP = 0.3  # of ETWindow, before training


class _Settings(Config):
    """What ET has beyond its task."""

    hopfield_kind: HopfieldKind = "relu2"


class ETConfig(NodeConfig, _Settings):
    """Configuration of ET for anomalies."""


class ETGraphConfig(GraphConfig, _Settings):
    """Configuration of ET for whole graphs."""


class ETImageConfig(ImageConfig, _Settings):
    """Configuration of ET for images."""


class _Blocks(Architecture):
    """Attention (eq. 3) plus Hopfield (eq. 5) energy, pure descent (eq. 6)."""

    config: _Settings  # pyright: ignore[reportIncompatibleVariableOverride]

    def build_block(self) -> Block:
        c = self.config
        parts: list[Energy] = []
        if c.attention:
            parts.append(DotProductAttention(c.dim, c.heads, c.head_dim))
        if c.hopfield:
            parts.append(Hopfield(c.dim, c.memories, c.hopfield_kind))
        return Block(Sum(*parts), Descent(), EnergyLayerNorm(c.dim), c)


@final
class ET(_Blocks, NodeScorer):
    """ET that scores nodes."""

    name = "et"
    config_type = ETConfig
    config: ETConfig  # pyright: ignore[reportIncompatibleVariableOverride]


@final
class ETGraph(_Blocks, GraphClassifier):
    """ET that classifies graphs."""

    name = "et-graph"
    config_type = ETGraphConfig
    config: ETGraphConfig  # pyright: ignore[reportIncompatibleVariableOverride]


@final
class ETImage(_Blocks, ImageCompleter):
    """ET that completes images."""

    name = "et-image"
    config_type = ETImageConfig
    config: ETImageConfig  # pyright: ignore[reportIncompatibleVariableOverride]


@final
class ETWindow(WindowCompleter):
    """ET that completes prefilled windows of photographs.

    Attention with a bias of offsets (eq. 3) plus memories of 3 x 3 tokens (after eq. 5), pure
    descent (eq. 6); how far a step goes is learned in each block.
    """

    name = "et-window"
    config_type = WindowConfig

    def build_block(self) -> Block:
        c = self.config
        parts: list[Energy] = []
        if c.attention:
            parts.append(DotProductAttention(c.dim, c.heads, c.head_dim))
        if c.hopfield:
            parts.append(GridHopfield(c.dim, c.memories))
        energy = Scaled(*parts, initial=_FIRST_STEP)
        return Block(energy, Descent(), EnergyLayerNorm(c.dim), c)
