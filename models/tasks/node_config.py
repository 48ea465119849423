"""Configuration of the networks that score nodes."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, NonNegativeInt, PositiveInt

from models.base import Config
from models.inputs.tree_ensemble import TreeShape


class NodeConfig(Config):
    """Configuration of a node scorer; `encoding` is the width P of the fitted `NodeFeatures`, and
    `edge_encoding` that of the fitted `EdgeFeatures`."""

    features: tuple[str, ...] = Field(description="names of the node features, in order")
    members: PositiveInt = Field(1, description="networks whose logits are averaged")
    relations: tuple[str, ...] = ("edge",)
    combine: Literal["max", "concat"] = "max"
    undirected: bool = True
    self_loops: bool = False
    hops: NonNegativeInt = 2
    deviation_hops: NonNegativeInt = Field(
        1, description="hops over which features are described by their deviations too"
    )
    bins: PositiveInt = Field(16, description="of each feature of the node itself")
    hop_bins: PositiveInt = Field(4, description="of each feature of its neighbourhood")
    distinct: bool = Field(False, description="bins of distinct values where one value prevails")
    encoding: PositiveInt = 1
    trees: TreeShape | None = Field(
        None, description="boosted trees that the network reads, and that its score is mixed with"
    )
    tree_bins: PositiveInt = Field(16, description="of each column that trees give")
    label_trees: TreeShape | None = Field(
        None, description="boosted trees that read labels of neighbours, where some are given"
    )
    edge_features: tuple[str, ...] = Field((), description="names of the edge features, in order")
    edge_bins: PositiveInt = Field(8, description="of each feature of edges")
    edge_encoding: PositiveInt = 1
    encoder: NonNegativeInt = Field(
        0, description="width of a hidden layer in the embedding; 0: linear, as in eq. 10"
    )
    hidden: PositiveInt = Field(64, description="width of the head's hidden layer")
    dropout: float = Field(0.2, ge=0, lt=1, description="within the embedding and the head")
    state_dropout: float = Field(0.0, ge=0, lt=1, description="of x(1) and of what the head reads")
