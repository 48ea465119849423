"""The columns of nodes, and their encoding, on CPU; see `models.inputs.features.NodeFeatures`."""

from __future__ import annotations

import numpy as np
from numba import njit

from models.kernels.edge_attention import in_parts, over_rows, threads_for


def describe(indptr, indices, x, hops, table, at):
    """Into `table` (N, C), float64, from the column `at`: log(1 + degree), the means of that and
    x (N, F) over the neighbours one step away, their standard deviations there, and the means two
    to `hops` steps away."""
    nodes, features = x.shape
    now = np.empty((nodes, features + 1))
    now[:, :features] = x
    then = np.empty_like(now)
    if threads_for(indptr[-1] * (features + 1)) == 1:  # a call for each hop is half of a small one
        _describe(indptr, indices, hops, now, then, table, at)
        return
    _own(0, nodes, indptr, now, table, at)
    at += 1
    for hop in range(hops):
        over_rows(_hop, indptr, features + 1, indices, now, then, table, at, hop == 0)
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
def _describe(indptr, indices, hops, now, then, table, at):
    nodes, width = now.shape
    _own(0, nodes, indptr, now, table, at)
    at += 1
    for hop in range(hops):
        _hop(0, nodes, indptr, indices, now, then, table, at, hop == 0)
        now, then = then, now
        at += width * (2 if hop == 0 else 1)


@njit(nogil=True, cache=True)
def _own(lo, hi, indptr, now, table, at):
    last = now.shape[1] - 1
    for i in range(lo, hi):
        now[i, last] = table[i, at] = np.log1p(float(indptr[i + 1] - indptr[i]))


@njit(nogil=True, cache=True)
def _hop(lo, hi, indptr, indices, now, then, table, at, spread):
    width = now.shape[1]
    squared = np.empty(width)
    for i in range(lo, hi):
        then[i] = 0
        squared[:] = 0
        degree = float(max(indptr[i + 1] - indptr[i], 1))
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
def _encode(lo, hi, table, column, lower, width, encoded):
    for i in range(lo, hi):
        for p in range(len(column)):
            value = (table[i, column[p]] - lower[p]) / width[p]
            encoded[i, p] = 0.0 if value < 0 else (1.0 if value > 1 else value)
