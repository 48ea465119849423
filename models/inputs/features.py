"""From raw node features to what a network reads; what is fitted travels with the weights."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from models.inputs.graph_batch import GraphBatch
from models.kernels import node_features as kernels


class NodeFeatures(nn.Module):
    """Hop means, spread, degree and piecewise-linear bins.

    Each node is described by its own features and log(1 + degree), their means over its
    neighbours one to `hops` steps away, and their standard deviation over its neighbours; for
    every relation. Every column is then encoded by the bins between its quantiles
    b_0 < b_1 < ...: bin k gives clip((c - b_k-1) / (b_k - b_k-1), 0, 1) (Gorishniy et al. 2022,
    "On embeddings for numerical features in tabular deep learning", eq. 1, clipped at both ends so
    that an outlier cannot leave the range seen in training). It is what makes trees strong on such
    tables: thresholds that know no scale.

    `fit` sets the bins from a graph without its labels; they are buffers, so a checkpoint scores
    graphs it has never seen. A column of the node itself gets `bins` bins, one of its
    neighbourhood `hop_bins`: too many of the latter drown the former. Where one value holds more
    than a bin's share of the nodes, fewer bins remain; `distinct` makes up for them with quantiles
    of the distinct values (otherwise only where a single bin would remain).
    """

    lower_P: Tensor
    width_P: Tensor
    column_P: Tensor

    def __init__(
        self,
        in_features: int,
        hops: int,
        bins: int,
        hop_bins: int,
        size: int = 1,
        distinct: bool = False,
    ) -> None:
        super().__init__()
        self.distinct = distinct
        self.in_features, self.hops, self.bins, self.hop_bins = in_features, hops, bins, hop_bins
        self.register_buffer("lower_P", torch.zeros(size, dtype=torch.float64))
        self.register_buffer("width_P", torch.ones(size, dtype=torch.float64))
        self.register_buffer("column_P", torch.zeros(size, dtype=torch.int64))

    def table(self, batch: GraphBatch) -> Tensor:
        """Columns before encoding, float64 (N, C)."""
        on_cpu = batch.x_NF.device.type == "cpu"
        return self._table_by_kernels(batch) if on_cpu else self._table_by_torch(batch)

    def _table_by_torch(self, batch: GraphBatch) -> Tensor:
        """On any device."""
        x_NF = batch.x_NF.double()
        described = []
        for relation in batch.relations:
            means = [described_by(x_NF, relation.degree_N)]
            square_NF = relation.mean_neighbours(means[0].square()) if self.hops else None
            for _ in range(self.hops):
                means.append(relation.mean_neighbours(means[-1]))
            described.append((means, square_NF))
        return columns(x_NF, described)

    def _table_by_kernels(self, batch: GraphBatch) -> Tensor:
        """The same on a CPU, in one pass over the edges for each hop."""
        x_NF = batch.x_NF.double().contiguous().numpy()
        nodes, features = x_NF.shape
        told = features + 1
        width = 1 + told * (self.hops + (self.hops > 0))
        table_NC = np.empty((nodes, features + len(batch.relations) * width))
        table_NC[:, :features] = x_NF
        for place, relation in enumerate(batch.relations):
            at = features + place * width
            kernels.describe(
                relation.indptr_N1.numpy(),
                relation.indices_E.numpy(),
                x_NF,
                self.hops,
                table_NC,
                at,
            )
        return torch.from_numpy(table_NC)

    def fit(self, batch: GraphBatch) -> NodeFeatures:
        """Set the bins to the quantiles of `batch`; returns self."""
        table_NC = self.table(batch)
        lower, width, column = [], [], []
        for c, values_N in enumerate(table_NC.T):
            bins = self.bins if c < self.in_features else self.hop_bins
            edges = _quantiles(values_N, bins).unique()
            if len(edges) <= (bins if self.distinct else 2):
                # One value holds more than a bin's share: look at the distinct values instead.
                edges = torch.cat([edges, _quantiles(values_N.unique(), bins)]).unique()
            # A bin far narrower than the column's range would magnify rounding.
            keep = torch.ones_like(edges, dtype=torch.bool)
            keep[1:] = edges.diff() > 1e-5 * (edges[-1] - edges[0])
            edges = edges[keep]
            if len(edges) > 1:
                lower.append(edges[:-1])
                width.append(edges.diff())
                column.append(torch.full((len(edges) - 1,), c))
        if not lower:
            raise ValueError("every feature is constant: there is nothing to learn from")
        self.lower_P, self.width_P = torch.cat(lower), torch.cat(width)
        self.column_P = torch.cat(column)
        return self

    @property
    def size(self) -> int:
        """P, the width of the encoding."""
        return len(self.lower_P)

    def encode(self, table_NC: Tensor) -> Tensor:
        """Encoding (N, P), float32, in [0, 1], of rows of `table`."""
        if table_NC.device.type == "cpu":
            encoded_NP = np.empty((len(table_NC), self.size), np.float32)
            bins = self.column_P.numpy(), self.lower_P.numpy(), self.width_P.numpy()
            kernels.encode(table_NC.numpy(), *bins, encoded_NP)
            return torch.from_numpy(encoded_NP)
        columns_NP = table_NC[:, self.column_P]
        return columns_NP.sub_(self.lower_P).div_(self.width_P).clamp_(0, 1).float()

    def forward(self, batch: GraphBatch) -> Tensor:
        """Encoding (N, P) of every node."""
        return self.encode(self.table(batch))


def described_by(x_NF: Tensor, degree_N: Tensor) -> Tensor:
    """What a node tells its neighbours, float64 (N, F + 1): its features and log(1 + degree)."""
    return torch.cat([x_NF.double(), degree_N.double().log1p()[:, None]], 1)


def columns(x_NF: Tensor, described: Sequence[tuple[Sequence[Tensor], Tensor | None]]) -> Tensor:
    """The columns of nodes, float64 (N, C).

    Args:
        x_NF: their features.
        described: of each relation what the nodes tell, its means over the neighbours one, two, ...
            steps away, and the mean of its square over those one step away.
    """
    found = [x_NF.double()]
    for (own_NF, *means), square_NF in described:
        found.append(own_NF[:, -1:])
        for hop, mean_NF in enumerate(means):
            found.append(mean_NF)
            if hop == 0 and square_NF is not None:
                found.append((square_NF - mean_NF.square()).clamp(min=0).sqrt())
    return torch.cat(found, 1)


def _quantiles(values_N: Tensor, bins: int) -> Tensor:
    """`bins` + 1 order statistics, evenly spaced (torch.quantile refuses large inputs)."""
    ordered = values_N.sort().values
    at = torch.linspace(0, len(ordered) - 1, bins + 1, dtype=torch.float64)
    return ordered[at.round().long()]
