"""Node features as a network reads them; the fitted values are stored with the weights."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from models.inputs.graph_batch import GraphBatch
from models.inputs.quantile_bins import QuantileBins
from models.inputs.tree_ensemble import TreeEnsemble
from models.kernels import node_features as kernels
from models.layouts import EdgeList


class NodeFeatures(QuantileBins):
    """Encode nodes by neighbourhood means and deviations, degree, and piecewise-linear bins.

    For every relation, the columns of a node are its own features and log(1 + degree), their
    means over the neighbours 1 to `hops` steps away, and their standard deviations over those 1
    to `deviation_hops` steps away, sqrt(mean of squares - square of mean). With `trees`, their
    log-odds of the node by these columns follow, and the mean of those of its neighbours along each
    relation. Where edges have features, those of `describe_edges` are the last. Each column is then
    encoded by bins; such scale-free thresholds are what makes decision trees strong on these
    tables.

    `fit` sets the bins from a graph without its labels.

    Args:
        in_features: F, features of a node.
        hops: steps of the neighbourhood means.
        deviation_hops: steps of the standard deviations.
        bins: bins of each column of the node itself.
        hop_bins: bins of each column of its neighbourhood. Too many drown the node's own columns.
        trees: fitted to the columns above, in training alone to labels.
        tree_bins: bins of each column that they give.
        encoding_width: as of `QuantileBins`.
        distinct: the same.
    """

    def __init__(
        self,
        in_features: int,
        hops: int,
        bins: int,
        hop_bins: int,
        encoding_width: int = 1,
        distinct: bool = False,
        deviation_hops: int = 1,
        trees: TreeEnsemble | None = None,
        tree_bins: int = 16,
    ) -> None:
        super().__init__(encoding_width, distinct=distinct)
        self.in_features, self.hops, self.bins, self.hop_bins = in_features, hops, bins, hop_bins
        self.deviation_hops = min(deviation_hops, hops)
        self.trees, self.tree_bins = trees, tree_bins

    def compute_table(self, batch: GraphBatch) -> Tensor:
        """Return the columns before encoding, float64 (N, C)."""
        parts = [self.compute_node_columns(batch)]
        if self.trees is not None:
            parts.append(_describe_scores(batch, self.trees(parts[0])))
        if batch.edge_attr_eP is not None:
            parts.append(describe_edges(batch))
        return parts[0] if len(parts) == 1 else torch.cat(parts, 1)

    def compute_node_columns(self, batch: GraphBatch) -> Tensor:
        """Return the columns that trees read, those of nodes and of the features of neighbours."""
        on_cpu = batch.x_NF.device.type == "cpu"
        return (self._compute_table_numba if on_cpu else self._compute_table_torch)(batch)

    def count_node_columns(self, relations: int) -> int:
        """Return the number of columns of `compute_node_columns`; the next is the score of
        trees."""
        width = 1 + (self.in_features + 1) * (self.hops + self.deviation_hops)
        return self.in_features + relations * width

    def mark_means(self, relations: int) -> np.ndarray:
        """Return which columns of `compute_node_columns` are no deviations, bool (C,). A deviation
        of equal values is the root of what rounding leaves."""
        width, is_mean = self.in_features + 1, [True] * self.in_features
        for _ in range(relations):
            is_mean.append(True)
            for hop in range(self.hops):
                is_mean += [True] * width + [False] * width * (hop < self.deviation_hops)
        return np.array(is_mean)

    def _compute_table_torch(self, batch: GraphBatch) -> Tensor:
        """Compute the table on any device."""
        x_NF = batch.x_NF.double()
        relations = []
        for index, relation in enumerate(batch.relations):
            count_N, sums_NHF, squares_NF = self._outside(batch, index) or (None, None, None)
            degree_N = relation.degree_N.double()
            if count_N is not None:
                degree_N = degree_N + torch.from_numpy(count_N).to(degree_N)
            means = [append_log_degree(x_NF, degree_N)]
            squares, width = [means[0].square()], self.in_features + 1
            for hop in range(self.hops):
                outside_NF = None if sums_NHF is None else sums_NHF[:, hop, :width]
                means.append(_mean(relation, means[-1], outside_NF, degree_N))
                if hop < self.deviation_hops:
                    if hop:
                        squares_NF = None if sums_NHF is None else sums_NHF[:, hop, width:]
                    squares.append(_mean(relation, squares[-1], squares_NF, degree_N))
            relations.append((means, squares[1:]))
        return assemble_columns(x_NF, relations)

    def _compute_table_numba(self, batch: GraphBatch) -> Tensor:
        """Compute the same table on the CPU, with one pass over the edges for each hop."""
        x_NF = batch.x_NF.double().contiguous().numpy()
        nodes, features = x_NF.shape
        columns = self.count_node_columns(len(batch.relations))
        width = (columns - features) // len(batch.relations)
        table_NC = np.empty((nodes, columns))
        table_NC[:, :features] = x_NF
        for index, relation in enumerate(batch.relations):
            kernels.describe(
                relation.indptr_N1.numpy(),
                relation.indices_E.numpy(),
                x_NF,
                self.hops,
                self.deviation_hops,
                table_NC,
                features + index * width,
                self._outside(batch, index),
            )
        return torch.from_numpy(table_NC)

    def _outside(
        self, batch: GraphBatch, index: int
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
        """Of one relation the number of neighbours outside, their sums and those of squares."""
        if batch.outside is None:
            return None
        sums_NHF = batch.outside.sums[index]
        width = count_averaged_columns(self.in_features, self.deviation_hops)
        if sums_NHF.shape[1:] != (self.hops, width):
            raise ValueError(
                f"The graph has sums of neighbours outside of it for {sums_NHF.shape[1]} hops of "
                f"{sums_NHF.shape[2]} columns; the network reads {self.hops} of {width}."
            )
        return batch.outside.count[index], sums_NHF, batch.outside.squares[index]

    def fit(self, batch: GraphBatch) -> NodeFeatures:
        """Set the bins to the quantiles of `batch`, and return self.

        Raises:
            ValueError: every column is constant.
        """
        table_CN = self.compute_table(batch).T
        bins = [self.bins if c < self.in_features else self.hop_bins for c in range(len(table_CN))]
        if self.trees is not None:
            relations = len(batch.relations)
            first = self.count_node_columns(relations)
            bins[first : first + 1 + relations] = [self.tree_bins] * (1 + relations)
        if not self.fit_columns(zip(table_CN, bins, strict=True)):
            raise ValueError(
                "Every feature is constant. Training needs a feature with at least two values."
            )
        return self

    def forward(self, batch: GraphBatch) -> Tensor:
        """Return the encoding (N, P) of every node."""
        return self.encode(self.compute_table(batch))


def _describe_scores(batch: GraphBatch, score_N: Tensor) -> Tensor:
    """Return the score of each node, and its mean over the neighbours along each relation: float64
    (N, 1 + relations).

    Raises:
        ValueError: the graph is a part of a larger one, without the scores of the rest.
    """
    columns, outside = [score_N[:, None]], batch.outside
    for index, relation in enumerate(batch.relations):
        outside_N1, degree_N = None, relation.degree_N.double()
        if outside is not None:
            if outside.scores is None:
                raise ValueError(
                    "The graph is a part of a larger one, and the network reads scores of trees of "
                    "neighbours: the sums of their scores outside are missing."
                )
            outside_N1 = outside.scores[index][:, None]
            degree_N = degree_N + torch.from_numpy(outside.count[index]).to(degree_N)
        columns.append(_mean(relation, columns[0], outside_N1, degree_N))
    return torch.cat(columns, 1)


def describe_edges(batch: GraphBatch) -> Tensor:
    """Return mean and standard deviation of each feature over the edges into each node, and then
    over those out of it, of each relation: float64 (N, 4 P relations), zero where there are none.

    Edges out of a node count where edges are seen from both ends. Edges to neighbours outside of
    the graphs count too.
    """
    attr_eP, nodes = batch.edge_attr_eP, len(batch.x_NF)
    assert attr_eP is not None
    columns = list[Tensor]()
    for index, (relation, instances) in enumerate(
        zip(batch.relations, batch.instances, strict=True)
    ):
        values_IP = attr_eP[instances.edge_I]
        # Of each node those seen from it as the target, and those as the source.
        group_I = 2 * relation.receivers_E[instances.entry_I] + instances.is_backward_I
        outside_G1, outside_mean_GP, outside_squares_GP = _outside_edges(batch, index)
        count_G1 = outside_G1 + torch.bincount(group_I, minlength=2 * nodes)[:, None]
        sum_GP = (outside_G1 * outside_mean_GP).index_add(0, group_I, values_IP)
        mean_GP = sum_GP / count_G1.clamp(min=1)
        # Squared deviations from the mean of all edges, of those outside and then of the others.
        squares_GP = outside_squares_GP + outside_G1 * (outside_mean_GP - mean_GP).square()
        squares_GP.index_add_(0, group_I, (values_IP - mean_GP[group_I]).square())
        deviation_GP = (squares_GP / count_G1.clamp(min=1)).sqrt()
        columns.append(torch.cat([mean_GP, deviation_GP], 1).view(nodes, -1))
    return torch.cat(columns, 1)


def _outside_edges(batch: GraphBatch, relation: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return the number of edges to neighbours outside (2 N, 1), the mean of their features and the
    sum of squared deviations from it (2 N, P): of each node those into it, then those out of it."""
    attr_eP, groups = batch.edge_attr_eP, 2 * len(batch.x_NF)
    assert attr_eP is not None
    if batch.outside is None or batch.outside.edges is None:
        none_GP = attr_eP.new_zeros(groups, attr_eP.shape[1])
        return none_GP[:, :1], none_GP, none_GP
    edges = batch.outside.edges
    count_G1, mean_GP, squares_GP = (
        torch.from_numpy(values[relation]).to(attr_eP).view(groups, -1)
        for values in (edges.count, edges.mean, edges.squares)
    )
    return count_G1, mean_GP, squares_GP


