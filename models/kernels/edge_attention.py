"""Row-parallel CSR kernels for neighbour attention on CPU.

Every kernel works on a range of rows, releases the GIL and writes only to its
own rows (but see `attend_rows`), so `over_rows` can hand ranges to threads and
the result does not depend on how many there are. Shapes: N nodes, E edges, H
heads, Y head width.

`weight` and `bias` (E,H) may be None, and `t_edge`: numba compiles a kernel of its own for that,
from which the branches on them are gone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from threading import Lock

import numpy as np
import torch
from numba import njit

from models.kernels.exponential import FAST, exp

_PARALLEL_WORK = 2_000_000  # multiply-adds below which a thread costs more than it saves
_pool = ThreadPoolExecutor(thread_name_prefix="csr")


def over_rows(kernel: Callable[..., None], indptr: np.ndarray, width: int, *args) -> None:
    """Run `kernel(lo, hi, indptr, *args)` over all rows, split by number of edges."""
    rows = len(indptr) - 1
    threads, bounds = threads_for(indptr[-1] * width), [0, rows]
    if threads > 1:  # more parts than threads evens out hubs
        cuts = np.searchsorted(indptr, np.linspace(0, indptr[-1], 4 * threads + 1)[1:-1])
        bounds[1:1] = np.maximum.accumulate(np.minimum(cuts, rows)).tolist()
    in_parts(kernel, bounds, threads, indptr, *args)


def threads_for(work: int) -> int:
    """Number of threads that this many multiply-adds pay for."""
    return torch.get_num_threads() if work > _PARALLEL_WORK else 1


def in_parts(kernel: Callable[..., None], bounds: Sequence[int], threads: int, *args) -> None:
    """Run `kernel(lo, hi, *args)` from each of `bounds` to the next, here and on other threads."""
    if threads == 1:
        kernel(bounds[0], bounds[-1], *args)
        return
    parts = ((lo, hi) for lo, hi in pairwise(bounds) if lo < hi)
    lock = Lock()

    def work() -> None:
        while True:
            with lock:
                part = next(parts, None)
            if part is None:
                return
            kernel(*part, *args)

    jobs = [_pool.submit(work) for _ in range(threads - 1)]
    try:
        work()
    finally:
        for job in jobs:
            # One that has not begun has nothing left to do, and would wait for parts of others.
            if not job.cancel():
                job.result()


@njit(nogil=True, cache=True)
def by_source(source, receiver, nodes, undirected, self_loops):
    """CSR of the receivers of each node, unordered: self-loops dropped, or one for every node."""
    indptr = np.zeros(nodes + 1, np.int64)
    for e in range(len(source)):
        if source[e] != receiver[e]:
            indptr[source[e] + 1] += 1
            if undirected:
                indptr[receiver[e] + 1] += 1
    for i in range(nodes):
        indptr[i + 1] += indptr[i] + self_loops
    indices, fill = np.empty(indptr[nodes], np.int32), indptr[:-1].copy()
    if self_loops:
        for i in range(nodes):
            indices[fill[i]] = i
            fill[i] += 1
    for e in range(len(source)):
        i, j = source[e], receiver[e]
        if i != j:
            indices[fill[i]] = j
            fill[i] += 1
            if undirected:
                indices[fill[j]] = i
                fill[j] += 1
    return indptr, indices


@njit(nogil=True, cache=True)
def by_receiver(indptr, indices):
    """CSR of the sources of each node, ascending and each once, from that of the receivers."""
    nodes = len(indptr) - 1
    ends = np.zeros(nodes + 1, np.int64)
    for e in range(len(indices)):
        ends[indices[e] + 1] += 1
    for i in range(nodes):
        ends[i + 1] += ends[i]
    sources, fill = np.empty_like(indices), ends[:-1].copy()
    for i in range(nodes):  # in ascending order, so that what each receives is ascending too
        for e in range(indptr[i], indptr[i + 1]):
            j = indices[e]
            if fill[j] == ends[j] or sources[fill[j] - 1] != i:
                sources[fill[j]] = i
                fill[j] += 1
    kept = np.zeros(nodes + 1, np.int64)
    for j in range(nodes):
        count = fill[j] - ends[j]
        sources[kept[j] : kept[j] + count] = sources[ends[j] : fill[j]]
        kept[j + 1] = kept[j] + count
    return kept, sources[: kept[nodes]].copy()


@njit(nogil=True, cache=True)
def transpose(indptr, indices, t_indptr, t_indices, t_edge):
    """CSR of the transpose, with the position of each entry in the original (counting sort)."""
    rows = len(indptr) - 1
    for e in range(len(indices)):
        t_indptr[indices[e] + 1] += 1
    for i in range(len(t_indptr) - 1):
        t_indptr[i + 1] += t_indptr[i]
    fill = t_indptr[:-1].copy()
    for i in range(rows):
        for e in range(indptr[i], indptr[i + 1]):
            at = fill[indices[e]]
            fill[indices[e]] += 1
            t_indices[at] = i
            t_edge[at] = e


@njit(nogil=True, cache=True)
def seen_by_each(source, receiver, nodes, undirected, self_loops):
    """CSR of the sources of each node, as `by_receiver` gives it: two linear passes, each reading
    in order, where one sort would take E log E; in one call, which of a small graph costs more than
    what it does."""
    return by_receiver(*by_source(source, receiver, nodes, undirected, self_loops))


@njit(nogil=True, cache=True, fastmath=FAST)
def attend_rows(lo, hi, indptr, indices, q, k, beta, weight, bias, p, lse, pk, ptq):
    """Softmax over each row's neighbours: lse (N,H), p (E,H), pk = sum_j p_ij w_ij k_j (N,H,Y).

    Where `p` or `pk` is None, it is not to be had. With `ptq`, which is written at those that are
    seen, so that one call has to have all rows, it does what `gather_columns` does, in its order:
    nothing of edges need then be kept.
    """
    heads, width = q.shape[1], q.shape[2]
    most = 0
    for i in range(lo, hi):
        most = max(most, indptr[i + 1] - indptr[i])
    s, powers = np.empty(most, q.dtype), np.empty(most, np.int32)
    for i in range(lo, hi):
        start, seen = indptr[i], indptr[i + 1] - indptr[i]
        if seen == 0:
            continue  # an isolated node keeps the zeros it was given
        for h in range(heads):
            top = q.dtype.type(-np.inf)  # a Python float would make the exponentials float64
            for e in range(seen):
                j = indices[start + e]
                a = q.dtype.type(0)
                for y in range(width):
                    a += q[i, h, y] * k[j, h, y]
                a *= beta[i, h]
                if weight is not None:
                    a *= weight[start + e, h]
                if bias is not None:
                    a += bias[start + e, h]
                s[e] = a
                if not a <= top:  # lets NaN through
                    top = a
            for e in range(seen):
                s[e] -= top
            exp(s[:seen], powers)
            total = q.dtype.type(0)
            for e in range(seen):
                total += s[e]
            lse[i, h] = top + np.log(total)
            scale = q.dtype.type(1) / total
            if p is not None:
                for e in range(seen):
                    p[start + e, h] = s[e] * scale
            if pk is not None:
                for e in range(seen):
                    w = s[e] * scale
                    if weight is not None:
                        w *= weight[start + e, h]
                    j = indices[start + e]
                    for y in range(width):
                        pk[i, h, y] += w * k[j, h, y]
                    if ptq is not None:
                        for y in range(width):
                            ptq[j, h, y] += w * q[i, h, y]


@njit(nogil=True, cache=True, fastmath=FAST)
def pair_products(lo, hi, indptr, indices, q, k, out):
    """out_ij = q_i . k_j (E,H) of those j that i sees."""
    heads, width = q.shape[1], q.shape[2]
    for i in range(lo, hi):
        for e in range(indptr[i], indptr[i + 1]):
            j = indices[e]
            for h in range(heads):
                s = q.dtype.type(0)
                for y in range(width):
                    s += q[i, h, y] * k[j, h, y]
                out[e, h] = s


@njit(nogil=True, cache=True, fastmath=FAST)
def gather_columns(lo, hi, t_indptr, t_indices, t_edge, p, q, ptq):
    """ptq_j = sum over rows i that see j of p_ij q_i; p carries the weight, if there is one.

    Without `t_edge` the adjacency is that of the receivers, and it sums over those that j sees.
    """
    heads, width = q.shape[1], q.shape[2]
    for j in range(lo, hi):
        for at in range(t_indptr[j], t_indptr[j + 1]):
            i = t_indices[at]
            e = at if t_edge is None else t_edge[at]
            for h in range(heads):
                w = p[e, h]
                for y in range(width):
                    ptq[j, h, y] += w * q[i, h, y]


@njit(nogil=True, cache=True, fastmath=FAST)
def backward_rows(
    lo,
    hi,
    indptr,
    indices,
    q,
    k,
    beta,
    weight,
    p,
    pk,
    g_lse,
    g_pk,
    g_ptq,
    g_p,
    ds,
    dq,
    dbeta,
    dweight,
):
    """Gradient of the row pass: dq, dbeta, and the logit gradient ds (E,H) for the column pass.

    ds is the gradient of the bias too; `dweight` (E,H) is filled where there is a weight, and
    `g_p` (E,H) may be None.
    """
    heads, width = q.shape[1], q.shape[2]
    dsk = np.zeros(width, q.dtype)  # sum_j ds_ij w_ij k_j of the row at hand
    for i in range(lo, hi):
        for h in range(heads):
            mean = q.dtype.type(0)
            dsk[:] = 0
            for e in range(indptr[i], indptr[i + 1]):
                j = indices[e]
                a = q.dtype.type(0)
                for y in range(width):
                    a += g_pk[i, h, y] * k[j, h, y] + g_ptq[j, h, y] * q[i, h, y]
                w = p[e, h]
                if weight is not None:
                    dweight[e, h] = w * a
                    a *= weight[e, h]
                if g_p is not None:
                    a += g_p[e, h]
                ds[e, h] = a
                a *= w
                mean += a
                if weight is not None:
                    a *= weight[e, h]
                    w *= weight[e, h]
                for y in range(width):
                    dsk[y] += a * k[j, h, y]
                    dq[i, h, y] += w * g_ptq[j, h, y]
            # ds = p (a - mean + g_lse); its second part needs no pass over k: there it sums to pk_i
            shift = g_lse[i, h] - mean
            for e in range(indptr[i], indptr[i + 1]):
                ds[e, h] = p[e, h] * (ds[e, h] + shift)
                if weight is not None:
                    c = q.dtype.type(0)
                    j = indices[e]
                    for y in range(width):
                        c += q[i, h, y] * k[j, h, y]
                    dweight[e, h] += ds[e, h] * beta[i, h] * c
            db = q.dtype.type(0)
            for y in range(width):
                dsk[y] += shift * pk[i, h, y]
                db += q[i, h, y] * dsk[y]
                dq[i, h, y] += beta[i, h] * dsk[y]
            dbeta[i, h] = db


@njit(nogil=True, cache=True, fastmath=FAST)
def backward_columns(lo, hi, t_indptr, t_indices, t_edge, q, beta, p, ds, g_pk, dk):
    """dk_j = sum over rows i that see j of beta_i ds_ij q_i + p_ij g_pk_i.

    Both ds and p carry the weight, if there is one.
    """
    heads, width = q.shape[1], q.shape[2]
    for j in range(lo, hi):
        for at in range(t_indptr[j], t_indptr[j + 1]):
            i, e = t_indices[at], t_edge[at]
            for h in range(heads):
                a, b = beta[i, h] * ds[e, h], p[e, h]
                for y in range(width):
                    dk[j, h, y] += a * q[i, h, y] + b * g_pk[i, h, y]


@njit(nogil=True, cache=True, fastmath=FAST)
def mean_rows(lo, hi, indptr, indices, x, out):
    """out_i = mean of x over the neighbours of i (zero when there are none)."""
    for i in range(lo, hi):
        degree = indptr[i + 1] - indptr[i]
        if degree == 0:
            continue
        for e in range(indptr[i], indptr[i + 1]):
            j = indices[e]
            for f in range(x.shape[1]):
                out[i, f] += x[j, f]
        for f in range(x.shape[1]):
            out[i, f] /= degree
