"""The columns of nodes, and their encoding, on CPU; see `models.inputs.features.NodeFeatures`."""

from __future__ import annotations

import numpy as np
from numba import njit

from models.kernels.edge_attention import in_parts, over_rows, threads_for


def describe(indptr, indices, x, hops, table, at, outside=None):
    """Into `table` (N, C), float64, from the column `at`: log(1 + degree), the means of that and
    x (N, F) over the neighbours one step away, their standard deviations there, and the means two
    to `hops` steps away.

    `outside` is what neighbours that are not among the N add: their number (N,), the sums that they
    add to those of each hop (N, hops, F + 1), and of squares (N, F + 1).
    """
    nodes, features = x.shape
    now = np.empty((nodes, features + 1))
    now[:, :features] = x
    then = np.empty_like(now)
    if threads_for(indptr[-1] * (features + 1)) == 1:  # a call for each hop is half of a small one
        _describe(indptr, indices, hops, now, then, table, at, outside)
        return
    _own(0, nodes, indptr, now, table, at, outside)
    at += 1
    for hop in range(hops):
        over_rows(_hop, indptr, features + 1, indices, now, then, table, at, hop, outside)
        now, then, at = then, now, at + (features + 1) * (1 + (hop == 0))


def encode(table, column, lower, width, encoded):
    """clip((c - lower) / width, 0, 1), float32 (N, P), of each column c that P names."""
    threads = threads_for(encoded.size * 4)
    if threads == 1:
        _encode(0, len(table), table, column, lower, width, encoded)
        return
    bounds = np.linspace(0, len(table), 4 * threads + 1).astype(np.int64).tolist()
    in_parts(_encode, bounds, threads, table, column, lower, width, encoded)


@njit(nogil=True, cache=True)
def _describe(indptr, indices, hops, now, then, table, at, outside):
    nodes, width = now.shape
    _own(0, nodes, indptr, now, table, at, outside)
    at += 1
    for hop in range(hops):
        _hop(0, nodes, indptr, indices, now, then, table, at, hop, outside)
        now, then = then, now
        at += width * (2 if hop == 0 else 1)


@njit(nogil=True, cache=True)
def _own(lo, hi, indptr, now, table, at, outside):
    last = now.shape[1] - 1
    for i in range(lo, hi):
        degree = float(indptr[i + 1] - indptr[i])
        if outside is not None:
            degree += outside[0][i]
        now[i, last] = table[i, at] = np.log1p(degree)


@njit(nogil=True, cache=True)
def _hop(lo, hi, indptr, indices, now, then, table, at, hop, outside):
    width, spread = now.shape[1], hop == 0
    squared = np.empty(width)
    for i in range(lo, hi):
        then[i] = 0
        squared[:] = 0
        degree = float(indptr[i + 1] - indptr[i])
        if outside is not None:
            degree += outside[0][i]
            then[i] = outside[1][i, hop]
            squared[:] = outside[2][i]
        degree = max(degree, 1.0)
        for e in range(indptr[i], indptr[i + 1]):
            j = indices[e]
            for f in range(width):
                then[i, f] += now[j, f]
            if spread:
                for f in range(width):
                    squared[f] += now[j, f] * now[j, f]
        for f in range(width):
            then[i, f] /= degree
            table[i, at + f] = then[i, f]
        if spread:
            for f in range(width):
                left = squared[f] / degree - then[i, f] * then[i, f]
                table[i, at + width + f] = np.sqrt(0.0 if left < 0 else left)  # lets NaN through


@njit(nogil=True, cache=True)
def copy_rows(first, indptr, values, copied):
    """Into `copied[indptr[r] : indptr[r + 1]]` as many `values`, from `first[r]` on, unless that is
    below 0."""
    for r in range(len(first)):
        if first[r] >= 0:
            for at in range(indptr[r + 1] - indptr[r]):
                copied[indptr[r] + at] = values[first[r] + at]


@njit(nogil=True, cache=True)
def list_neighbors(rows, indptr, halves, row_shift, relation, dead, undirected, self_loops):
    """CSR of the neighbours that `rows` see along edges of one relation, each once.

    `halves[indptr[r] : indptr[r + 1]]` are the half edges of `rows[r]`, those of one neighbour
    together: the neighbour's row above `row_shift` bits that hold the relation and whether the edge
    comes in. `dead` marks neighbours that are no more.
    """
    ends = np.zeros(len(rows) + 1, np.int64)
    others = np.empty(len(halves) + len(rows) * self_loops, np.int64)
    count, low = 0, (1 << row_shift) - 1
    for r in range(len(rows)):
        last = -1
        if self_loops:
            others[count] = rows[r]
            count += 1
        for e in range(indptr[r], indptr[r + 1]):
            other = halves[e] >> row_shift
            inward = halves[e] & 1
            if other == last or other == rows[r] or dead[other]:
                continue
            if (halves[e] & low) >> 1 != relation or not (undirected or inward):
                continue
            others[count] = last = other
            count += 1
        ends[r + 1] = count
    return ends, others[:count]


@njit(nogil=True, cache=True)
def average(rows, indptr, indices, values, means):
    """Into `means[rows]` the means of `values` over the neighbours, zero where there are none."""
    width = values.shape[1]
    total = np.empty(width)
    for r in range(len(rows)):
        total[:] = 0
        for e in range(indptr[r], indptr[r + 1]):
            j = indices[e]
            for f in range(width):
                total[f] += values[j, f]
        means[rows[r]] = total / max(indptr[r + 1] - indptr[r], 1)


@njit(nogil=True, cache=True)
def add_outside(indptr, indices, is_inside, layers, count, sums, squares):
    """Add what the neighbours that are not `is_inside` are to `count`, `sums` and `squares`, the
    `outside` of `describe`; `layers` (hops, rows, F + 1) has what is averaged at each hop."""
    for r in range(len(indptr) - 1):
        for e in range(indptr[r], indptr[r + 1]):
            other = indices[e]
            if is_inside[other]:
                continue
            count[r] += 1
            for hop in range(layers.shape[0]):
                for f in range(layers.shape[2]):
                    value = layers[hop, other, f]
                    sums[r, hop, f] += value
                    if hop == 0:
                        squares[r, f] += value * value


@njit(nogil=True, cache=True)
def _encode(lo, hi, table, column, lower, width, encoded):
    for i in range(lo, hi):
        for p in range(len(column)):
            value = (table[i, column[p]] - lower[p]) / width[p]
            encoded[i, p] = 0.0 if value < 0 else (1.0 if value > 1 else value)
