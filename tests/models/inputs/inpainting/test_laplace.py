"""Laplace's equation, against a dense solve."""

from __future__ import annotations

import numpy as np
import pytest

from models.inputs.inpainting import laplace
from models.inputs.inpainting.laplace import fill_harmonic


def fill(image_HWC: np.ndarray, hidden_HW: np.ndarray) -> np.ndarray:
    """The image with what is hidden filled."""
    flat, places = image_HWC.reshape(-1, image_HWC.shape[2]), np.flatnonzero(hidden_HW)

    def read(known: np.ndarray) -> np.ndarray:
        assert not hidden_HW.ravel()[known].any()
        return flat[known]

    filled = flat.copy()
    filled[places] = fill_harmonic(places, hidden_HW.shape, read)
    return filled.reshape(image_HWC.shape)


def solve_dense(image_HW: np.ndarray, hidden_HW: np.ndarray) -> np.ndarray:
    """The same, pixel by pixel into a dense matrix."""
    (height, width), filled = image_HW.shape, image_HW.copy()
    places = {(int(y), int(x)): i for i, (y, x) in enumerate(np.argwhere(hidden_HW))}
    a, b = np.zeros((len(places), len(places))), np.zeros(len(places))
    for (y, x), i in places.items():
        for beside in ((y + 1, x), (y - 1, x), (y, x + 1), (y, x - 1)):
            if not (0 <= beside[0] < height and 0 <= beside[1] < width):
                continue
            a[i, i] += 1
            if beside in places:
                a[i, places[beside]] -= 1
            else:
                b[i] += image_HW[beside]
    filled[hidden_HW] = np.linalg.solve(a, b)
    return filled


def stripes(height: int, width: int) -> np.ndarray:
    return np.arange(width) % 9 < 4 + np.zeros((height, 1), int)


@pytest.mark.parametrize(
    "hidden",
    [
        np.random.default_rng(0).random((24, 31)) < 0.5,
        stripes(24, 31),
        np.pad(np.ones((20, 25), bool), ((2, 2), (3, 3))),
        np.pad(np.ones((12, 31), bool), ((0, 12), (0, 0))),  # at three borders
        np.pad(np.ones((1, 1), bool), ((0, 23), (30, 0))),
    ],
    ids=["dots", "stripes", "block", "half", "corner"],
)
@pytest.mark.parametrize("direct", [True, False])
def test_it_is_the_dense_solution(
    hidden: np.ndarray, direct: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not direct:
        monkeypatch.setattr(laplace, "DIRECT_PIXELS", 0)
    image = np.random.default_rng(1).random((24, 31, 3))
    filled = fill(image, hidden)
    for channel in range(3):
        exact = solve_dense(image[..., channel], hidden)
        np.testing.assert_allclose(filled[..., channel], exact, atol=1e-5)


def test_a_plane_is_restored() -> None:
    rows, columns = np.mgrid[:60, :80]
    plane = ((rows + 2 * columns) / 300)[..., None]
    hidden = np.zeros((60, 80), bool)
    hidden[10:50, 5:70] = True
    np.testing.assert_allclose(
        fill(np.where(hidden[..., None], 0, plane), hidden), plane, atol=1e-4
    )


def test_a_hole_that_nothing_touches_is_grey() -> None:
    filled = fill(np.zeros((5, 7, 2)), np.ones((5, 7), bool))
    assert (filled == 0.5).all()
