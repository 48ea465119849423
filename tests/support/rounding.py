"""Compare JSON answers that were computed in different batches.

A matrix product picks its kernel by its shape, so on some processors a row is rounded in another
order in a larger batch. Beyond rounding, a row must not depend on its batch.
"""

from __future__ import annotations

import base64
import math

import numpy as np

from tests.support.completion import opened


def differences(
    actual: object, expected: object, rel: float = 1e-4, abs_: float = 1e-6, path: str = ""
) -> list[str]:
    """Return the paths at which two JSON values differ by more than float32 rounding.

    Pixels of `b64_png` may differ by 1 of 255; strings, whole numbers and structure not at all.
    """
    if isinstance(expected, dict) and isinstance(actual, dict) and actual.keys() == expected.keys():
        nested = [(actual[key], expected[key], f"{path}/{key}") for key in expected]
    elif isinstance(expected, list) and isinstance(actual, list) and len(actual) == len(expected):
        nested = [
            (a, e, f"{path}/{i}") for i, (a, e) in enumerate(zip(actual, expected, strict=True))
        ]
    elif isinstance(expected, float) and isinstance(actual, float):
        is_close = math.isclose(actual, expected, rel_tol=rel, abs_tol=abs_)
        return [] if is_close else [f"{path}: {actual} is not {expected}"]
    elif path.endswith("/b64_png"):
        pixels = [np.asarray(opened(base64.b64decode(x)), int) for x in (actual, expected)]
        is_close = pixels[0].shape == pixels[1].shape and abs(pixels[0] - pixels[1]).max() <= 1
        return [] if is_close else [f"{path}: pixels differ"]
    else:
        return [] if actual == expected else [f"{path}: {actual} is not {expected}"]
    return [line for a, e, below in nested for line in differences(a, e, rel, abs_, below)]
