"""Series of transactions, kept as linked lists, and their features; numba on the CPU.

A *key* is a series: what an account sent, what it received, what a pair exchanged, what shares a
device. A transaction is a member of one series of each *chain* (kind of series), and is compared
with the key of each *view*, which may be a series that it is no member of: what its payer received.

Of a member the chain keeps the row before and after it, its place, and the sum of the amounts up to
and with it; so the rows of the last w units of time are those after a pointer that only moves on.
"""

from __future__ import annotations

import numpy as np
from numba import njit

NONE = -1


@njit(nogil=True, cache=True)
def update(
    begin, end, time, amount, key, chain_of, member, windows,
    last, count, total, first, others, tail, before, after, place, sums, head, out,
):  # fmt: skip
    """Add the rows `begin` to `end`, in order, and write their features to `out`.

    Args:
        time, amount: of all N rows; a missing amount is NaN and adds nothing to sums.
        key: (N, V) the key of each view; -1 where the row has none, as no device.
        chain_of: (V,) the chain of each view.
        member: (C,) the view whose key each chain's members have; the first three are what the
            source sent, what the target received, and the pair.
        windows: (W,) lengths.
        last, count, total, first, others: (K,) of each key: its last row, its rows, the sum of
            their amounts, its first row, and how many pairs it is in.
        tail: (K, W) the last row of the key that has left each window.
        before, after, place, sums: (N, C) of each member.
        head: (N, V) the last row of each view's key when the row was added.
        out: (end - begin, 2 + V (4 + 2 W)): the payees of the source and the payers of the target
            so far, as log(1 + n); and of each view, of the rows before: log(1 + n), log(1 + time
            since the first) and since the last (-1 where there are none), how far the logarithm of
            the amount is from that of their mean, and log(1 + n) and the log-scaled sum of amounts
            of each window (t - w, t].
    """
    views, chains, spans = len(chain_of), len(member), len(windows)
    for i in range(begin, end):
        now, a, row = time[i], amount[i], out[i - begin]
        missing = np.isnan(a)
        a_log = 0.0 if missing else _log_scale(a)
        row[0] = np.log1p(others[key[i, member[0]]])
        row[1] = np.log1p(others[key[i, member[1]]])
        at = 2
        for v in range(views):
            k, c = key[i, v], chain_of[v]
            n = 0 if k == NONE else count[k]
            head[i, v] = NONE if k == NONE else last[k]
            row[at] = np.log1p(n)
            if n == 0:
                row[at + 1] = row[at + 2] = -1.0
                row[at + 3 : at + 4 + 2 * spans] = 0.0
                at += 4 + 2 * spans
                continue
            row[at + 1] = np.log1p(now - time[first[k]])
            row[at + 2] = np.log1p(now - time[last[k]])
            row[at + 3] = 0.0 if missing else a_log - _log_scale(total[k] / n)
            at += 4
            for w in range(spans):
                old = tail[k, w]
                following = first[k] if old == NONE else after[old, c]
                while following != NONE and time[following] <= now - windows[w]:
                    old = following
                    following = after[old, c]
                tail[k, w] = old
                gone, gone_sum = (0, 0.0) if old == NONE else (place[old, c] + 1, sums[old, c])
                row[at] = np.log1p(n - gone)
                row[at + 1] = _log_scale(total[k] - gone_sum)
                at += 2
        new_pair = count[key[i, member[2]]] == 0
        for c in range(chains):
            k = key[i, member[c]]
            before[i, c] = after[i, c] = NONE
            if k == NONE:
                continue
            before[i, c] = last[k]
            if last[k] != NONE:
                after[last[k], c] = i
            else:
                first[k] = i
            place[i, c] = count[k]
            count[k] += 1
            if not missing:
                total[k] += a
            sums[i, c] = total[k]
            last[k] = i
            if new_pair and c < 2:
                others[k] += 1


@njit(nogil=True, cache=True)
def collect(rows, hops, neighbors, chain_of, before, head, max_nodes):
    """Return the earlier transactions that are linked with each of `rows`.

    Of each view the last `neighbors` rows are linked, and of those theirs, up to `hops` steps.

    Returns:
        nodes: of all neighbourhoods, one after the other, each with its row first.
        bounds: (len(rows) + 1,) where each begins.
        edges: (2, E) places in `nodes`, from the earlier transaction to the later one.
    """
    bounds = np.zeros(len(rows) + 1, np.int64)
    nodes, sources, targets = [np.int64(0)][:0], [np.int64(0)][:0], [np.int64(0)][:0]
    for r in range(len(rows)):
        start = len(nodes)
        nodes.append(rows[r])
        level = start
        for _ in range(hops):
            stop = len(nodes)
            for at in range(level, stop):
                for v in range(len(chain_of)):
                    near = head[nodes[at], v]
                    for _ in range(neighbors):
                        if near == NONE or len(nodes) - start >= max_nodes:
                            break
                        where = NONE
                        for j in range(start, len(nodes)):
                            if nodes[j] == near:
                                where = j
                                break
                        if where == NONE:
                            where = len(nodes)
                            nodes.append(np.int64(near))
                        sources.append(np.int64(where))
                        targets.append(np.int64(at))
                        near = before[near, chain_of[v]]
            level = stop
        bounds[r + 1] = len(nodes)
    edges = np.empty((2, len(sources)), np.int64)
    for e in range(len(sources)):
        edges[0, e], edges[1, e] = sources[e], targets[e]
    return np.array(nodes), bounds, edges


@njit(nogil=True, cache=True)
def _log_scale(value):
    return np.sign(value) * np.log1p(abs(value))
