"""The columns of nodes, and their encoding, on CPU; see `models.inputs.features.NodeFeatures`."""

from __future__ import annotations

import numpy as np
from numba import njit

from models.kernels.edge_attention import in_parts, over_rows, threads_for


def describe(indptr, indices, x, hops, deviation_hops, table, at, outside=None):
    """Into `table` (N, C), float64, from the column `at`: log(1 + degree), and the means of that
    and x (N, F) over the neighbours 1 to `hops` steps away, the first `deviation_hops` of them each
    followed by the standard deviations there.

    `outside` is what neighbours that are not among the N add: their number (N,), the sums that they
    add to those of each hop (N, hops, W), and of squares (N, F + 1). W is F + 1, twice that where
    deviations are of several hops: the squares follow.
    """
    nodes, features = x.shape
    width = features + 1
    # Squares are carried along where their means over two steps are wanted.
    now = np.empty((nodes, width * (1 + (deviation_hops > 1))))
    now[:, :features] = x
    then = np.empty_like(now)
    if threads_for(indptr[-1] * now.shape[1]) == 1:  # a call for each hop is half of a small one
        _describe(indptr, indices, hops, deviation_hops, width, now, then, table, at, outside)
        return
    _own(0, nodes, indptr, width, now, table, at, outside)
    at += 1
    for hop in range(hops):
        spread = hop < deviation_hops
        given = indices, width, now, then, table, at, hop, spread, outside
        over_rows(_hop, indptr, now.shape[1], *given)
        now, then, at = then, now, at + width * (1 + spread)


def encode(table, column, lower, width, encoded):
    """clip((c - lower) / width, 0, 1), float32 (N, P), of each column c that P names."""
    threads = threads_for(encoded.size * 4)
    if threads == 1:
        _encode(0, len(table), table, column, lower, width, encoded)
        return
    bounds = np.linspace(0, len(table), 4 * threads + 1).astype(np.int64).tolist()
    in_parts(_encode, bounds, threads, table, column, lower, width, encoded)


@njit(nogil=True, cache=True)
def _describe(indptr, indices, hops, deviation_hops, width, now, then, table, at, outside):
    nodes = len(now)
    _own(0, nodes, indptr, width, now, table, at, outside)
    at += 1
    for hop in range(hops):
        spread = hop < deviation_hops
        _hop(0, nodes, indptr, indices, width, now, then, table, at, hop, spread, outside)
        now, then = then, now
        at += width * (2 if spread else 1)


@njit(nogil=True, cache=True)
def _own(lo, hi, indptr, width, now, table, at, outside):
    for i in range(lo, hi):
        degree = float(indptr[i + 1] - indptr[i])
        if outside is not None:
            degree += outside[0][i]
        now[i, width - 1] = table[i, at] = np.log1p(degree)
        for f in range(width, now.shape[1]):
            now[i, f] = now[i, f - width] * now[i, f - width]


@njit(nogil=True, cache=True)
def _hop(lo, hi, indptr, indices, width, now, then, table, at, hop, spread, outside):
    columns = now.shape[1]
    is_carried = columns > width
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
            for f in range(columns):
                then[i, f] += now[j, f]
            if spread and not is_carried:
                for f in range(width):
                    squared[f] += now[j, f] * now[j, f]
        for f in range(columns):
            then[i, f] /= degree
        for f in range(width):
            table[i, at + f] = then[i, f]
        if spread:
            for f in range(width):
                square = then[i, width + f] if is_carried else squared[f] / degree
                left = square - then[i, f] * then[i, f]
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
def average_squares(rows, indptr, indices, values, means):
    """Into `means[r]` the means of the squares of `values` over the neighbours of `rows[r]`."""
    width = means.shape[1]
    for r in range(len(rows)):
        means[r] = 0
        for e in range(indptr[r], indptr[r + 1]):
            j = indices[e]
            for f in range(width):
                means[r, f] += values[j, f] * values[j, f]
        means[r] /= max(indptr[r + 1] - indptr[r], 1)


@njit(nogil=True, cache=True)
def add_outside(indptr, indices, is_inside, layers, count, sums, squares):
    """Add what the neighbours that are not `is_inside` are to `count`, `sums` and `squares`, the
    `outside` of `describe`; `layers` (hops, rows, W) has what is averaged at each hop."""
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
                    if hop == 0 and f < squares.shape[1]:
                        squares[r, f] += value * value


@njit(nogil=True, cache=True)
def _encode(lo, hi, table, column, lower, width, encoded):
    for i in range(lo, hi):
        for p in range(len(column)):
            value = (table[i, column[p]] - lower[p]) / width[p]
            encoded[i, p] = 0.0 if value < 0 else (1.0 if value > 1 else value)