def _mean(
    relation: EdgeList, values_NF: Tensor, outside_NF: np.ndarray | None, degree_N: Tensor
) -> Tensor:
    """Return the mean of neighbours; of `degree_N` those outside of the graph add `outside_NF`."""
    mean_NF = relation.mean_neighbours(values_NF)
    if outside_NF is None:
        return mean_NF
    sum_NF = mean_NF * relation.degree_N[:, None] + torch.from_numpy(outside_NF).to(mean_NF)
    return sum_NF / degree_N.clamp(min=1)[:, None]


def count_averaged_columns(in_features: int, deviation_hops: int) -> int:
    """Return the number of columns that are averaged at each hop: the features of a node and
    log(1 + degree), and where deviations are of several hops their squares too."""
    return (in_features + 1) * (2 if deviation_hops > 1 else 1)


def append_log_degree(x_NF: Tensor, degree_N: Tensor) -> Tensor:
    """Return features and log(1 + degree) of each node, float64 (N, F + 1)."""
    return torch.cat([x_NF.double(), degree_N.double().log1p()[:, None]], 1)


def assemble_columns(
    x_NF: Tensor, relations: Sequence[tuple[Sequence[Tensor], Sequence[Tensor]]]
) -> Tensor:
    """Return the table of nodes, float64 (N, C), from means over their neighbourhoods.

    Args:
        x_NF: features of the nodes.
        relations: for each relation, a list of (N, F + 1) and one of mean squares. The first has
            `append_log_degree` of the nodes, then its means over the neighbours 1, 2, ... steps
            away; the second the means of squares over those 1, 2, ... steps away.
    """
    columns = [x_NF.double()]
    for (own_NF, *means), squares in relations:
        columns.append(own_NF[:, -1:])
        for hop, mean_NF in enumerate(means):
            columns.append(mean_NF)
            if hop < len(squares):
                columns.append((squares[hop] - mean_NF.square()).clamp(min=0).sqrt())
    return torch.cat(columns, 1)
