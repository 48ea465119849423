"""Series of transactions, kept as linked lists, and their features; numba on the CPU.

A *key* is a series: what an account sent, what it received, what a pair exchanged, what shares a
device. A transaction is a member of one series of each *chain* (kind of series), and is compared
with the key of each *view*, which may be a series that it is no member of: what its payer received.

The rows of the last w units of time are those after a pointer that only moves on. What is older
than the longest window counts for nothing, so that a table which reaches back as far gives the same
features as a longer one.
"""

from __future__ import annotations

import numpy as np
from numba import njit

NONE = -1
SOURCE, TARGET, PAIR = 0, 1, 2  # the first views and chains: what these sent, received, exchanged


@njit(nogil=True, cache=True)
def update(
    begin, end, time, amount, key, chain_of, member, windows,
    last, first, others, tail, rows, present, total, before, after, head, out,
    reads_labels, known, frauds, labelled, label_row, label, label_time, label_position,
):  # fmt: skip
    """Add the rows `begin` to `end`, in order, and write their features to `out`.

    Args:
        time, amount: of all N rows; a missing amount is NaN and adds nothing to sums.
        key: (N, V) the key of each view; -1 where the row has none, as no device.
        chain_of: (V,) the chain of each view.
        member: (C,) the view whose key each chain's members have.
        windows: (W,) lengths, ascending.
        last, first, others: (K,) of each key: its last and first row, and how many pairs it has
            within the longest window.
        tail, rows, present, total: (K, W) of each key: the last row that has left each window; and
            of the rows in it their number, how many have an amount, and the sum of these.
        before, after: (N, C) the neighbours of each member in its series.
        head: (N, V) the last row of each view's key, within the longest window, when the row came.
        reads_labels: whether `out` has the features of labels.
        known: (N,) the label of each row that is known, -1 where none is.
        frauds, labelled: (K,) of each key: rows within the longest window whose label is known to
            be fraud, and that have a known label.
        label_row, label, label_time, label_position: (L,) labels, each with its row and the time
            and row from which on it is known, in order of these.
        out: (end - begin, 2 + V (2 + 2 W [+ 3])): log(1 + n) of the payees of the source and the
            payers of the target within the longest window; and of each view log(1 + time since the
            last row), -1 where there is none, how far the logarithm of the amount is from that of
            the mean of the longest window, and for each window (t - w, t) log(1 + rows) and the
            log-scaled sum of the amounts; if `reads_labels` log(1 + frauds), log(1 + labelled) and
            the share of frauds, -1 where no label is known.

    Returns:
        how many of the labels are known to the last row.
    """
    views, chains, spans = len(chain_of), len(member), len(windows)
    longest = spans - 1
    width = 2 + 2 * spans + 3 * reads_labels
    next_label = 0
    for i in range(begin, end):
        now, a, row = time[i], amount[i], out[i - begin]
        while (
            next_label < len(label_row)
            and label_time[next_label] <= now
            and label_position[next_label] <= i
        ):
            j = label_row[next_label]
            for c in range(chains):
                k = key[j, member[c]]
                if k != NONE and j > tail[k, longest]:
                    if known[j] == NONE:
                        labelled[k] += 1
                    else:
                        frauds[k] -= known[j]
                    frauds[k] += label[next_label]
            known[j] = label[next_label]
            next_label += 1
        missing = np.isnan(a)
        at = 2
        for v in range(views):
            k, c = key[i, v], chain_of[v]
            head[i, v] = NONE
            row[at], row[at + 1 : at + width] = -1.0, 0.0
            if reads_labels:
                row[at + width - 1] = -1.0
            if k == NONE or last[k] == NONE:
                at += width
                continue
            for w in range(spans):
                gone = tail[k, w]
                following = first[k] if gone == NONE else after[gone, c]
                while following != NONE and time[following] <= now - windows[w]:
                    gone = following
                    following = after[gone, c]
                    rows[k, w] -= 1
                    if not np.isnan(amount[gone]):
                        present[k, w] -= 1
                        total[k, w] -= amount[gone]
                    if present[k, w] == 0:
                        total[k, w] = 0.0  # nothing is left, of rounding neither
                    if w == longest and c < PAIR and last[key[gone, PAIR]] == gone:
                        others[k] -= 1
                    if w == longest and known[gone] != NONE:
                        labelled[k] -= 1
                        frauds[k] -= known[gone]
                tail[k, w] = gone
                row[at + 2 + 2 * w] = np.log1p(rows[k, w])
                row[at + 3 + 2 * w] = _log_scale(total[k, w])
            if rows[k, longest] > 0:
                head[i, v] = last[k]
                row[at] = np.log1p(now - time[last[k]])
                if not missing and present[k, longest] > 0:
                    mean = total[k, longest] / present[k, longest]
                    row[at + 1] = _log_scale(a) - _log_scale(mean)
            if reads_labels:
                row[at + width - 3] = np.log1p(frauds[k])
                row[at + width - 2] = np.log1p(labelled[k])
                if labelled[k] > 0:
                    row[at + width - 1] = frauds[k] / labelled[k]
            at += width
        row[0] = np.log1p(others[key[i, SOURCE]])
        row[1] = np.log1p(others[key[i, TARGET]])
        new_pair = rows[key[i, PAIR], longest] == 0
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
            last[k] = i
            for w in range(spans):
                rows[k, w] += 1
                if not missing:
                    present[k, w] += 1
                    total[k, w] += a
            if new_pair and c < PAIR:
                others[k] += 1
    return next_label


