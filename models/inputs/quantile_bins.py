"""Columns of numbers as a network reads them: by the bins between their quantiles."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor, nn

from models.kernels import node_features as kernels


class QuantileBins(nn.Module):
    """Encode each column c by the bins between its quantiles b_0 < b_1 < ...: bin k gives
    clip((c - b_k-1) / (b_k - b_k-1), 0, 1) (Gorishniy et al. 2022, "On embeddings for numerical
    features in tabular deep learning", eq. 1, clipped at both ends so that an outlier stays in the
    range seen in training).

    The bins are buffers, so a checkpoint can encode what it has never seen.

    Args:
        encoding_width: P, columns of the encoding; known once the bins are fitted.
        distinct: where one value fills more than a bin's share of the rows, and so fewer bins
            remain, add the quantiles of the distinct values. Without it, this is done only where
            a single bin would remain.
    """

    lower_P: Tensor
    width_P: Tensor
    column_P: Tensor

    def __init__(self, encoding_width: int = 1, *, distinct: bool = False) -> None:
        super().__init__()
        self.distinct = distinct
        self.register_buffer("lower_P", torch.zeros(encoding_width, dtype=torch.float64))
        self.register_buffer("width_P", torch.ones(encoding_width, dtype=torch.float64))
        self.register_buffer("column_P", torch.zeros(encoding_width, dtype=torch.int64))

    @property
    def encoding_width(self) -> int:
        """P, the width of the encoding."""
        return len(self.lower_P)

    def fit_columns(self, columns: Iterable[tuple[Tensor, int]]) -> bool:
        """Set the bins to the quantiles of columns, each (N,) with its number of bins; return
        whether any column has two values."""
        lower, width, column = [], [], []
        for c, (values_N, bins) in enumerate(columns):
            edges = _compute_quantiles(values_N, bins).unique()
            if len(edges) <= (bins if self.distinct else 2):
                # One value fills more than a bin's share: add quantiles of the distinct values.
                edges = torch.cat([edges, _compute_quantiles(values_N.unique(), bins)]).unique()
            # A bin far narrower than the range of its column would magnify rounding errors.
            keep = torch.ones_like(edges, dtype=torch.bool)
            keep[1:] = edges.diff() > 1e-5 * (edges[-1] - edges[0])
            edges = edges[keep]
            if len(edges) > 1:
                lower.append(edges[:-1])
                width.append(edges.diff())
                column.append(torch.full((len(edges) - 1,), c))
        if not lower:
            return False
        self.lower_P = torch.cat(lower)
        self.width_P = torch.cat(width)
        self.column_P = torch.cat(column)
        return True

    def encode(self, table_NC: Tensor) -> Tensor:
        """Encode rows of a table, float64 (N, C), as float32 (N, P) in [0, 1]."""
        if table_NC.device.type == "cpu":
            encoded_NP = np.empty((len(table_NC), self.encoding_width), np.float32)
            bins = self.column_P.numpy(), self.lower_P.numpy(), self.width_P.numpy()
            kernels.encode(table_NC.numpy(), *bins, encoded_NP)
            return torch.from_numpy(encoded_NP)
        columns_NP = table_NC[:, self.column_P]
        return columns_NP.sub_(self.lower_P).div_(self.width_P).clamp_(0, 1).float()


def _compute_quantiles(values_N: Tensor, bins: int) -> Tensor:
    """Return `bins` + 1 evenly spaced order statistics; torch.quantile rejects large inputs."""
    ordered = values_N.sort().values
    positions = torch.linspace(0, len(ordered) - 1, bins + 1, dtype=torch.float64)
    return ordered[positions.round().long()]
