"""Graphs packed into one CSR adjacency: O(E H) memory, never O(E Y)."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from copy import copy
from functools import cached_property
from typing import Any, final

import numpy as np
import torch
from torch import Tensor

from models.kernels import edge_attention
from models.layouts.base import Attention
from models.layouts.pairwise import Pairwise, joined
from models.layouts.spmm import Sddmm, Spmm
from models.resonance import AttentionPrior

_CHUNK = 1 << 18  # edges gathered at a time off the CPU: bounds the temporary to a constant


@final
class EdgeList(Pairwise):
    """R graphs as one disjoint union. Token i sees the sources j of its edges j -> i.

    Build it with `from_edges`. `indptr_N1`, `indices_E` are the CSR of the receivers; the `t_`
    properties are its transpose, with `t_edge_E` the place of each entry in the first.
    """

    weight_EH: Tensor | None = None
    bias_EH: Tensor | None = None

    def __init__(self, indptr_N1: Tensor, indices_E: Tensor, row_of_N: Tensor, rows: int) -> None:
        self.indptr_N1, self.indices_E = indptr_N1, indices_E
        self.row_of_N, self.rows = row_of_N, rows
        self._seers = _Seers(indptr_N1, indices_E)

    @property
    def t_indptr_N1(self) -> Tensor:
        return self._seers.found[0]

    @property
    def t_indices_E(self) -> Tensor:
        return self._seers.found[1]

    @property
    def t_edge_E(self) -> Tensor:
        return self._seers.found[2]

    @classmethod
    def from_edges(
        cls,
        edge_index_2E: Tensor | np.ndarray,
        num_nodes: int,
        *,
        row_of_N: Tensor | None = None,
        rows: int = 1,
        undirected: bool = True,
        self_loops: bool = False,
    ) -> EdgeList:
        """Sort, deduplicate and, if asked, symmetrise an edge list.

        Args:
            edge_index_2E: integer (2, E), source above receiver, in [0, num_nodes).
            row_of_N: graph of each node when several are packed; one graph if None.
            undirected: every edge is also seen from its other end.
            self_loops: give every node an edge to itself; otherwise they are all dropped
                (B != C in Energy Transformer eq. 3).
        """
        source, receiver = np.ascontiguousarray(edge_index_2E, np.int32)
        if row_of_N is None:
            row_of_N = torch.zeros(num_nodes, dtype=torch.int64)
        graph = source, receiver, num_nodes, undirected, self_loops
        indptr, indices = map(torch.from_numpy, edge_attention.seen_by_each(*graph))
        return cls(indptr, indices, row_of_N, rows)

    def to(self, device: torch.device | str) -> EdgeList:
        """The same edges on another device."""
        if torch.device(device) == self.indices_E.device:
            return self
        return EdgeList(
            self.indptr_N1.to(device),
            self.indices_E.to(device),
            self.row_of_N.to(device),
            self.rows,
        )

    def weighed(self, weight_EH: Tensor | None = None, bias_EH: Tensor | None = None) -> EdgeList:
        """The same edges with a weight and a bias for each head, in the order of `indices_E`."""
        layout = copy(self)
        layout.weight_EH, layout.bias_EH = weight_EH, bias_EH
        return layout

    @property
    def _weighs(self) -> Hashable:
        return self.weight_EH is None, self.bias_EH is None

    def _bounds(self, first: int, last: int) -> tuple[slice, slice]:
        """The tokens and the edges of the rows from `first` to before `last`."""
        rows = torch.tensor([first, last], device=self.row_of_N.device)
        start, stop = torch.searchsorted(self.row_of_N, rows).tolist()
        return slice(start, stop), slice(int(self.indptr_N1[start]), int(self.indptr_N1[stop]))

    def _part(self, first: int, last: int) -> EdgeList:
        # No edge leaves its row, so that those of a row stand together.
        tokens, edges = self._bounds(first, last)
        ends = slice(tokens.start, tokens.stop + 1)
        return EdgeList(
            self.indptr_N1[ends] - edges.start,
            self.indices_E[edges] - tokens.start,
            self.row_of_N[tokens] - first,
            last - first,
        ).weighed(
            None if self.weight_EH is None else self.weight_EH[edges],
            None if self.bias_EH is None else self.bias_EH[edges],
        )

    def _joined(self, several: Sequence[Any]) -> EdgeList:
        counts = [(len(each.row_of_N), each.num_edges, each.rows) for each in several]
        at = np.cumsum([(0, 0, 0), *counts], 0)
        tokens, edges, rows = at[:-1].T
        last = np.cumsum([count + 1 for count, _, _ in counts])[:-1] - 1  # of all pointers but one

        def moved(*fields: tuple[str, np.ndarray]) -> list[Tensor]:
            """Each after the other; as one, as many small tensors take longer to look at than
            to move."""
            parts = [[getattr(each, name) for each in several] for name, _ in fields]
            shifts = [
                np.repeat(by, [len(part) for part in of])
                for (_, by), of in zip(fields, parts, strict=True)
            ]
            together = torch.cat([part for of in parts for part in of])
            shift = torch.from_numpy(np.concatenate(shifts)).to(together)
            return list((together + shift).split([len(each) for each in shifts]))

        indptr, row_of_N = moved(("indptr_N1", edges), ("row_of_N", rows))
        (indices_E,) = moved(("indices_E", tokens))
        kept = np.ones(len(indptr), bool)
        kept[last] = False  # where the next begins
        return EdgeList(
            indptr[torch.from_numpy(kept).to(indptr.device)],
            indices_E,
            row_of_N,
            int(at[-1, 2]),
        ).weighed(
            joined([each.weight_EH for each in several]),
            joined([each.bias_EH for each in several]),
        )

    @property
    def num_edges(self) -> int:
        """Edges as seen: an undirected edge counts twice."""
        return len(self.indices_E)

    @property
    def num_pairs(self) -> int:
        return self.num_edges

    @property
    def degree_N(self) -> Tensor:
        return self.indptr_N1.diff()

    @cached_property
    def receivers_E(self) -> Tensor:
        """The token that sees along each edge, int64; `indices_E` are those it sees."""
        tokens = torch.arange(len(self.degree_N), device=self.indices_E.device)
        return torch.repeat_interleave(tokens, self.degree_N)

    def products(self, q_NHY: Tensor, k_NHY: Tensor) -> Tensor:
        """(E, H)."""
        return Sddmm.apply(q_NHY, k_NHY, self)

    def pairs(self, values: Tensor, row: int) -> tuple[Tensor, Tensor, Tensor]:
        tokens, mine = self._bounds(row, row + 1)
        first = tokens.start
        return values[mine], self.receivers_E[mine] - first, self.indices_E[mine].long() - first

    def _attend(
        self, q_NHY: Tensor, k_NHY: Tensor, beta_NH: Tensor, bias: Tensor | None
    ) -> tuple[Attention, Tensor]:
        if bias is None or self.bias_EH is None:
            bias = self.bias_EH if bias is None else bias
        else:
            bias = self.bias_EH + bias
        p_EH, *found = _Attend.apply(q_NHY, k_NHY, beta_NH, self.weight_EH, bias, self)
        return Attention(*found), p_EH

    def _priors(self, prior: AttentionPrior, cosines: Tensor) -> tuple[Tensor, Tensor]:
        """(E, H) each, a bounded number of edges at a time where no gradient wants them all."""

        def of(part: slice) -> tuple[Tensor, Tensor]:
            def spread(value_PH: Tensor) -> Tensor:
                one = len(value_PH) == 1
                return value_PH if one else value_PH[self.row_of_N[self.receivers_E[part]]]

            return prior(cosines[part], spread)

        if torch.is_grad_enabled() or self.num_edges <= _CHUNK:
            return of(slice(None))
        bias, slope = torch.empty_like(cosines), torch.empty_like(cosines)
        for start in range(0, self.num_edges, _CHUNK):
            part = slice(start, start + _CHUNK)
            bias[part], slope[part] = of(part)
        return bias, slope

    def _read(self, weight: Tensor, k_NHY: Tensor) -> Tensor:
        return Spmm.apply(weight, k_NHY, self, False)

    def _write(self, weight: Tensor, q_NHY: Tensor) -> Tensor:
        return Spmm.apply(weight, q_NHY, self, True)

    @torch.no_grad()
    def mean_neighbours(self, x_NF: Tensor) -> Tensor:
        """Mean of x over the neighbours of each node, zero for an isolated one."""
        out_NF = torch.zeros_like(x_NF)
        if x_NF.device.type == "cpu":
            indptr, indices = self.indptr_N1.numpy(), self.indices_E.numpy()
            x = x_NF.contiguous().numpy()
            edge_attention.over_rows(
                edge_attention.mean_rows, indptr, x.shape[1], indices, x, out_NF.numpy()
            )
            return out_NF
        for receiver_e, source_e, _ in self.chunks():
            out_NF.index_add_(0, receiver_e, x_NF[source_e])
        return out_NF / self.degree_N.clamp(min=1)[:, None]

    def chunks(self) -> Iterator[tuple[Tensor, Tensor, slice]]:
        """Edges as (receiver, source, slice), a bounded number at a time."""
        for start in range(0, self.num_edges, _CHUNK):
            part = slice(start, start + _CHUNK)
            yield self.receivers_E[part], self.indices_E[part].long(), part


class _Seers:
    """Those that see each token, sought where somebody asks, once for all copies of a layout."""

    def __init__(self, indptr_N1: Tensor, indices_E: Tensor) -> None:
        self._indptr_N1, self._indices_E = indptr_N1, indices_E

    @cached_property
    def found(self) -> tuple[Tensor, Tensor, Tensor]:
        """CSR, and the place of each of its edges among those that are seen."""
        indptr, indices = self._indptr_N1.cpu().numpy(), self._indices_E.cpu().numpy()
        count = len(indices)
        t_indptr, t_indices = np.zeros_like(indptr), np.empty(count, np.int32)
        t_edge = np.empty(count, np.int32 if count < 2**31 else np.int64)
        edge_attention.transpose(indptr, indices, t_indptr, t_indices, t_edge)
        device = self._indices_E.device
        t_indptr_N1, t_indices_E, t_edge_E = (
            torch.from_numpy(each).to(device) for each in (t_indptr, t_indices, t_edge)
        )
        return t_indptr_N1, t_indices_E, t_edge_E


class _Attend(torch.autograd.Function):
    """p (E,H) and `Attention` over an edge list; saves p and recomputes what is (E,Y)."""

    @staticmethod
    def forward(ctx: Any, q_NHY, k_NHY, beta_NH, weight_EH, bias_EH, edges: EdgeList):
        q, k, beta = q_NHY.contiguous(), k_NHY.contiguous(), beta_NH.contiguous()
        weight, bias = _like(beta, weight_EH), _like(beta, bias_EH)
        run = _cpu_forward if q.device.type == "cpu" else _torch_forward
        p_EH, lse_NH, pk_NHY, ptq_NHY = run(edges, q, k, beta, weight, bias)
        ctx.save_for_backward(q, k, beta, weight, p_EH, pk_NHY)
        ctx.edges, ctx.biased = edges, bias is not None
        ctx.set_materialize_grads(False)  # p is (E,H), and its gradient is rarely needed
        return p_EH, lse_NH, pk_NHY, ptq_NHY

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, g_p, g_lse, g_pk, g_ptq):  # pyright: ignore
        q, k, beta, weight, p, pk = ctx.saved_tensors
        run = _cpu_backward if q.device.type == "cpu" else _torch_backward
        grads = _given(g_lse, beta), _given(g_pk, q), _given(g_ptq, q)
        g_p = None if g_p is None else g_p.contiguous()
        dq, dk, dbeta, dweight, ds = run(ctx.edges, q, k, beta, weight, p, pk, *grads, g_p)
        return dq, dk, dbeta, dweight, ds if ctx.biased else None, None


def _given(grad: Tensor | None, like: Tensor) -> Tensor:
    return torch.zeros_like(like) if grad is None else grad.contiguous()


def _like(beta: Tensor, term_EH: Tensor | None) -> Tensor | None:
    return None if term_EH is None else term_EH.to(beta.dtype).contiguous()


def _times(values_EH: Tensor, weight_EH: Tensor | None) -> Tensor:
    return values_EH if weight_EH is None else values_EH * weight_EH


def _arrays(*tensors: Tensor | None) -> list[np.ndarray | None]:
    return [None if tensor is None else tensor.numpy() for tensor in tensors]


def _cpu_forward(edges: EdgeList, q: Tensor, k: Tensor, beta: Tensor, weight, bias):
    p = q.new_empty(edges.num_edges, q.shape[1])
    lse, pk, ptq = torch.zeros_like(beta), torch.zeros_like(q), torch.zeros_like(q)
    width = q.shape[1] * q.shape[2]
    alone = edge_attention.threads_for(edges.num_edges * width) == 1
    edge_attention.over_rows(
        edge_attention.attend_rows,
        edges.indptr_N1.numpy(),
        width,
        *_arrays(edges.indices_E, q, k, beta, weight, bias, p, lse, pk, ptq if alone else None),
    )
    if not alone:
        edge_attention.over_rows(
            edge_attention.gather_columns,
            edges.t_indptr_N1.numpy(),
            width,
            *_arrays(edges.t_indices_E, edges.t_edge_E, _times(p, weight), q, ptq),
        )
    return p, lse, pk, ptq


def _cpu_backward(edges: EdgeList, q, k, beta, weight, p, pk, g_lse, g_pk, g_ptq, g_p):
    ds, dbeta = torch.empty_like(p), torch.zeros_like(beta)
    dq, dk = torch.zeros_like(q), torch.zeros_like(k)
    dweight = None if weight is None else torch.empty_like(p)
    width = q.shape[1] * q.shape[2]
    edge_attention.over_rows(
        edge_attention.backward_rows,
        edges.indptr_N1.numpy(),
        width,
        *_arrays(edges.indices_E, q, k, beta, weight, p, pk, g_lse, g_pk, g_ptq, g_p),
        *_arrays(ds, dq, dbeta, dweight),
    )
    ds_w, p_w = _times(ds, weight), _times(p, weight)
    edge_attention.over_rows(
        edge_attention.backward_columns,
        edges.t_indptr_N1.numpy(),
        width,
        *_arrays(edges.t_indices_E, edges.t_edge_E, q, beta, p_w, ds_w, g_pk, dk),
    )
    return dq, dk, dbeta, dweight, ds


def _torch_forward(edges: EdgeList, q: Tensor, k: Tensor, beta: Tensor, weight, bias):
    """The same on any device, in chunks of edges."""
    s = q.new_empty(edges.num_edges, q.shape[1])
    for i, j, part in edges.chunks():
        s[part] = (q[i] * k[j]).sum(-1) * beta[i]
    s = _times(s, weight)
    if bias is not None:
        s = s + bias
    seen = edges.degree_N > 0
    top = torch.segment_reduce(s, "max", offsets=edges.indptr_N1, initial=-torch.inf)
    top[~seen] = 0
    total = torch.zeros_like(beta)
    for i, _, part in edges.chunks():
        s[part] = (s[part] - top[i]).exp()
        total.index_add_(0, i, s[part])
    total[~seen] = 1
    pk, ptq = torch.zeros_like(q), torch.zeros_like(q)
    for i, _, part in edges.chunks():
        s[part] /= total[i]
    p_w = _times(s, weight)
    for i, j, part in edges.chunks():
        pk.index_add_(0, i, p_w[part, :, None] * k[j])
        ptq.index_add_(0, j, p_w[part, :, None] * q[i])
    return s, top + total.log(), pk, ptq


def _torch_backward(edges: EdgeList, q, k, beta, weight, p, pk, g_lse, g_pk, g_ptq, g_p):
    ds, dbeta = torch.empty_like(p), torch.zeros_like(beta)
    dq, dk = torch.zeros_like(q), torch.zeros_like(k)
    mean = torch.zeros_like(beta)
    for i, j, part in edges.chunks():
        ds[part] = (g_pk[i] * k[j] + g_ptq[j] * q[i]).sum(-1)
    dweight = None if weight is None else p * ds
    ds = _times(ds, weight)
    if g_p is not None:
        ds = ds + g_p
    for i, _, part in edges.chunks():
        mean.index_add_(0, i, p[part] * ds[part])
    shift = g_lse - mean
    for i, _, part in edges.chunks():
        ds[part] = p[part] * (ds[part] + shift[i])
    ds_w, p_w = _times(ds, weight), _times(p, weight)
    for i, j, part in edges.chunks():
        c = (q[i] * k[j]).sum(-1)
        dbeta.index_add_(0, i, ds_w[part] * c)
        if dweight is not None:
            dweight[part] += ds[part] * beta[i] * c
        bds, w = (ds_w[part] * beta[i])[..., None], p_w[part, :, None]
        dq.index_add_(0, i, bds * k[j] + w * g_ptq[j])
        dk.index_add_(0, j, bds * q[i] + w * g_pk[i])
    return dq, dk, dbeta, dweight, ds
