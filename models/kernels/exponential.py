"""What kernels share: their flags, and exponentials of several numbers at a time."""

from __future__ import annotations

import numpy as np
from numba import njit

FAST = {"reassoc", "contract", "nsz", "arcp"}
"""Vectorised sums and nothing else: NaN and infinity keep their meaning, because divergence has to
be seen."""
_FEW = 6
"""Numbers of which the library's, one after the other, are as fast."""
_LOWEST = np.float32(-88.0)  # of which, and below, exp is 0 here
_PER_LN2, _LN2_HIGH, _LN2_LOW = map(np.float32, (1.44269504, 0.693359375, -2.12194440e-4))
_P5, _P4, _P3, _P2, _P1, _P0 = map(
    np.float32,
    (1.9875691e-4, 1.3981999e-3, 8.3334519e-3, 4.1665796e-2, 1.6666665e-1, 5.0000001e-1),
)


@njit(nogil=True, cache=True, fastmath={"contract"})
def exp(s, powers):
    """Of each of `s`, none of which is above 0, in place. In float32 as Cephes has it, to an ulp or
    two: loops without a call, which the compiler makes of several numbers at a time. `powers` is
    int32, of as many numbers or more, for what is between."""
    if s.itemsize > 4 or len(s) < _FEW:
        for j in range(len(s)):
            s[j] = np.exp(s[j])
        return
    for j in range(len(s)):
        x = np.float32(s[j])
        x = _LOWEST if x < _LOWEST else x
        n = np.floor(x * _PER_LN2 + np.float32(0.5))
        x = x - n * _LN2_HIGH - n * _LN2_LOW
        y = ((((_P5 * x + _P4) * x + _P3) * x + _P2) * x + _P1) * x + _P0
        s[j] = y * x * x + x + np.float32(1)
        powers[j] = (np.int32(n) + np.int32(127)) << np.int32(23)
    scale = powers.view(np.float32)
    for j in range(len(s)):
        s[j] *= scale[j]
