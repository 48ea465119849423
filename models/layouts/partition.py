"""Some of the nodes of a graph, whose neighbours may be anywhere in it.

A graph that is too large, or has to be done soon, is cut into windows that are computed apart. A
window reads from outside what its neighbours are; what `EdgeList` does in one call for all nodes it
does for its own, with the same kernels in the same order, but that what pulls at a node is weighed
by exp(s - lse), where `EdgeList` has the softmax at hand.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

import numpy as np
import torch
from torch import Tensor

from models.kernels import edge_attention
from models.layouts.base import Attention, Layout


@final
@dataclass(frozen=True)
class GraphPartition:
    """n nodes and the edges at one of their ends, e of them; on a CPU.

    Attributes:
        indptr: CSR of the nodes, int64 (n + 1,).
        local: the other end of each edge, as a row of `others`, int32 (e,).
        others: rows of the graph, ascending: all that is at the other ends.
    """

    indptr: np.ndarray
    local: np.ndarray
    others: np.ndarray

    @classmethod
    def cut(cls, indptr: np.ndarray, indices: np.ndarray, first: int, last: int) -> GraphPartition:
        """The nodes from `first` to before `last` of a CSR."""
        start, stop = indptr[first], indptr[last]
        others, local = np.unique(indices[start:stop], return_inverse=True)
        return cls(
            indptr[first : last + 1] - start, local.astype(np.int32), others.astype(np.int64)
        )

    def mean(self, others_LF: np.ndarray) -> Tensor:
        """The mean over the neighbours of each node (n, F), 0 where there are none."""
        width = others_LF.shape[1]
        out = np.zeros((len(self.indptr) - 1, width), others_LF.dtype)
        self._over(edge_attention.mean_rows, width, np.ascontiguousarray(others_LF), out)
        return torch.from_numpy(out)

    def read(
        self,
        q_nHY: np.ndarray,
        k_LHY: np.ndarray,
        beta_nH: np.ndarray,
        bias_eH: np.ndarray | None = None,
    ) -> tuple[Tensor, Tensor]:
        """`lse` (n, H) and `pk` (n, H, Y) of `Attention`, of nodes that see the `others`."""
        lse, pk = np.zeros_like(beta_nH), np.zeros_like(q_nHY)
        given = q_nHY, k_LHY, beta_nH, None, bias_eH  # no weights
        self._over(edge_attention.attend_rows, _width(q_nHY), *given, None, lse, pk, None)
        return torch.from_numpy(lse), torch.from_numpy(pk)

    def write(
        self,
        k_nHY: np.ndarray,
        q_LHY: np.ndarray,
        beta_LH: np.ndarray,
        lse_LH: np.ndarray,
        bias_eH: np.ndarray | None = None,
    ) -> Tensor:
        """`ptq` (n, H, Y) of `Attention`, of nodes that are seen by the `others`."""
        p = np.empty((len(self.local), k_nHY.shape[1]), k_nHY.dtype)
        self._over(edge_attention.pair_products, _width(k_nHY), k_nHY, q_LHY, p)
        logits = p * beta_LH[self.local] - lse_LH[self.local]
        np.exp(logits if bias_eH is None else logits + bias_eH, out=p)
        ptq = np.zeros_like(k_nHY)
        self._over(edge_attention.gather_columns, _width(k_nHY), None, p, q_LHY, ptq)
        return torch.from_numpy(ptq)

    def _over(self, kernel: Any, width: int, *arrays: np.ndarray | None) -> None:
        edge_attention.over_rows(kernel, self.indptr, width, self.local, *arrays)


@final
class PrecomputedAttention(Layout):
    """Nodes of one graph, of which somebody has found out the attention, if there is any."""

    def __init__(self, nodes: int, attention: Attention | None) -> None:
        self.rows, self.row_of_N = 1, torch.zeros(nodes, dtype=torch.int64)
        self._attention = attention

    def attend(self, q_NHY: Tensor, k_NHY: Tensor, beta_NH: Tensor) -> Attention:
        assert self._attention is not None
        return self._attention


def _width(u: np.ndarray) -> int:
    return u.shape[1] * u.shape[2]
