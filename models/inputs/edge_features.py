"""Features of edges as a network reads them, and what they add to its attention."""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor, nn

from models.inputs.graph_batch import EdgeInstances, GraphBatch
from models.inputs.quantile_bins import QuantileBins


@final
class EdgeFeatures(QuantileBins):
    """Encode each entry of an adjacency by the edges it was made of.

    A number is encoded by bins. An edge s -> t is seen by t, and, where edges are seen from both
    ends, by s too, in columns of their own: who pays is not who is paid. An entry that several
    edges were made into has their mean, one without an edge, as a self-loop, zeros.

    Args:
        in_features: P, features of an edge.
        bins: of each feature.
        encoding_width: as of `QuantileBins`.
    """

    def __init__(self, in_features: int, bins: int, encoding_width: int = 1) -> None:
        super().__init__(encoding_width, distinct=True)
        self.in_features, self.bins = in_features, bins

    @property
    def entry_width(self) -> int:
        """Columns of an entry: of either direction a bias and the encoding."""
        return 2 * (1 + self.encoding_width)

    def fit(self, batch: GraphBatch) -> EdgeFeatures:
        """Set the bins to the quantiles of the edges of `batch`, and return self.

        Raises:
            ValueError: every feature is constant.
        """
        columns = _require_attr(batch).T
        if not self.fit_columns((column, self.bins) for column in columns):
            raise ValueError(
                "Every feature of the edges is constant. Leave them out, or give one with at least "
                "two values."
            )
        return self

    def forward(self, batch: GraphBatch) -> list[Tensor]:
        """Return the encoding of the entries of each relation, float32 (E, entry_width)."""
        encoded_eP = self.encode(_require_attr(batch))
        ones = encoded_eP.new_ones(len(encoded_eP), 1)
        encoded_eP = torch.cat([ones, encoded_eP], 1)
        return [
            self._average(encoded_eP, instances, relation.num_edges)
            for relation, instances in zip(batch.relations, batch.instances, strict=True)
        ]

    def _average(self, encoded_eP: Tensor, instances: EdgeInstances, entries: int) -> Tensor:
        width = encoded_eP.shape[1]
        sums_E2P = encoded_eP.new_zeros(2 * entries, width)
        place_I = 2 * instances.entry_I + instances.is_backward_I
        sums_E2P.index_add_(0, place_I, encoded_eP[instances.edge_I])
        count_E = torch.bincount(instances.entry_I, minlength=entries).clamp(min=1)
        return sums_E2P.view(entries, 2 * width) / count_E[:, None]


def _require_attr(batch: GraphBatch) -> Tensor:
    if batch.edge_attr_eP is None:
        raise ValueError("edge_attr is missing. The model reads features of the edges.")
    return batch.edge_attr_eP


@final
class EdgeBias(nn.Module):
    """What the features of edges add to the logits of the attention in one block.

    E = - sum_h sum_C 1/beta_h log sum_{B seen by C} exp(beta_h K_hB . Q_hC + w_h . e_CB) with e the
    encoding of the entry: a constant of the motion, so that the force has the same closed form
    (Energy Transformer eq. 24 has the weights of edges as factors, see `EdgeTerms`).
    """

    def __init__(self, entry_width: int, heads: int) -> None:
        super().__init__()
        self.weight_HQ = nn.Parameter(torch.randn(heads, entry_width) * 0.02)

    def forward(self, entries_EQ: Tensor) -> Tensor:
        """Bias (E, H)."""
        return entries_EQ.to(self.weight_HQ) @ self.weight_HQ.T
