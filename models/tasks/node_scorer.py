"""Score the nodes of graphs by networks and boosted trees: what ET and CDAT for anomalies share."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
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
from models.inputs.edge_features import EdgeFeatures
from models.inputs.features import NodeFeatures
from models.inputs.graph import Graph
from models.inputs.graph_batch import NOT_GIVEN, GraphBatch, pack_graphs
from models.inputs.label_columns import describe_labels, is_labelled_around
from models.inputs.neighbor_means import NeighborRule
from models.inputs.tree_ensemble import RowKeys, TreeEnsemble, make_stump
from models.layouts import Layout
from models.tasks.node_config import NodeConfig
from models.tasks.node_network import NodeNetwork

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
    """The logit of a node is that of a network (`NodeNetwork`), or the mean of several: an ensemble
    of `members` with weights of their own, each trained from a seed of its own. They read the same
    features, and none sees a state of another: the energy of an ensemble is the sum of theirs.

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
        self.edge_features = None
        if config.edge_features:
            widths = len(config.edge_features), config.edge_bins, config.edge_encoding
            self.edge_features = EdgeFeatures(*widths)
        self.networks = nn.ModuleList(
            NodeNetwork(config, self.build_block) for _ in range(config.members)
        )
        self._number_blocks()
        self.register_load_state_dict_pre_hook(_name_networks)

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
        return [
            layout
            for network in self._networks()
            for layout in network.build_layouts(batch, self.edge_features)
        ]

    def blocks_in_order(self) -> list[Block]:
        return [block for network in self._networks() for block in network.blocks_in_order()]

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
        logits_KN = self.compute_members(batch, encoded_NP, params)
        return self.mix(_mean(logits_KN), *self.read_parts(batch, table_NC))

    def compute_members(
        self,
        batch: GraphBatch,
        encoded_NP: Tensor,
        params: Sequence[DynamicsParams] | None = None,
    ) -> list[Tensor]:
        """Logits (N,) of each network, differentiable."""
        return [
            network(encoded_NP, network.build_layouts(batch, self.edge_features), params)
            for network in self._networks()
        ]

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
        logits_KN, solutions = list[Tensor](), list[Solution]()
        embedded_KND = self.embed_table(table_NC, control)
        for network, x_ND in zip(self._networks(), embedded_KND, strict=True):
            layouts = network.build_layouts(batch, self.edge_features)
            logits_N, relaxed = network.infer(x_ND, layouts, params, control)
            logits_KN.append(logits_N)
            solutions += relaxed
        logits_N = self.mix(_mean(logits_KN), *self.read_parts(batch, table_NC))
        return Output(logits_N, solutions)

    def read_states(self, x_KND: Sequence[Tensor], last_CND: Sequence[Tensor]) -> Tensor:
        """Logits (N,) of the networks, from the first states of each, and from the g(T) of each
        relation of the first network, then of the next."""
        relations = len(self.config.relations)
        return _mean(
            [
                network.read_states(x_ND, last_CND[k * relations :][:relations])
                for k, (network, x_ND) in enumerate(zip(self._networks(), x_KND, strict=True))
            ]
        )

    def build_sibling(self, seed: int) -> Self:
        """A fresh network on the same features, for `add_members`; without label trees."""
        config = self.config.model_copy(update={"members": 1, "label_trees": None})
        with temporary_seed(seed):
            sibling = type(self)(config)
        sibling.features, sibling.edge_features = self.features, self.edge_features
        return sibling

    def add_members(self, others: Sequence[NodeScorer]) -> None:
        """Make it an ensemble, with the networks of others that read the same features.

        Raises:
            ValueError: another has another configuration.
        """
        for other in others:
            if other.config != self.config:
                raise ValueError("Members of an ensemble must have the same configuration.")
        self.networks.extend(network for other in others for network in other._networks())
        config = self.config.model_copy(update={"members": len(self.networks)})
        self.config = config  # pyright: ignore[reportIncompatibleVariableOverride]
        self._number_blocks()

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

    def embed_table(self, table_NC: Tensor, control: StepControl = RUN_ALONE) -> list[Tensor]:
        """x(1) (N, D) of each network, of the nodes of a table of features (see
        `NodeFeatures.table`), a block of rows at a time: the encoding is far wider than the state.
        """
        if len(table_NC) <= _ROWS:
            encoded_NP = self.features.encode(table_NC)
            return [network.embed(encoded_NP) for network in self._networks()]
        shape = self.config.members, len(table_NC), self.config.dim
        x_KND = table_NC.new_zeros(shape, dtype=torch.float32)
        for start in range(0, len(table_NC), _ROWS):
            if control.stop_reason() is not None:
                break  # the rest stays zero: the request was cancelled
            rows = slice(start, start + _ROWS)
            encoded_NP = self.features.encode(table_NC[rows])
            for network, x_ND in zip(self._networks(), x_KND, strict=True):
                x_ND[rows] = network.embed(encoded_NP)
        return list(x_KND)

    def _networks(self) -> Iterator[NodeNetwork]:
        """The networks; `nn.ModuleList` does not know what it holds."""
        return (cast(NodeNetwork, network) for network in self.networks)

    def _number_blocks(self) -> None:
        for stream, block in enumerate(self.blocks_in_order()):
            block.noise_stream = stream

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
                "members": 2,
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


def _mean(logits_KN: Sequence[Tensor]) -> Tensor:
    """Their mean (N,); of one it is itself."""
    return logits_KN[0] if len(logits_KN) == 1 else torch.stack(list(logits_KN)).mean(0)


def _name_networks(scorer: nn.Module, tensors: dict[str, Tensor], prefix: str, *_: Any) -> None:
    """Name weights as they are named now: of before there were ensembles, they are of the one
    network that there was."""
    parts = tuple(f"{prefix}{part}." for part in ("embed", "chains", "edge_bias", "head"))
    for name in [name for name in tensors if name.startswith(parts)]:
        tensors[f"{prefix}networks.0.{name.removeprefix(prefix)}"] = tensors.pop(name)
