"""Embed the nodes of graphs, relax them, score each: what ET and CDAT for anomalies share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Self, cast

import numpy as np
import torch
from torch import Tensor, nn

from models.base import (
    RUN_ALONE,
    Architecture,
    Block,
    DynamicsParams,
    Output,
    StepControl,
    temporary_seed,
)
from models.dynamics import Solution
from models.heads import AnomalyHead
from models.inputs.edge_features import EdgeBias, EdgeFeatures
from models.inputs.features import NodeFeatures
from models.inputs.graph import Graph
from models.inputs.graph_batch import NOT_GIVEN, GraphBatch, pack_graphs
from models.inputs.label_columns import describe_labels, is_labelled_around
from models.inputs.neighbor_means import NeighborRule
from models.inputs.tree_ensemble import RowKeys, TreeEnsemble, make_stump
from models.layouts import Layout
from models.nn.dropout import Dropout
from models.tasks.node_config import NodeConfig

_ROWS = 8192

FitTrees = Callable[[np.ndarray, np.ndarray], TreeEnsemble]
"""Fit trees to the columns (N, C) of the nodes of all graphs, of which some are exact (C,), as
`RowKeys` reads them."""


class LabelScores(NamedTuple):
    """Log-odds of nodes by labels of their neighbours, float32 (N,), and of which nodes the graph
    has labels, and a known one within two steps, bool (N,)."""

    score_N: Tensor
    is_given_N: Tensor
    is_seen_N: Tensor


class NodeScorer(Architecture):
    """x(1) = E y (Energy Transformer eq. 10), S blocks of T steps, a head on g(1) || g(T) (eq. 11).

    The learned position of each node in eq. 10 is left out: it would tie the network to the nodes
    it was trained on, and this one scores graphs it has never seen. `encoder` gives E a hidden
    layer: an energy on linear features alone does not weigh one against another as trees do
    (docs/decisions/0005-recipes.md). With several relations each has blocks of its own
    (appendix E). Features of edges bias the attention of each block (`EdgeBias`).

    A hybrid has `trees` too (`TreeEnsemble`). The network reads their log-odds of a node and of its
    neighbours, and the logit is weighed: `part_weights` times that of the network and that of the
    trees, 1 and 0 until validation has chosen them.

    With `label_trees` a graph may have labels. These trees read the columns of `trees` and those of
    `describe_labels`, and their log-odds are a third part of the logit of each of its nodes:
    `label_weights` times those of network, trees and label trees, plus a constant; first those of
    nodes without a known label within two steps, then those of nodes with one. Nothing that moves
    reads a label, so the energy and its states are the same with labels and without.
    """

    task = "anomaly"
    config: NodeConfig  # pyright: ignore[reportIncompatibleVariableOverride]
    part_weights: Tensor
    label_weights: Tensor
    label_prior: Tensor

    def __init__(self, config: NodeConfig) -> None:
        super().__init__()
        self.config = config  # pyright: ignore[reportIncompatibleVariableOverride]
        relations = len(config.relations)
        self.features = NodeFeatures(
            len(config.features),
            config.hops,
            config.bins,
            config.hop_bins,
            config.encoding,
            config.distinct,
            config.deviation_hops,
            None if config.trees is None else TreeEnsemble(config.trees),
            config.tree_bins,
        )
        if config.trees is not None:
            self.register_buffer("part_weights", torch.tensor([1.0, 0.0]))
        self.label_trees = None
        if config.label_trees is not None:
            self.add_label_trees(TreeEnsemble(config.label_trees), 0.5)
        self.embed = build_embedding(config)
        self.dropout = Dropout(config.state_dropout)
        self.chains = nn.ModuleList(
            nn.ModuleList(self.build_block() for _ in range(config.blocks))
            for _ in range(relations)
        )
        for stream, block in enumerate(self.blocks_in_order()):
            block.noise_stream = stream
        self.edge_features = None
        if config.edge_features:
            edges = EdgeFeatures(len(config.edge_features), config.edge_bins, config.edge_encoding)
            self.edge_features = edges
            self.edge_bias = nn.ModuleList(
                EdgeBias(edges.encoding_width, config.heads) for _ in self.blocks_in_order()
            )
        self.head = AnomalyHead(
            config.dim,
            relations,
            config.combine,
            config.hidden,
            config.dropout,
            config.state_dropout,
        )

    @property
    def neighbor_rule(self) -> NeighborRule:
        """Which neighbours a node is described by."""
        config = self.config
        return NeighborRule(
            config.hops,
            len(config.relations),
            config.undirected,
            config.self_loops,
            min(config.deviation_hops, config.hops),
            self.features.trees,
            self.label_trees is not None,
        )

    def pack(self, graphs: Sequence[Graph]) -> GraphBatch:
        return pack_graphs(
            graphs,
            num_relations=len(self.config.relations),
            undirected=self.config.undirected,
            self_loops=self.config.self_loops,
            edge_features=len(self.config.edge_features),
        )

    def build_layouts(self, batch: GraphBatch) -> list[Layout]:
        if self.edge_features is None:
            return [
                layout
                for chain, layout in zip(self.chains, batch.relations, strict=True)
                for _ in _blocks(chain)
            ]
        biases, layouts = iter(self.edge_bias), list[Layout]()
        for relation, layout in enumerate(batch.relations):
            for _ in _blocks(self.chains[relation]):
                bias_EH = next(biases)(self.edge_features, batch, relation)
                if layout.bias_EH is not None:
                    bias_EH = bias_EH + layout.bias_EH
                layouts.append(layout.weighed(layout.weight_EH, bias_EH))
        return layouts

    def blocks_in_order(self) -> list[Block]:
        return [block for chain in self.chains for block in _blocks(chain)]

    def forward(
        self,
        batch: GraphBatch,
        params: Sequence[DynamicsParams] | None = None,
        encoded_NP: Tensor | None = None,
    ) -> Tensor:
        """Logits (N,). `encoded_NP`, if given, is `self.features(batch)` computed before; the
        logits are those of the network then, without its trees."""
        table_NC = None
        if encoded_NP is None:
            table_NC = self.features.compute_table(batch)
            encoded_NP = self.features.encode(table_NC)
        x_ND = self.dropout(self.embed(encoded_NP))
        last, layouts = [], iter(self.build_layouts(batch))
        for chain in self.chains:
            state_ND = x_ND
            for block in _blocks(chain):
                state_ND = block.relax(state_ND, next(layouts), params)
            last.append(_blocks(chain)[-1].norm(state_ND))
        logits_N = self.head(self._first(x_ND), last)
        return self.mix(logits_N, *self.read_parts(batch, table_NC))

    @torch.no_grad()
    def infer(
        self,
        batch: GraphBatch,
        params: Sequence[DynamicsParams],
        control: StepControl = RUN_ALONE,
        table_NC: Tensor | None = None,
    ) -> Output:
        """As every architecture does; `table_NC` is what `features.compute_table` gives of the
        batch, where that is known."""
        batch = batch.to(self.device)
        if table_NC is None:
            table_NC = self.features.compute_table(batch)
        x_ND = self.embed_table(table_NC, control)
        last: list[Tensor] = []
        solutions: list[Solution] = []
        layouts = iter(self.build_layouts(batch))
        for chain in self.chains:
            state_ND = x_ND
            for block in _blocks(chain):
                solution = block.solve(state_ND, next(layouts), params, control)
                solutions.append(solution)
                state_ND = solution.x_ND
            last.append(solutions[-1].g_ND)
        logits_N = self.head(self._first(x_ND), last)
        return Output(self.mix(logits_N, *self.read_parts(batch, table_NC)), solutions)

    def add_label_trees(self, trees: TreeEnsemble, prior: float) -> None:
        """Let it read labels.

        Args:
            trees: fitted to the columns of `features.trees` and those of `describe_labels`.
            prior: rate of fraud where nothing is known.

        Raises:
            ValueError: it has no other trees, or no columns of neighbours, or its edges are seen
                from one end, so that which walks of two steps come back is not known from the
                number of neighbours.
        """
        is_seen_from_both = self.config.undirected and not self.config.self_loops
        if self.features.trees is None or not (self.config.hops and is_seen_from_both):
            raise ValueError(
                "Labels of neighbours need a hybrid whose edges are seen from both ends, without "
                "loops: set `trees`, `hops` and `undirected`, leave out `self_loops`."
            )
        config = self.config.model_copy(update={"label_trees": trees.shape})
        self.config = config  # pyright: ignore[reportIncompatibleVariableOverride]
        self.label_trees = trees
        self.register_buffer("label_prior", torch.tensor(prior, dtype=torch.float64))
        self.register_buffer("label_weights", torch.tensor([[1.0, 0.0, 0.0, 0.0]] * 2))

    def read_parts(
        self, batch: GraphBatch, table_NC: Tensor | None
    ) -> tuple[Tensor | None, LabelScores | None]:
        """What is mixed with the logits of the network: the log-odds of the trees, float32 (N,), a
        column of the table of features, and those by labels of neighbours. None each without such
        trees or a table, or without labels."""
        if table_NC is None or self.features.trees is None:
            return None, None
        column = self.features.count_node_columns(len(self.config.relations))
        scores_N = table_NC[:, column].float()
        if self.label_trees is None or batch.labels_N is None:
            return scores_N, None
        labels_NC = describe_labels(batch, float(self.label_prior)).to(table_NC)
        columns_NC = torch.cat([table_NC[:, :column], labels_NC], 1)
        return scores_N, LabelScores(
            self.label_trees(columns_NC).float(),
            batch.labels_N != NOT_GIVEN,
            is_labelled_around(labels_NC),
        )

    def mix(
        self, logits_N: Tensor, scores_N: Tensor | None, by_labels: LabelScores | None = None
    ) -> Tensor:
        """Weigh the logits of the network and those of its trees, if it has some."""
        if scores_N is None:
            return logits_N
        network, trees = self.part_weights
        mixed_N = network * logits_N + trees * scores_N
        if by_labels is None:
            return mixed_N
        network, trees, labels, constant = self.label_weights[by_labels.is_seen_N.long()].T
        with_labels_N = network * logits_N + trees * scores_N + labels * by_labels.score_N
        return torch.where(by_labels.is_given_N, with_labels_N + constant, mixed_N)

    def embed_table(self, table_NC: Tensor, control: StepControl = RUN_ALONE) -> Tensor:
        """x(1) (N, D) of the nodes of a table of features (see `NodeFeatures.table`), a block of
        rows at a time: the encoding is far wider than the state."""
        if len(table_NC) <= _ROWS:
            return self.embed(self.features.encode(table_NC))
        x_ND = table_NC.new_zeros(len(table_NC), self.config.dim, dtype=torch.float32)
        for start in range(0, len(table_NC), _ROWS):
            if control.stop_reason() is not None:
                break  # the rest stays zero: the request was cancelled
            rows = slice(start, start + _ROWS)
            x_ND[rows] = self.embed(self.features.encode(table_NC[rows]))
        return x_ND

    def _first(self, x_ND: Tensor) -> Tensor:
        return self.blocks_in_order()[0].norm(x_ND)

    @classmethod
    def build_example(cls, seed: int) -> tuple[Architecture, list[Graph]]:
        rng = np.random.default_rng(seed)
        graphs = []
        for nodes in (9, 1, 14):  # one of them an isolated node
            edges = rng.integers(0, nodes, (2, 3 * nodes))
            x = rng.standard_normal((nodes, 5)).astype(np.float32)
            kinds = rng.integers(0, 2, edges.shape[1])
            attr = rng.standard_normal((edges.shape[1], 2)).astype(np.float32)
            graphs.append(Graph(x, edges, kinds, attr))
        config = cls.config_type.model_validate(
            {
                "features": tuple("abcde"),
                "relations": ("r", "s"),
                "edge_features": ("amount", "hour"),
                "edge_bins": 4,
                "combine": "concat",
                "dim": 12,
                "heads": 2,
                "head_dim": 4,
                "memories": 10,
                "blocks": 2,
                "steps": 3,
                "step_size": 0.1,
                "encoding": 1,
                "encoder": 8,
                "bins": 4,
                "deviation_hops": 2,
            }
        )
        folds = [(0.1, [make_stump(0, 0.0, -1.0, 1.0), make_stump(9, 0.5, -0.5, 1.5)])] * 2

        def fit_trees(table_NC: np.ndarray, is_exact_C: np.ndarray) -> TreeEnsemble:
            keys = RowKeys.of_rows(table_NC[::2], is_exact_C)
            return TreeEnsemble.from_folds(folds, keys, np.arange(len(keys.key_r)) % 2)

        example, _ = cls.from_data(cast(NodeConfig, config), graphs, seed, fit_trees)
        example.part_weights.copy_(torch.tensor([0.7, 0.4]))
        return example, graphs

    @classmethod
    def from_data(
        cls,
        config: NodeConfig,
        graphs: Sequence[Graph],
        seed: int,
        fit_trees: FitTrees | None = None,
    ) -> tuple[Self, GraphBatch]:
        """A fresh network whose feature bins are fitted to `graphs`, and those graphs packed.

        Args:
            fit_trees: makes the trees of a hybrid.
        """
        batch = pack_graphs(
            graphs,
            num_relations=len(config.relations),
            undirected=config.undirected,
            self_loops=config.self_loops,
            edge_features=len(config.edge_features),
        )
        features = NodeFeatures(
            len(config.features),
            config.hops,
            config.bins,
            config.hop_bins,
            distinct=config.distinct,
            deviation_hops=config.deviation_hops,
            tree_bins=config.tree_bins,
        )
        if fit_trees is not None:
            columns_NC = features.compute_node_columns(batch)
            is_exact_C = features.mark_means(len(batch.relations))
            features.trees = fit_trees(columns_NC.numpy(), is_exact_C)
        features.fit(batch)
        widths: dict[str, Any] = {
            "encoding": features.encoding_width,
            "trees": None if features.trees is None else features.trees.shape,
        }
        edges = None
        if config.edge_features:
            edges = EdgeFeatures(len(config.edge_features), config.edge_bins).fit(batch)
            widths["edge_encoding"] = edges.encoding_width
        with temporary_seed(seed):
            network = cls(config.model_copy(update=widths))
        network.features, network.edge_features = features, edges
        return network, batch


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


def _blocks(chain: nn.Module) -> list[Block]:
    """The blocks of one relation; `nn.ModuleList` does not know what it holds."""
    return [cast(Block, block) for block in cast(nn.ModuleList, chain)]
