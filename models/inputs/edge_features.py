"""Features of edges as a network reads them, and what they add to its attention."""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor, nn

from models.inputs.graph_batch import GraphBatch
from models.inputs.quantile_bins import QuantileBins

_CHUNK = 1 << 18  # edges encoded at a time: bounds the temporary to a constant


@final
class EdgeFeatures(QuantileBins):
    """Encode the features of edges by bins.

    Args:
        in_features: P, features of an edge.
        bins: of each feature.
        encoding_width: as of `QuantileBins`.
    """

    def __init__(self, in_features: int, bins: int, encoding_width: int = 1) -> None:
        super().__init__(encoding_width, distinct=True)
        self.in_features, self.bins = in_features, bins

    def fit(self, batch: GraphBatch) -> EdgeFeatures:
        """Set the bins to the quantiles of the edges of `batch`, and return self.

        Raises:
            ValueError: edges have no features, or every feature is constant.
        """
        columns = _require_attr(batch).T
        if not self.fit_columns((column, self.bins) for column in columns):
            raise ValueError(
                "Every feature of the edges is constant. Leave them out, or give one with at least "
                "two values."
            )
        return self


@final
class EdgeBias(nn.Module):
    """What the features of edges add to the logits of the attention in one block.

    E = - sum_h sum_C 1/beta_h log sum_{B seen by C} exp(beta_h K_hB . Q_hC + b_hCB): a constant of
    the motion, so that the force has the same closed form (in Energy Transformer eq. 24 the
    features of edges are factors, see `EdgeTerms`).

    An edge s -> t with the encoding e is seen by t with u_h + w_h . e, and, where edges are seen
    from both ends, by s with another u and w: who pays is not who is paid. b is the sum of both
    directions, each the mean of its edges; zero without one, as of a self-loop.
    """

    def __init__(self, encoding_width: int, heads: int) -> None:
        super().__init__()
        self.weight_2HP = nn.Parameter(torch.randn(2, heads, encoding_width) * 0.02)
        self.constant_2H = nn.Parameter(torch.zeros(2, heads))

    def forward(self, features: EdgeFeatures, batch: GraphBatch, relation: int) -> Tensor:
        """Bias (E, H) of the entries of a relation.

        Raises:
            ValueError: edges have no features.
        """
        instances, entries = batch.instances[relation], batch.relations[relation].num_edges
        attr_eP = _require_attr(batch)
        parts = [
            features.encode(attr_eP[start : start + _CHUNK]).to(self.weight_2HP)
            @ self.weight_2HP.flatten(0, 1).T
            for start in range(0, len(attr_eP), _CHUNK)
        ]
        empty = self.weight_2HP.new_zeros(0, self.constant_2H.numel())
        seen_e2H = torch.cat([empty, *parts]).unflatten(1, self.constant_2H.shape)
        seen_IH = (seen_e2H + self.constant_2H)[instances.edge_I, instances.is_backward_I.long()]
        place_I = 2 * instances.entry_I + instances.is_backward_I
        sums_EH = seen_IH.new_zeros(2 * entries, seen_IH.shape[1]).index_add(0, place_I, seen_IH)
        count_E = torch.bincount(place_I, minlength=2 * entries).clamp(min=1)
        return (sums_EH / count_E[:, None]).unflatten(0, (entries, 2)).sum(1)


def _require_attr(batch: GraphBatch) -> Tensor:
    if batch.edge_attr_eP is None:
        raise ValueError("edge_attr is missing. The model reads features of the edges.")
    return batch.edge_attr_eP
