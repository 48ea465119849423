"""Gaussian noise as a function of where it is used.

Every number is Philox-4x32-10 (Salmon et al., SC 2011) of a key, the seed, and a counter: stream,
step, chain and coordinate. There is no state, so what a chain draws depends on nothing that runs
beside it: not on other requests, not on how many chains there are, not on how steps are blocked.

The kernel is laid out so that the compiler vectorises each of its loops. Drawn by torch or numpy
the noise would cost about as much as the products of a step (`python -m benchmarks.sample`).
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from numba import njit

_pool = ThreadPoolExecutor(thread_name_prefix="noise")
_FAST = {"reassoc", "contract", "nsz", "arcp", "nnan", "ninf"}
_UNIT = np.float32(2.0**-32)
_LOG2 = np.float32(0.6931472)
_LOG = np.array(  # of 1 + v for sqrt(1/2) <= 1 + v < sqrt(2), Cephes logf
    [
        *(7.0376836292e-2, -1.1514610310e-1, 1.1676998740e-1, -1.2420140846e-1, 1.4249322787e-1),
        *(-1.6668057665e-1, 2.0000714765e-1, -2.4999993993e-1, 3.3333331174e-1),
    ],
    np.float32,
)


def fill_normal(
    out_BCD: np.ndarray, seed: int, stream: int, first_step: int, scale: float = 1.0
) -> None:
    """Fill with N(0, scale^2) for the steps from `first_step` on, float32.

    Box-Muller on 32-bit uniforms: no number is beyond 6.8 scale, which loses 1e-11 of the mass.
    """
    lo, hi = seed & 0xFFFFFFFF, seed >> 32 & 0xFFFFFFFF
    share = -(-len(out_BCD) // torch.get_num_threads())

    def fill(start: int) -> None:
        part_BCD = out_BCD[start : start + share]
        _normals(part_BCD, lo, hi, stream, first_step + start, np.float32(scale))

    others = [_pool.submit(fill, start) for start in range(share, len(out_BCD), share)]
    fill(0)
    for other in others:
        other.result()


def fill_uniform(out_BC: np.ndarray, seed: int, stream: int, first_step: int) -> None:
    """Fill with uniform numbers in (0, 1), float64, independent of `normals`."""
    lo, hi = seed & 0xFFFFFFFF, seed >> 32 & 0xFFFFFFFF
    _uniforms(out_BC, lo, hi, stream, first_step)


@njit(nogil=True, cache=True, inline="always")
def _philox(c0, c1, c2, c3, k0, k1):
    for _ in range(10):
        p0 = np.uint64(c0) * np.uint64(0xD2511F53)
        p1 = np.uint64(c2) * np.uint64(0xCD9E8D57)
        c0 = np.uint32(p1 >> np.uint64(32)) ^ c1 ^ k0
        c2 = np.uint32(p0 >> np.uint64(32)) ^ c3 ^ k1
        c1, c3 = np.uint32(p1), np.uint32(p0)
        k0 = np.uint32(k0 + np.uint32(0x9E3779B9))
        k1 = np.uint32(k1 + np.uint32(0xBB67AE85))
    return c0, c1, c2, c3


@njit(nogil=True, cache=True, fastmath=_FAST)
def _normals(out_BCD, lo, hi, stream, first_step, scale):
    steps, chains, width = out_BCD.shape
    fours = (width + 3) // 4
    word = np.empty((4, fours), np.uint32)
    u = np.empty(2 * fours, np.float32)
    bits = u.view(np.uint32)
    mantissa_bits = np.empty(2 * fours, np.uint32)
    mantissa = mantissa_bits.view(np.float32)
    radius = np.empty(2 * fours, np.float32)
    drawn = np.empty((4, fours), np.float32)
    flat = drawn.reshape(4 * fours)
    half, one, two = np.float32(0.5), np.float32(1), np.float32(2)
    for b in range(steps):
        step = np.uint32(first_step + b)
        for c in range(chains):
            for i in range(fours):
                w0, w1, w2, w3 = _philox(
                    np.uint32(i),
                    step,
                    np.uint32(c),
                    np.uint32(stream),
                    np.uint32(lo),
                    np.uint32(hi),
                )
                word[0, i], word[1, i], word[2, i], word[3, i] = w0, w1, w2, w3
            for i in range(fours):
                u[i] = (np.float32(word[0, i]) + half) * _UNIT
                u[fours + i] = (np.float32(word[2, i]) + half) * _UNIT
            for i in range(2 * fours):  # u = m 2^e with m in [1/2, 1)
                mantissa_bits[i] = (bits[i] & np.uint32(0x7FFFFF)) | np.uint32(0x3F000000)
            for i in range(2 * fours):
                e = np.float32(np.int32(bits[i] >> np.uint32(23)) - np.int32(126))
                m = mantissa[i]
                low = m < np.float32(0.70710678)
                e = e - one if low else e
                v = (m + m if low else m) - one
                p = _LOG[0]
                for j in range(1, 9):
                    p = p * v + _LOG[j]
                log = p * v * v * v - half * v * v + v + e * _LOG2
                radius[i] = np.sqrt(max(-two * log, np.float32(0))) * scale
            for pair in range(2):
                for i in range(fours):  # Taylor series of cos and sin of 2 pi v, |v| <= 1/2
                    v = np.float32(np.int32(word[2 * pair + 1, i])) * _UNIT
                    q = v * v
                    cos = np.float32(0.28200597)
                    cos = cos * q - np.float32(1.7143907)
                    cos = cos * q + np.float32(7.9035364)
                    cos = cos * q - np.float32(26.426257)
                    cos = cos * q + np.float32(60.244641)
                    cos = cos * q - np.float32(85.456817)
                    cos = cos * q + np.float32(64.939394)
                    cos = cos * q - np.float32(19.739209)
                    cos = cos * q + one
                    sin = np.float32(-0.71812230)
                    sin = sin * q + np.float32(3.8199526)
                    sin = sin * q - np.float32(15.094643)
                    sin = sin * q + np.float32(42.058694)
                    sin = sin * q - np.float32(76.705860)
                    sin = sin * q + np.float32(81.605249)
                    sin = sin * q - np.float32(41.341702)
                    sin = (sin * q + np.float32(6.2831853)) * v
                    drawn[2 * pair, i] = radius[pair * fours + i] * cos
                    drawn[2 * pair + 1, i] = radius[pair * fours + i] * sin
            for d in range(width):
                out_BCD[b, c, d] = flat[d]


@njit(nogil=True, cache=True)
def _uniforms(out_BC, lo, hi, stream, first_step):
    steps, chains = out_BC.shape
    for b in range(steps):
        for c in range(chains):
            w0, w1, _, _ = _philox(
                np.uint32(0xFFFFFFFF),  # no coordinate has this number
                np.uint32(first_step + b),
                np.uint32(c),
                np.uint32(stream),
                np.uint32(lo),
                np.uint32(hi),
            )
            high = np.float64(w0) * 2.0**-32
            out_BC[b, c] = high + (np.float64(w1 >> np.uint32(11)) + 0.5) * 2.0**-53
