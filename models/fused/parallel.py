"""The looks of `models.fused.kernels` at what is large, on several threads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numba import njit

from models.fused import kernels
from models.kernels.dense_attention import attend_all
from models.kernels.edge_attention import attend_rows, in_parts, over_rows, threads_for
from models.kernels.exponential import FAST

_AT_A_TIME = 1 << 18  # edges


def see_in_parts(
    threads: int,
    tokens: Any,
    edges: Any,
    pairs: Any,
    weight: Any,
    bias: Any,
    norm: Any,
    attention: Any,
    memory: Any,
    controls: Any,
    with_force: bool,
    came: bool,
    step: Any,
    out: Any,
) -> None:
    """`see`, on several threads: all have done one thing before any begins the next, in the order
    of `look`, then `control` and `measure`. `edges` are also those that see each token, CSR, and
    the place of each of these among the others."""
    x, row_of_N, beta_RH = tokens
    drift, before, g_before = step
    g, parts, force, scratch, held, sums = out
    of_each = shares(len(x), threads)

    def each(kernel: Callable[..., None], *args: Any) -> None:
        in_parts(kernel, of_each, threads, *args)

    if attention is None:
        each(kernels.project, x, norm, None, memory, with_force, g, None, None, parts, force)
    else:
        heads, inner = attention[4], attention[1].shape[1]
        ends, length, lse, pulls = kernels.room(scratch, len(x), heads, inner)
        each(kernels.project, x, norm, attention, memory, with_force, g, ends, length, parts, force)
        sees, seen = kernels.sides(attention[3])
        beta, q, k = beta_RH[row_of_N], ends[sees], ends[seen]
        if edges is None:
            places = shares(len(x) // pairs[0] * heads, threads)
            found = lse, pulls[sees], pulls[seen]
            in_parts(attend_all, places, threads, *pairs, q, k, beta, *found, with_force)
        else:
            along = q, k, beta, weight, bias, lse, pulls[sees], pulls[seen]
            attend_in_parts(edges, *along, with_force)
        kernels.energies(0, len(x), lse, beta, attention[2], parts)
        if with_force:
            each(kernels.project_back, attention, memory, ends, length, pulls, force)
    if controls is not None:
        each(kernels.control, x, controls, held)
    kernels.measure(
        row_of_N, parts, x, came, drift, controls is not None, before, held, g, g_before, sums
    )


def attend_in_parts(
    edges: Any,
    q: Any,
    k: Any,
    beta: Any,
    weight: Any,
    bias: Any,
    lse: Any,
    pulled: Any,
    pulling: Any,
    with_force: bool,
) -> None:
    """`attend_rows` on several threads. What those are given that are seen is gathered after each
    `_AT_A_TIME` of edges, whose p are then still near; to each in the order of those who see it, so
    that the result equals that of one thread."""
    indptr, indices, t_indptr, t_indices, t_edge = edges
    inner = q.shape[1] * q.shape[2]
    if not with_force:
        given = indices, q, k, beta, weight, bias, None, lse, None, None
        over_rows(attend_rows, indptr, inner, *given)
        return
    done, runs = t_indptr[:-1].copy(), runs_of(indptr, _AT_A_TIME)
    most = max((indptr[last] - indptr[first] for first, last in runs), default=0)
    p = np.empty((most, q.shape[1]), q.dtype)
    for first, last in runs:
        start, stop = indptr[first], indptr[last]
        mine, theirs = slice(first, last), slice(start, stop)
        w, b = (None if each is None else each[theirs] for each in (weight, bias))
        found = p[: stop - start], lse[mine], pulled[mine], None
        over_rows(
            attend_rows,
            indptr[first : last + 1] - start,
            inner,
            *(indices[theirs], q[mine], k, beta[mine], w, b),
            *found,
        )
        if w is not None:
            found[0][:] *= w
        threads = threads_for((stop - start) * inner)
        bounds = shares(len(done), 4 * threads)
        given = t_indptr, t_indices, t_edge, done, last, start, found[0], q, pulling
        in_parts(gather_on, bounds, threads, *given)


def runs_of(indptr: Any, most: int) -> list[tuple[int, int]]:
    """Rows from and to, of `most` edges where more than one: a row is not divided."""
    runs, first, rows = [], 0, len(indptr) - 1
    while first < rows:
        last = int(np.searchsorted(indptr, indptr[first] + most, "right")) - 1
        runs.append((first, max(last, first + 1)))
        first = runs[-1][1]
    return runs


@njit(nogil=True, cache=True, fastmath=FAST)
def gather_on(lo, hi, t_indptr, t_indices, t_edge, done, last, start, p, q, ptq):
    """`gather_columns` of the edges of rows before `last`, of which those that are `done` (N,) are
    in `ptq`; `p` begins with edge `start`."""
    heads, width = q.shape[1], q.shape[2]
    for j in range(lo, hi):
        at, end = done[j], t_indptr[j + 1]
        while at < end and t_indices[at] < last:
            i, e = t_indices[at], t_edge[at] - start
            for h in range(heads):
                w = p[e, h]
                for y in range(width):
                    ptq[j, h, y] += w * q[i, h, y]
            at += 1
        done[j] = at


def shares(count: int, threads: int) -> list[int]:
    """Bounds of as much for each thread."""
    return [count * i // threads for i in range(threads + 1)]
