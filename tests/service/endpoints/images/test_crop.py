"""Pictures at the size of a network."""

from __future__ import annotations

import numpy as np
import pytest

from models.inputs.image_files.data import ImageData
from service.endpoints.images.crop import fitted

RNG = np.random.default_rng(2)
BLACK = np.zeros(3)


def shown(picture, shape, blank=BLACK, fit="stretch"):
    found = fitted(picture, shape, blank[: shape[0]], fit)
    assert (found.shape, found.dtype) == (shape, np.float32)
    assert ((found >= 0) & (found <= 1)).all()
    return found


def noise(height, width, channels=3):
    return RNG.integers(0, 256, (height, width, channels), np.uint8)


def test_a_picture_of_this_size_keeps_its_values():
    pixels = noise(9, 7)
    expected = pixels.transpose(2, 0, 1).astype(np.float32) / 255
    np.testing.assert_array_equal(shown(ImageData(pixels), (3, 9, 7)), expected)
    grey = RNG.integers(0, 65536, (9, 7, 1), np.uint16)
    np.testing.assert_array_equal(
        shown(ImageData(grey), (3, 9, 7))[1], grey[..., 0].astype(np.float32) / 65535
    )


@pytest.mark.parametrize(("height", "width"), [(5, 4), (7, 3), (20, 1), (13, 11)])
def test_areas_are_averaged(height, width):
    """Against every pixel cut into as many as make whole numbers of them."""
    pixels = noise(20, 12)
    fine = pixels.repeat(height, 0).repeat(width, 1).astype(float)
    parts = fine.reshape(height, 20, width, 12, 3)
    expected = parts.mean((1, 3)).transpose(2, 0, 1) / 255
    np.testing.assert_allclose(shown(ImageData(pixels), (3, height, width)), expected, rtol=1e-6)


def test_what_grows_is_interpolated():
    ramp = np.linspace(0, 250, 6).astype(np.uint8)[None, :, None].repeat(2, 0)
    found = shown(ImageData(ramp), (1, 2, 12))[0, 0] * 255
    np.testing.assert_allclose(np.diff(found)[1:-1], 25, atol=1e-4)
    assert (found[0], found[-1]) == (0, 250)
    mixed = shown(ImageData(noise(2, 40)), (3, 8, 8))  # one axis grows, the other shrinks
    assert mixed.std() > 0


def test_what_is_transparent_shows_the_blank():
    pixels, blank = noise(8, 8), np.array([0.2, 0.4, 0.6])
    alpha = np.zeros((8, 8), np.uint8)
    alpha[:, 4:] = 255
    found = shown(ImageData(pixels, alpha), (3, 8, 8), blank)
    np.testing.assert_allclose(found[:, :, :4], blank[:, None, None].repeat(8, 1).repeat(4, 2))
    np.testing.assert_array_equal(found[:, :, 4:], shown(ImageData(pixels), (3, 8, 8))[:, :, 4:])
    pixels[:, :4] = 0  # what was hidden has no part in it
    np.testing.assert_array_equal(shown(ImageData(pixels, alpha), (3, 8, 8), blank), found)
    half = shown(ImageData(pixels[:, :, :1], alpha), (3, 1, 1), blank)[:, 0, 0]
    mean = pixels[:, 4:, 0].mean() / 255
    np.testing.assert_allclose(half, (blank + mean) / 2, rtol=1e-6)


def test_grey_and_rgb():
    grey = noise(6, 6, 1)
    np.testing.assert_array_equal(
        shown(ImageData(grey), (3, 4, 4)), shown(ImageData(grey), (1, 4, 4)).repeat(3, 0)
    )
    pure = np.zeros((2, 2, 3), np.uint8)
    pure[..., 1] = 255
    np.testing.assert_allclose(shown(ImageData(pure), (1, 2, 2)), 0.587, rtol=1e-6)


@pytest.mark.parametrize(
    ("found", "wanted", "part"),
    [
        ((40, 24), (8, 12), np.s_[12:28, :]),
        ((10, 30), (5, 5), np.s_[:, 10:20]),
        ((1, 9), (8, 8), np.s_[:, 4:5]),
        ((9, 9), (8, 8), np.s_[:, :]),
    ],
)
def test_crop_keeps_proportions(found, wanted, part):
    pixels = noise(*found)
    np.testing.assert_array_equal(
        shown(ImageData(pixels), (3, *wanted), fit="crop"),
        shown(ImageData(pixels[part]), (3, *wanted)),
    )


def test_a_line_of_a_million_pixels_is_not_repeated():
    import tracemalloc

    line = noise(1, 1_000_000)
    for pixels in (line, line.swapaxes(0, 1)):
        tracemalloc.start()
        shown(ImageData(pixels), (3, 32, 32))
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 40e6
