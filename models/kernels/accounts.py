"""Features and neighbourhoods of accounts as of a row; numba on the CPU.

What an account sent and received are two series of `models.kernels.transactions`: the chains
`SOURCE` and `TARGET`. Both are walked back from the last row that counts, so that nothing later
is seen.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from models.kernels.transactions import NONE, PAIR, follow_links, to_edges


@njit(nogil=True, cache=True)
def describe(rows, last, time, amount, before, after, windows, out):
    """Write the features of accounts to `out`.

    Args:
        rows: (n,) as of which each account is described.
        last: (n, 2) the last row that it sent, and that it received, up to then; -1 if none.
        time, amount, before, after: see `models.kernels.transactions.update`.
        windows: (W,) lengths, ascending.
        out: (n, 2 (1 + 4 W) + W): of each side log(1 + time since its last row), -1 if there is
            none within the longest window, and for each window (t - w, t] log(1 + rows), the
            log-scaled sum of the amounts, log(1 + accounts on the other side), and log(1 + mean
            time between rows), -1 of fewer than two; then for each window the log-scaled sum of
            what was sent less that of what was received.
    """
    spans = len(windows)
    width = 1 + 4 * spans
    for i in range(len(rows)):
        now = time[rows[i]]
        out[i] = 0.0
        for side in range(2):
            near = last[i, side]
            at = side * width
            out[i, at] = -1.0 if near == NONE else np.log1p(now - time[near])
            newest = oldest = now if near == NONE else time[near]
            count, partners, total = 0, 0, 0.0
            for w in range(spans):
                while near != NONE and time[near] > now - windows[w]:
                    count += 1
                    if not np.isnan(amount[near]):
                        total += amount[near]
                    # The last row of its pair: an account on the other side that is new here.
                    later = after[near, PAIR]
                    if later == NONE or later > rows[i]:
                        partners += 1
                    oldest = time[near]
                    near = before[near, side]
                to = at + 1 + 4 * w
                out[i, to] = np.log1p(count)
                out[i, to + 1] = np.sign(total) * np.log1p(abs(total))
                out[i, to + 2] = np.log1p(partners)
                out[i, to + 3] = -1.0 if count < 2 else np.log1p((newest - oldest) / (count - 1))
                balance = 2 * width + w
                out[i, balance] += (1 - 2 * side) * total
        for w in range(spans):
            value = out[i, 2 * width + w]
            out[i, 2 * width + w] = np.sign(value) * np.log1p(abs(value))


@njit(nogil=True, cache=True)
def collect(
    rows, last, hops, neighbors, memory, time, chain_of, before, head, place, linked,
    max_each, max_total,
):  # fmt: skip
    """Return the transactions that are linked with accounts: the last `neighbors` of each side, and
    those that are linked with these, as `models.kernels.transactions.collect` has them.

    Args:
        rows, last: see `describe`.

    Returns:
        nodes: of all neighbourhoods, one after the other; the account itself comes first, as -1.
        bounds, edges: see there.
    """
    bounds = np.zeros(len(rows) + 1, np.int64)
    nodes, sources, targets = [np.int64(0)][:0], [np.int64(0)][:0], [np.int64(0)][:0]
    for r in range(len(rows)):
        start = len(nodes)
        oldest = time[rows[r]] - memory
        nodes.append(np.int64(NONE))
        for side in range(2):
            near = last[r, side]
            for _ in range(neighbors):
                if near == NONE or time[near] <= oldest:
                    break
                if place[near] == NONE and len(nodes) - start < max_each:
                    place[near] = len(nodes)
                    nodes.append(np.int64(near))
                    sources.append(np.int64(place[near]))
                    targets.append(np.int64(start))
                near = before[near, side]
        follow_links(
            nodes, sources, targets, start, start + 1, oldest, hops, neighbors, time, chain_of,
            before, head, place, linked, max_each,
        )  # fmt: skip
        for at in range(start + 1, len(nodes)):
            place[nodes[at]] = linked[nodes[at]] = NONE
        bounds[r + 1] = len(nodes)
        if len(nodes) > max_total:
            bounds[r + 2 :] = len(nodes)
            break
    return np.array(nodes), bounds, to_edges(sources, targets)
