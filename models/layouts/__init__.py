"""How the tokens of a batch are arranged, and which of them may attend to which."""

from models.layouts.base import Attention, Layout
from models.layouts.dense import Dense
from models.layouts.edge_list import EdgeList
from models.layouts.partition import GraphPartition, PrecomputedAttention
from models.layouts.pattern import PatternLayout

__all__ = [
    "Attention",
    "Dense",
    "EdgeList",
    "GraphPartition",
    "Layout",
    "PatternLayout",
    "PrecomputedAttention",
]
