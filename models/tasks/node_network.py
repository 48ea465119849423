"""One network that gives each node of graphs a logit: embedding, blocks and head."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import cast, final

from torch import Tensor, nn

from models.base import Block, DynamicsParams, StepControl
from models.dynamics import Solution
from models.heads import AnomalyHead
from models.inputs.edge_features import EdgeBias, EdgeFeatures
from models.inputs.graph_batch import GraphBatch
from models.layouts import Layout
from models.nn.dropout import Dropout
from models.tasks.node_config import NodeConfig


@final
class NodeNetwork(nn.Module):
    """x(1) = E y (Energy Transformer eq. 10), S blocks of T steps, a head on g(1) || g(T) (eq. 11).

    The learned position of each node in eq. 10 is left out: it would tie the network to the nodes
    it was trained on, and this one scores graphs it has never seen. `encoder` gives E a hidden
    layer: an energy on linear features alone does not weigh one against another as trees do
    (docs/decisions/0005-recipes.md). With several relations each has blocks of its own
    (appendix E). Features of edges bias the attention of each block (`EdgeBias`).

    Args:
        build_block: makes a block, the one thing in which architectures differ.
    """

    def __init__(self, config: NodeConfig, build_block: Callable[[], Block]) -> None:
        super().__init__()
        relations = len(config.relations)
        self.embed = build_embedding(config)
        self.dropout = Dropout(config.state_dropout)
        self.chains = nn.ModuleList(
            nn.ModuleList(build_block() for _ in range(config.blocks)) for _ in range(relations)
        )
        self.edge_bias = nn.ModuleList(
            EdgeBias(config.edge_encoding, config.heads)
            for _ in range(relations * config.blocks if config.edge_features else 0)
        )
        self.head = AnomalyHead(
            config.dim,
            relations,
            config.combine,
            config.hidden,
            config.dropout,
            config.state_dropout,
        )

    def blocks_in_order(self) -> list[Block]:
        """The blocks of each relation in turn."""
        return [block for chain in self._chains() for block in chain]

    def build_layouts(self, batch: GraphBatch, edge_features: EdgeFeatures | None) -> list[Layout]:
        """The layout of each of `blocks_in_order`."""
        layouts, biases = list[Layout](), iter(self.edge_bias)
        for relation, (chain, layout) in enumerate(
            zip(self._chains(), batch.relations, strict=True)
        ):
            for _ in chain:
                if edge_features is None:
                    layouts.append(layout)
                    continue
                bias_EH = next(biases)(edge_features, batch, relation)
                if layout.bias_EH is not None:
                    bias_EH = bias_EH + layout.bias_EH
                layouts.append(layout.weighed(layout.weight_EH, bias_EH))
        return layouts

    def forward(
        self,
        encoded_NP: Tensor,
        layouts: Sequence[Layout],
        params: Sequence[DynamicsParams] | None = None,
    ) -> Tensor:
        """Logits (N,) of encoded nodes, differentiable."""
        x_ND = self.dropout(self.embed(encoded_NP))
        last, each = list[Tensor](), iter(layouts)
        for chain in self._chains():
            state_ND = x_ND
            for block in chain:
                state_ND = block.relax(state_ND, next(each), params)
            last.append(chain[-1].norm(state_ND))
        return self.read_states(x_ND, last)

    def infer(
        self,
        x_ND: Tensor,
        layouts: Sequence[Layout],
        params: Sequence[DynamicsParams],
        control: StepControl,
    ) -> tuple[Tensor, list[Solution]]:
        """Logits (N,) of embedded nodes, and the relaxation of each of `blocks_in_order`."""
        last, solutions, each = list[Tensor](), list[Solution](), iter(layouts)
        for chain in self._chains():
            state_ND = x_ND
            for block in chain:
                solutions.append(block.solve(state_ND, next(each), params, control))
                state_ND = solutions[-1].x_ND
            last.append(solutions[-1].g_ND)
        return self.read_states(x_ND, last), solutions

    def read_states(self, x_ND: Tensor, last_RND: Sequence[Tensor]) -> Tensor:
        """Logits (N,) of x(1) and the g(T) of each relation."""
        return self.head(self.blocks_in_order()[0].norm(x_ND), list(last_RND))

    def _chains(self) -> Iterator[list[Block]]:
        """The blocks of each relation; `nn.ModuleList` does not know what it holds."""
        for chain in self.chains:
            yield [cast(Block, block) for block in cast(nn.ModuleList, chain)]


def build_embedding(config: NodeConfig) -> nn.Module:
    """E of eq. 10: (N, P) -> (N, D)."""
    if not config.encoder:
        return nn.Linear(config.encoding, config.dim)
    return nn.Sequential(
        nn.Linear(config.encoding, config.encoder),
        nn.ReLU(),
        Dropout(config.dropout),
        nn.Linear(config.encoder, config.dim),
    )
