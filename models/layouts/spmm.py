"""Products of pairs over an edge list, and sums weighed by pairs; each is the other's gradient."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

import torch
from torch import Tensor

from models.kernels import edge_attention


class Edges(Protocol):
    """Edges in CSR form, grouped by receiver and, with the prefix `t_`, by source; see `EdgeList`.

    `t_edge_E` are the places of the transposed edges in the order by receiver.
    """

    num_edges: int

    @property
    def indptr_N1(self) -> Tensor: ...
    @property
    def indices_E(self) -> Tensor: ...
    @property
    def t_indptr_N1(self) -> Tensor: ...
    @property
    def t_indices_E(self) -> Tensor: ...
    @property
    def t_edge_E(self) -> Tensor: ...
    def chunks(self) -> Iterator[tuple[Tensor, Tensor, slice]]:
        """Receivers and sources of the edges, a bounded number at a time."""
        ...


class Sddmm(torch.autograd.Function):
    """q_i . k_j (E, H) of each token i and those j that it sees."""

    @staticmethod
    def forward(ctx: Any, q_NHY: Tensor, k_NHY: Tensor, edges: Edges) -> Tensor:
        q, k = q_NHY.contiguous(), k_NHY.contiguous()
        ctx.save_for_backward(q, k)
        ctx.edges = edges
        return _products(edges, q, k)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad_EH: Tensor):  # pyright: ignore
        (q, k), edges = ctx.saved_tensors, ctx.edges
        return _sums(edges, grad_EH, k, False), _sums(edges, grad_EH, q, True), None


class Spmm(torch.autograd.Function):
    """sum_j w_ij u_j over those j that i sees, or, transposed, sum_i w_ij u_i over those i that
    see j; (N, H, Y)."""

    @staticmethod
    def forward(
        ctx: Any, weight_EH: Tensor, u_NHY: Tensor, edges: Edges, transposed: bool
    ) -> Tensor:
        u = u_NHY.contiguous()
        ctx.save_for_backward(weight_EH, u)
        ctx.edges, ctx.transposed = edges, transposed
        return _sums(edges, weight_EH, u, transposed)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad_NHY: Tensor):  # pyright: ignore
        (weight, u), edges, transposed = ctx.saved_tensors, ctx.edges, ctx.transposed
        grad = grad_NHY.contiguous()
        ends = (u, grad) if transposed else (grad, u)
        return _products(edges, *ends), _sums(edges, weight, grad, not transposed), None, None


def _products(edges: Edges, q: Tensor, k: Tensor) -> Tensor:
    run = _cpu_products if q.device.type == "cpu" else _torch_products
    return run(edges, q, k)


def _sums(edges: Edges, weight_EH: Tensor, u: Tensor, transposed: bool) -> Tensor:
    run = _cpu_sums if u.device.type == "cpu" else _torch_sums
    return run(edges, weight_EH.contiguous(), u, transposed)


def _cpu_products(edges: Edges, q: Tensor, k: Tensor) -> Tensor:
    out_EH = q.new_empty(edges.num_edges, q.shape[1])
    indptr, width = edges.indptr_N1.numpy(), q.shape[1] * q.shape[2]
    arrays = (t.numpy() for t in (edges.indices_E, q, k, out_EH))
    edge_attention.over_rows(edge_attention.pair_products, indptr, width, *arrays)
    return out_EH


def _cpu_sums(edges: Edges, weight_EH: Tensor, u: Tensor, transposed: bool) -> Tensor:
    out_NHY = torch.zeros_like(u)
    if transposed:
        indptr, indices, at = edges.t_indptr_N1, edges.t_indices_E, edges.t_edge_E.numpy()
    else:
        indptr, indices, at = edges.indptr_N1, edges.indices_E, None
    arrays = (indices.numpy(), at, weight_EH.numpy(), u.numpy(), out_NHY.numpy())
    edge_attention.over_rows(
        edge_attention.gather_columns, indptr.numpy(), u.shape[1] * u.shape[2], *arrays
    )
    return out_NHY


def _torch_products(edges: Edges, q: Tensor, k: Tensor) -> Tensor:
    """The same on any device, in chunks of edges."""
    out_EH = q.new_empty(edges.num_edges, q.shape[1])
    for i, j, part in edges.chunks():
        out_EH[part] = (q[i] * k[j]).sum(-1)
    return out_EH


def _torch_sums(edges: Edges, weight_EH: Tensor, u: Tensor, transposed: bool) -> Tensor:
    out_NHY = torch.zeros_like(u)
    for i, j, part in edges.chunks():
        here, there = (j, i) if transposed else (i, j)
        out_NHY.index_add_(0, here, weight_EH[part, :, None] * u[there])
    return out_NHY
