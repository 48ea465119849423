"""Attention among all tokens of a row, in one call that needs no interpreter; as
`models.kernels.edge_attention`, but for tokens that see each other all, or all but a few.

Shapes: tokens N, R rows of L, heads H, dims Y.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from models.kernels.exponential import FAST, exp

_LANES = 16


@njit(nogil=True, cache=True, fastmath=FAST)
def attend_all(lo, hi, length, hidden, q, k, beta, lse, pk, ptq, with_sums):
    """As `attend_rows` and `gather_columns`: lse (N,H), pk = sum_j p_ij k_j, ptq = sum_i p_ij q_i.

    Args:
        lo, hi: of the heads of all rows, R H, those of a row one behind the other.
        length: L.
        hidden: (1 or R, L, L), added to the logits: -inf of those whom a token does not see; or
            None. Tokens that see none keep the zeros of the output.
        with_sums: else lse alone is to be had.
    """
    heads, width = q.shape[1:]
    q_h = np.empty((length, width), q.dtype)
    k_h, sums = np.empty_like(q_h), np.empty_like(q_h)
    p, per = np.empty((length, length), q.dtype), np.empty(length, q.dtype)
    powers = np.empty(length, np.int32)
    for place in range(lo, hi):
        row, h = place // heads, place % heads
        first = row * length
        for i in range(length):
            for y in range(width):
                q_h[i, y] = q[first + i, h, y] * beta[first + i, h]
                k_h[i, y] = k[first + i, h, y]
        np.dot(q_h, k_h.T, p)
        if hidden is not None:
            p += hidden[row if len(hidden) > 1 else 0]
        for i in range(length):
            top = largest(p[i])
            if top == -np.inf and not np.isnan(p[i]).any():
                p[i], per[i] = 0, 0
                continue
            for j in range(length):
                p[i, j] -= top
            exp(p[i], powers)
            total = q.dtype.type(0)
            for j in range(length):
                total += p[i, j]
            lse[first + i, h] = top + np.log(total)
            per[i] = q.dtype.type(1) / total
        if not with_sums:
            continue
        np.dot(p, k_h, sums)
        for i in range(length):
            for y in range(width):
                pk[first + i, h, y] = sums[i, y] * per[i]
                q_h[i, y] = q[first + i, h, y] * per[i]
        np.dot(p.T, q_h, sums)
        for i in range(length):
            for y in range(width):
                ptq[first + i, h, y] = sums[i, y]


@njit(nogil=True, cache=True, fastmath=FAST)
def largest(s):
    """Maximum of `s`; -inf if it is empty.

    Sixteen lanes keep a maximum each, which compiles to vector instructions: a serial chain of
    comparisons took three times as long.
    """
    tops = np.full(_LANES, -np.inf, s.dtype)
    whole = len(s) - len(s) % _LANES
    for j in range(0, whole, _LANES):
        for lane in range(_LANES):
            tops[lane] = s[j + lane] if s[j + lane] > tops[lane] else tops[lane]
    top = s.dtype.type(-np.inf)
    for lane in range(_LANES):
        top = tops[lane] if tops[lane] > top else top
    for j in range(whole, len(s)):
        top = s[j] if s[j] > top else top
    return top
