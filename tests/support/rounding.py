"""Compare answers to the same request, computed alone and in a batch.

A processor's library may choose another kernel for a product with another number of rows, which
rounds each row in another order (AMD Zen 5 does, for 3 to 9 rows). Where it does not, answers must
be equal to the bit; where it does, they must be equal to rounding.
"""

from __future__ import annotations

import base64
import math
from functools import cache
from typing import Any

import torch

from tests.support.completion import opened


@cache
def is_product_independent_of_rows() -> bool:
    """Whether the first rows of a float32 product are the same bits in products of 1 to 64 rows."""
    generator = torch.Generator().manual_seed(0)
    x_ND = torch.randn(64, 32, generator=generator)
    W_DH = torch.randn(32, 32, generator=generator)
    whole_NH = x_ND @ W_DH
    return all(torch.equal(x_ND[:rows] @ W_DH, whole_NH[:rows]) for rows in range(1, 64))


def find_differences(actual: Any, expected: Any, rel: float = 1e-4, path: str = "") -> list[str]:
    """Return a line for each place at which two JSON values differ.

    Strings, whole numbers and structure must be equal; numbers to `rel` and pixels of `b64_png` to
    1 of 255, or to the bit where `is_product_independent_of_rows`.
    """
    if actual == expected:
        return []
    pairs: list[tuple[Any, Any, object]] = []
    match actual, expected:
        case dict(), dict() if actual.keys() == expected.keys():
            pairs = [(actual[key], expected[key], key) for key in expected]
        case list(), list() if len(actual) == len(expected):
            pairs = list(zip(actual, expected, range(len(expected)), strict=True))
        case _ if not is_product_independent_of_rows() and _is_equal_to_rounding(
            actual, expected, rel, path
        ):
            return []
    if not pairs:
        return [f"{path}: {actual} is not {expected}"]
    return [
        line
        for first, second, key in pairs
        for line in find_differences(first, second, rel, f"{path}/{key}")
    ]


def _is_equal_to_rounding(actual: Any, expected: Any, rel: float, path: str) -> bool:
    if isinstance(actual, float) and isinstance(expected, float):
        return math.isclose(actual, expected, rel_tol=rel, abs_tol=1e-6)
    if not path.endswith("/b64_png"):
        return False
    one = opened(base64.b64decode(actual)).astype(int)
    other = opened(base64.b64decode(expected)).astype(int)
    return one.shape == other.shape and bool(abs(one - other).max() <= 1)
