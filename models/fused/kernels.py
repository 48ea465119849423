"""Numba kernels of one relaxation step: evaluate the energy terms at a state, and move from it.

For small inputs the interpreter costs more than the arithmetic, so a step is a few compiled calls.
They run the loops of `models.kernels.edge_attention` and `models.kernels.dense_attention`. Each
call works on a range of tokens, releases the GIL, and writes only to that range.

Shapes are those of `models.layouts`; M is the number of memories. Products are BLAS calls on one
block of tokens at a time, so that the activations of the memories stay in the cache.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from models.kernels.dense_attention import attend_all, largest
from models.kernels.edge_attention import attend_rows
from models.kernels.exponential import FAST

_BLOCK = 256  # tokens, at most
RELU, RELU2, POWER, SOFTMAX = range(4)
"""Hopfield energies, see `models.energies.Hopfield`; of POWER the exponent is 4."""
_TINY = 1e-12  # as `models.resonance.unit`


@njit(nogil=True, cache=True, fastmath=FAST)
def evaluate_with_stats(
    tokens,
    edges,
    pairs,
    weight,
    bias,
    norm,
    attention,
    memory,
    controls,
    with_force,
    came,
    step,
    out,
):
    """`look`, `control` and `measure`.

    Args:
        tokens to memory, with_force: as `look` takes them.
        controls: see `control`, None where nothing does.
        came: did a step lead here? `step` is its dx/dt, what held it, and g before it.
        out: as of `look`, then what controls (N,D), and the sums over rows (5,R) of `measure`.
    """
    g, parts, force, scratch, held, sums = out
    looked = g, parts, force, scratch
    evaluate(tokens, edges, pairs, weight, bias, norm, attention, memory, with_force, looked)
    x, row_of_N, _ = tokens
    drift, before, g_before = step
    if controls is not None:
        control(0, len(x), x, controls, held)
    measure(row_of_N, parts, x, came, drift, controls is not None, before, held, g, g_before, sums)


@njit(nogil=True, cache=True, fastmath=FAST)
def evaluate(tokens, edges, pairs, weight, bias, norm, attention, memory, with_force, out):
    """All of a look, on one thread; of rows that are small some at a time, so that what is between
    stays in the cache.

    Args:
        tokens: x (N,D), the row of each, beta (R,H).
        edges: CSR of those that each token sees, pointers and tokens; or None.
        pairs: length and hidden of `attend_all`, where there are no edges.
        weight, bias: (E,H) or None.
        norm: gamma, delta (D,), eps.
        attention: U^T (2,D,HY), U times its weight (2,HY,D), that weight, spherical?, H; or None.
        memory: xi^T (D,M), xi times its weight (M,D), that weight, kind, sharpness; or None. That
            no product has to turn its weights first saves a tenth of it.
        with_force: else energies alone are to be had.
        out: is filled: g (N,D), the energies of each token (2,N), attention first, and,
            `with_force`, the force (N,D). The last one has `room_for` what is between.
    """
    x, row_of_N, beta_RH = tokens
    g, parts, force, scratch = out
    first = 0
    while first < len(x):
        last = end_of(row_of_N, first)
        beta = beta_RH[row_of_N[first:last]]
        found = g[first:last], parts[:, first:last], force[first:last], scratch
        mine = x[first:last], beta, norm, attention, memory, with_force, found
        if edges is not None:
            indptr, indices = edges
            here = slice(indptr[first], indptr[last])
            seen = moved(indptr[first : last + 1], here.start), moved(indices[here], first)
            along = of_edges(weight, here), of_edges(bias, here)
            look_at(seen, None, *along, *mine)
        elif pairs is not None:
            length = pairs[0]
            hidden = of_rows(pairs[1], first // length, last // length)
            look_at(None, (length, hidden), None, None, *mine)
        else:
            look_at(None, None, None, None, *mine)
        first = last


@njit(nogil=True, cache=True)
def end_of(row_of_N, first):
    """Where the tokens end of as many whole rows as are `_BLOCK` together, or of one."""
    last = first
    while last < len(row_of_N):
        end = last
        while end < len(row_of_N) and row_of_N[end] == row_of_N[last]:
            end += 1
        if last > first and end - first > _BLOCK:
            break
        last = end
    return last


@njit(nogil=True, cache=True)
def of_edges(term, here):
    if term is None:
        return None
    return term[here]


@njit(nogil=True, cache=True)
def of_rows(hidden, first, last):
    if hidden is None:
        return None
    return hidden[first:last] if len(hidden) > 1 else hidden


@njit(nogil=True, cache=True)
def moved(places, by):
    """`places` less `by`."""
    if by == 0:
        return places
    found = np.empty_like(places)
    for e in range(len(places)):
        found[e] = places[e] - by
    return found


@njit(nogil=True, cache=True, fastmath=FAST)
def look_at(edges, pairs, weight, bias, x, beta, norm, attention, memory, with_force, out):
    """`look` at some rows: `up`, along the edges both ways, or to all others, and `down`."""
    g, parts, force, scratch = out
    nodes = len(x)
    if attention is None:
        project(0, nodes, x, norm, None, memory, with_force, g, None, None, parts, force)
        return
    heads, inner = attention[4], attention[1].shape[1]
    ends, length, lse, pulls = room(scratch, nodes, heads, inner)
    project(0, nodes, x, norm, attention, memory, with_force, g, ends, length, parts, force)
    sees, seen = sides(attention[3])
    q, k = ends[sees], ends[seen]
    pulled = pulls[sees], pulls[seen]
    if pairs is not None:
        places = nodes // pairs[0] * heads
        attend_all(0, places, pairs[0], pairs[1], q, k, beta, lse, *pulled, with_force)
    if edges is not None:
        rows = 0, nodes, edges[0], edges[1], q, k, beta, weight, bias, None, lse
        if with_force:
            attend_rows(*rows, *pulled)
        else:
            attend_rows(*rows, None, None)
    energies(0, nodes, lse, beta, attention[2], parts)
    if with_force:
        project_back(0, nodes, attention, memory, ends, length, pulls, force)


@njit(nogil=True, cache=True)
def sides(spherical):
    """Of queries 0 and keys 1 the end that sees, and that which is seen."""
    return (1, 0) if spherical else (0, 1)


def room_for(nodes: int, heads: int, inner: int) -> int:
    """Numbers that `room` takes."""
    return 4 * nodes * inner + 3 * nodes * heads


@njit(nogil=True, cache=True)
def room(scratch, nodes, heads, inner):
    """Of `scratch` parts for queries and keys (2,N,H,Y), their lengths (2,N,H), and, set to 0, lse
    (N,H) and the pulls (2,N,H,Y)."""
    shape = (2, nodes, heads, inner // heads)
    pulls = 2 * nodes * inner
    length = 2 * pulls
    lse = length + 2 * nodes * heads
    end = lse + nodes * heads
    scratch[pulls:length] = 0
    scratch[lse:end] = 0
    return (
        scratch[:pulls].reshape(shape),
        scratch[length:lse].reshape((2, nodes, heads)),
        scratch[lse:end].reshape((nodes, heads)),
        scratch[pulls:length].reshape(shape),
    )


@njit(nogil=True, cache=True)
def block_of(tokens):
    """How many at a time, so that blocks are as large as each other: a short one is slow."""
    blocks = max((tokens + _BLOCK - 1) // _BLOCK, 1)
    return max((tokens + blocks - 1) // blocks, 1)


@njit(nogil=True, cache=True, fastmath=FAST)
def project(lo, hi, x, norm, attention, memory, with_force, g, ends, length, parts, force):
    """From x to g, queries and keys, and all that memories have to say."""
    dim, (gamma, delta, eps) = x.shape[1], norm
    one = x.dtype.type(1)
    count = block_of(hi - lo)
    s = np.empty((count, 0 if memory is None else len(memory[1])), x.dtype)
    for first in range(lo, hi, count):
        last = min(first + count, hi)
        for i in range(first, last):
            mean = x.dtype.type(0)
            for d in range(dim):
                mean += x[i, d]
            mean /= x.dtype.type(dim)
            spread = x.dtype.type(0)
            for d in range(dim):
                spread += (x[i, d] - mean) * (x[i, d] - mean)
            scale = gamma / np.sqrt(spread / x.dtype.type(dim) + eps)
            for d in range(dim):
                g[i, d] = (x[i, d] - mean) * scale + delta[d]
        if attention is not None:
            heads = attention[4]
            for end in range(2):
                flat = ends[end].reshape(len(x), -1)
                np.dot(g[first:last], attention[0][end], flat[first:last])
                if attention[3]:
                    for i in range(first, last):
                        for h in range(heads):
                            squared = x.dtype.type(_TINY)
                            for y in range(ends.shape[3]):
                                squared += ends[end, i, h, y] * ends[end, i, h, y]
                            size = np.sqrt(squared)
                            length[end, i, h] = size
                            for y in range(ends.shape[3]):
                                ends[end, i, h, y] *= one / size
        else:
            parts[0, first:last] = 0
        if memory is not None:
            block = s[: last - first]
            np.dot(g[first:last], memory[0], block)
            hopfield_activation(block, memory[3], memory[4], memory[2], parts[1, first:last])
            if with_force:
                np.dot(block, memory[1], force[first:last])
        else:
            parts[1, first:last] = 0


@njit(nogil=True, cache=True, fastmath=FAST)
def hopfield_activation(s, kind, sharpness, weight, energy):
    """Overlaps s (n,M) become activations r; energy is -weight times the sum of G(s)."""
    zero, one = s.dtype.type(0), s.dtype.type(1)
    for i in range(len(s)):
        value = zero
        if kind == RELU:
            for m in range(s.shape[1]):
                value += zero if s[i, m] <= zero else s[i, m]  # lets NaN through
                s[i, m] = one if s[i, m] > zero else zero
        elif kind == RELU2:
            for m in range(s.shape[1]):
                r = zero if s[i, m] <= zero else s[i, m]
                value += r * r
                s[i, m] = r
            value *= s.dtype.type(0.5)
        elif kind == POWER:
            for m in range(s.shape[1]):
                r = zero if s[i, m] <= zero else s[i, m]
                s[i, m] = r * r * r
                value += r * r * r * r
            value *= s.dtype.type(0.25)
        else:
            for m in range(s.shape[1]):
                s[i, m] *= sharpness
            top, total = largest(s[i]), zero
            for m in range(s.shape[1]):
                s[i, m] = np.exp(s[i, m] - top)
                total += s[i, m]
            for m in range(s.shape[1]):
                s[i, m] *= one / total
            value = (top + np.log(total)) / sharpness
        energy[i] = -weight * value


@njit(nogil=True, cache=True, fastmath=FAST)
def energies(lo, hi, lse, beta, weight, parts):
    """The energy of attention of each token."""
    for i in range(lo, hi):
        energy = lse.dtype.type(0)
        for h in range(lse.shape[1]):
            energy += lse[i, h] / beta[i, h]
        parts[0, i] = -weight * energy


@njit(nogil=True, cache=True, fastmath=FAST)
def project_back(lo, hi, attention, memory, ends, length, pulls, force):
    """From pulls on queries and keys to the force on g, beside that of the memories."""
    zero = force.dtype.type(0)
    heads = attention[4]
    count = block_of(hi - lo)
    some = np.empty((count, force.shape[1]), force.dtype)
    for first in range(lo, hi, count):
        last = min(first + count, hi)
        if memory is None:
            force[first:last] = 0
        for end in range(2):
            if attention[3]:
                for i in range(first, last):
                    for h in range(heads):
                        along = zero
                        for y in range(ends.shape[3]):
                            along += pulls[end, i, h, y] * ends[end, i, h, y]
                        per = force.dtype.type(1) / length[end, i, h]
                        for y in range(ends.shape[3]):
                            pull = pulls[end, i, h, y] - along * ends[end, i, h, y]
                            pulls[end, i, h, y] = pull * per
            block = some[: last - first]
            flat = pulls[end].reshape(len(force), -1)
            np.dot(flat[first:last], attention[1][end], block)
            force[first:last] += block


@njit(nogil=True, cache=True, fastmath=FAST)
def move(x, row_of_N, alpha_R, force, controlled, held, moved, drift):
    """drift = force - held, where that controls x, and moved = x + alpha drift."""
    for i in range(len(x)):
        alpha = alpha_R[row_of_N[i]]
        for d in range(x.shape[1]):
            rate = force[i, d] - held[i, d] if controlled else force[i, d]
            drift[i, d] = rate
            moved[i, d] = x[i, d] + alpha * rate


@njit(nogil=True, cache=True, fastmath=FAST)
def control(lo, hi, x, controls, held):
    """(1 + omega) x - W x of `models.dynamics.ControlledDynamics`; `controls` are 1 + omega, P
    (r,D), Q (r,) and the prior (D,D), or None."""
    decay, basis, strength, prior = controls
    for i in range(lo, hi):
        for d in range(x.shape[1]):
            held[i, d] = decay * x[i, d]
        for r in range(len(basis)):
            along = x.dtype.type(0)
            for d in range(x.shape[1]):
                along += x[i, d] * basis[r, d]
            along *= strength[r]
            for d in range(x.shape[1]):
                held[i, d] -= along * basis[r, d]
    local(x[lo:hi], prior, held[lo:hi])


@njit(nogil=True, cache=True)
def local(x, prior, held):
    if prior is not None:
        held -= np.dot(x, prior)


@njit(nogil=True, cache=True, fastmath=FAST)
def measure(row_of_N, parts, x, came, drift, controlled, before, held, g, g_before, sums):
    """Over each row, into `sums` (5,R), float64: the energies `parts` (2,N), |x|^2, and of a move
    |drift|^2 and, where something controls, (before + held)/2 . (g - g_before)."""
    for i in range(len(x)):
        r = row_of_N[i]
        sums[0, r] += parts[0, i]
        sums[1, r] += parts[1, i]
        size = speed = work = x.dtype.type(0)
        for d in range(x.shape[1]):
            size += x[i, d] * x[i, d]
        sums[2, r] += size
        if came:
            for d in range(x.shape[1]):
                speed += drift[i, d] * drift[i, d]
            sums[3, r] += speed
            if controlled:
                for d in range(x.shape[1]):
                    work += (before[i, d] + held[i, d]) * (g[i, d] - g_before[i, d])
                sums[4, r] += work / x.dtype.type(2)