@njit(nogil=True, cache=True)
def collect(
    chosen, hops, neighbors, memory, time, chain_of, before, head, place, linked,
    max_each, max_total,
):  # fmt: skip
    """Return the earlier transactions that are linked with each of `chosen`.

    Of each view the last `neighbors` rows are linked, and of those theirs, up to `hops` steps; none
    that is `memory` or more older than the chosen one. At most `max_each` nodes make a
    neighbourhood: the first found, view by view. Stops once there are more than `max_total` in all.

    Args:
        place, linked: (N,) scratch, -1 before and after.

    Returns:
        nodes: of all neighbourhoods, one after the other, each with its own row first.
        bounds: (n + 1,) where each begins.
        edges: (2, E) places in `nodes`, from the earlier transaction to the later one; a pair of
            them has one edge, whatever links it.
    """
    bounds = np.zeros(len(chosen) + 1, np.int64)
    nodes, sources, targets = [np.int64(0)][:0], [np.int64(0)][:0], [np.int64(0)][:0]
    # `place` is that of a row in the neighbourhood at hand, `linked` the last node it was linked
    # with.
    for r in range(len(chosen)):
        start = len(nodes)
        oldest = time[chosen[r]] - memory
        nodes.append(chosen[r])
        place[chosen[r]] = start
        follow_links(
            nodes, sources, targets, start, start, oldest, hops, neighbors, time, chain_of,
            before, head, place, linked, max_each,
        )  # fmt: skip
        for at in range(start, len(nodes)):
            place[nodes[at]] = linked[nodes[at]] = NONE
        bounds[r + 1] = len(nodes)
        if len(nodes) > max_total:
            bounds[r + 2 :] = len(nodes)
            break
    return np.array(nodes), bounds, to_edges(sources, targets)


@njit(nogil=True, cache=True)
def follow_links(
    nodes, sources, targets, start, level, oldest, hops, neighbors, time, chain_of,
    before, head, place, linked, max_each,
):  # fmt: skip
    """Add to a neighbourhood what is linked with its nodes from `level` on, up to `hops` steps.

    Args:
        nodes, sources, targets: lists of the nodes and edges of all neighbourhoods, see `collect`.
        start: the first node of this one.
        oldest: no transaction of that time or an earlier one is added.
    """
    for _ in range(hops):
        stop = len(nodes)
        for at in range(level, stop):
            for v in range(len(chain_of)):
                near = head[nodes[at], v]
                for _ in range(neighbors):
                    if near == NONE or time[near] <= oldest:
                        break
                    if place[near] == NONE and len(nodes) - start < max_each:
                        place[near] = len(nodes)
                        nodes.append(np.int64(near))
                    if place[near] != NONE and linked[near] != at:
                        linked[near] = at
                        sources.append(np.int64(place[near]))
                        targets.append(np.int64(at))
                    near = before[near, chain_of[v]]
        level = stop


@njit(nogil=True, cache=True)
def _log_scale(value):
    return np.sign(value) * np.log1p(abs(value))


@njit(nogil=True, cache=True)
def to_edges(sources, targets):
    """Return lists of nodes as edges (2, E)."""
    edges = np.empty((2, len(sources)), np.int64)
    for e in range(len(sources)):
        edges[0, e], edges[1, e] = sources[e], targets[e]
    return edges
