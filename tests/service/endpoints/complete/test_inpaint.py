"""Windows over holes: what is known stays, what is filled has no seams, and work is bounded."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from models.inputs.image_files.data import ImageData, ImageError
from service.endpoints.complete.inpaint import Filler, complete
from service.endpoints.complete.tiling import plan_windows
from service.errors import Problem

S, P = 32, 4


def occlusion(windows: np.ndarray, occluded: np.ndarray) -> np.ndarray:
    """Which pixels a filler may look at, (B, S, S)."""
    patch = windows.shape[1] // occluded.shape[1]
    return ~occluded.repeat(patch, 1).repeat(patch, 2)


def linear(windows: np.ndarray, occluded: np.ndarray) -> np.ndarray:
    """Continues each window as the plane that fits what is visible best."""
    assert windows.dtype == np.float32
    assert windows.min() >= 0
    assert windows.max() <= 1
    rows, columns = np.mgrid[: windows.shape[1], : windows.shape[2]]
    basis = np.stack([np.ones(rows.size), rows.ravel(), columns.ravel()], 1)
    filled = []
    for window, visible in zip(windows, occlusion(windows, occluded), strict=True):
        fit, *_ = np.linalg.lstsq(
            basis[visible.ravel()], window.reshape(len(basis), -1)[visible.ravel()], rcond=None
        )
        filled.append((basis @ fit).reshape(window.shape))
    return np.array(filled, np.float32)


def mean(windows: np.ndarray, occluded: np.ndarray) -> np.ndarray:
    """The mean of what is visible, or a middle grey."""
    visible = occlusion(windows, occluded)[..., None]
    total = (windows * visible).sum((1, 2), keepdims=True)
    count = visible.sum((1, 2), keepdims=True)
    return np.broadcast_to(
        np.where(count, total / np.maximum(count, 1), 0.5), windows.shape
    ).astype(np.float32)


def ramp(height: int, width: int) -> ImageData:
    """Three planes, each of whole numbers."""
    rows, columns = np.mgrid[:height, :width]
    planes = [rows, columns, 255 - rows]
    return ImageData(np.stack(planes, -1).astype(np.uint8))


def hole(shape: tuple[int, int], *box: int) -> np.ndarray:
    """A rectangle (top, left, bottom, right) of unknown pixels."""
    unknown = np.zeros(shape, bool)
    top, left, bottom, right = box
    unknown[top:bottom, left:right] = True
    return unknown


def completed(
    picture: ImageData, unknown: np.ndarray, filler: Filler, channels: int = 3
) -> ImageData:
    return complete(picture, plan_windows(unknown, S, P, 10**6), filler, channels)


def noise(seed: int, shape: tuple[int, int], channels: int, depth: type, alpha: bool) -> ImageData:
    rng = np.random.default_rng(seed)
    pixels = rng.integers(0, np.iinfo(depth).max, (*shape, channels), depth, endpoint=True)
    return ImageData(pixels, rng.integers(0, 256, shape, np.uint8) if alpha else None, b"profile")


SIDES = st.sampled_from([1, 2, 3, 5, 16, 31, 32, 33, 47, 64, 90])


@settings(max_examples=80, deadline=None)
@given(
    shape=st.tuples(SIDES, SIDES),
    seed=st.integers(0, 9999),
    share=st.floats(0, 1),
    kind=st.sampled_from(["dots", "box", "border", "all but one"]),
    channels=st.sampled_from([(1, np.uint8), (1, np.uint16), (3, np.uint8)]),
    alpha=st.booleans(),
    reads=st.sampled_from([1, 3]),
)
def test_what_is_known_comes_back_as_it_was(shape, seed, share, kind, channels, alpha, reads):
    rng = np.random.default_rng(seed)
    if kind == "dots":
        unknown = rng.random(shape) < share
    elif kind == "all but one":
        unknown = np.ones(shape, bool)
        unknown[rng.integers(shape[0]), rng.integers(shape[1])] = False
    else:
        low = [0 if kind == "border" else rng.integers(n) for n in shape]
        high = [rng.integers(a, n) + 1 for a, n in zip(low, shape, strict=True)]
        unknown = hole(shape, *low, *high)
    unknown[0, 0] |= not unknown.any()
    unknown[0, 0] &= not unknown.all()
    picture = noise(seed, shape, *channels, alpha)
    before = picture.pixels.copy()
    if not unknown.any():  # a single pixel
        return
    found = completed(picture, unknown, mean, reads)
    assert found.pixels.dtype == picture.pixels.dtype
    assert found.pixels.shape == picture.pixels.shape
    assert found.profile == picture.profile
    np.testing.assert_array_equal(picture.pixels, before)
    np.testing.assert_array_equal(found.pixels[~unknown], picture.pixels[~unknown])
    assert (found.alpha is None) == (picture.alpha is None)
    if alpha:
        np.testing.assert_array_equal(found.alpha[~unknown], picture.alpha[~unknown])
        assert (found.alpha[unknown] == 255).all()
    again = completed(picture, unknown, mean, reads)
    np.testing.assert_array_equal(found.pixels, again.pixels)


HOLES = {
    "small": hole((90, 120), 40, 50, 50, 61),
    "one pixel": hole((90, 120), 33, 71, 34, 72),
    "in a corner": hole((90, 120), 0, 0, 12, 9),
    "at a border": hole((90, 120), 78, 20, 90, 70),
    "thin": hole((90, 120), 44, 3, 47, 117),
    "two": hole((90, 120), 4, 4, 14, 14) | hole((90, 120), 70, 100, 80, 112),
    "wide": hole((240, 250), 100, 80, 160, 160),
    "wide at a border": hole((240, 250), 0, 80, 60, 160),
    "a diagonal": np.abs(np.subtract.outer(np.arange(120), np.arange(120))) < 6,
}


@pytest.mark.parametrize("name", HOLES)
def test_a_filler_that_knows_the_picture_restores_it(name):
    unknown = HOLES[name]
    picture = ramp(*unknown.shape)
    broken = ImageData(np.where(unknown[..., None], np.uint8(77), picture.pixels))
    np.testing.assert_array_equal(completed(broken, unknown, linear).pixels, picture.pixels)


def test_a_smaller_picture_is_mirrored():
    unknown = hole((11, 20), 4, 5, 8, 12)
    picture = ImageData(np.full((11, 20, 3), 91, np.uint8))
    shown = []

    def watched(windows, occluded):
        shown.append((windows, occluded))
        return mean(windows, occluded)

    broken = ImageData(np.where(unknown[..., None], np.uint8(0), picture.pixels))
    assert (completed(broken, unknown, watched).pixels == 91).all()
    ((windows, occluded),) = shown
    assert windows.shape == (1, S, S, 3)
    assert occluded.shape == (1, S // P, S // P)
    assert 0 < occluded.mean() < 1


def test_a_patch_is_occluded_where_any_of_it_is_unknown_and_nothing_unknown_is_shown():
    unknown = hole((S, S), 4, 4, 9, 8)
    picture = noise(3, (S, S), 3, np.uint8, False)

    def judge(windows, occluded):
        expected = np.zeros((1, S // P, S // P), bool)
        expected[0, 1:3, 1] = True
        np.testing.assert_array_equal(occluded, expected)
        pixels = np.where(unknown[..., None], 0, picture.pixels / np.float32(255))
        np.testing.assert_array_equal(windows[0], pixels)
        return windows

    completed(picture, unknown, judge)


@pytest.mark.parametrize("box", [(40, 40, 160, 160), (0, 30, 100, 170), (96, 10, 106, 190)])
def test_windows_that_disagree_leave_no_seams(box):
    """A ramp of one grey level a pixel, from a filler that is off by up to 40 in each window."""
    unknown = hole((200, 200), *box)
    picture = ramp(200, 200)
    rng = np.random.default_rng(0)

    def off(windows, occluded):
        offset = rng.uniform(-40, 40, (len(windows), 1, 1, 1)) / 255
        return (linear(windows, occluded) + offset).astype(np.float32)

    found = completed(picture, unknown, off).pixels[:, :, 1].astype(int)
    inside = np.pad(found, 0)[box[0] : box[2], box[1] : box[3]]
    for axis in (0, 1):
        assert np.abs(np.diff(inside, axis=axis)).max() <= 16, axis


def test_errors_do_not_add_up_on_the_way_in():
    """A filler that is too bright by 5 of 255 each time, in a hole eight passes deep: half the
    size, where there are fewer, sets the large structure. Without it they come to 40."""
    unknown = hole((264, 264), 4, 4, 260, 260)
    picture = ImageData(np.full((264, 264, 1), 100, np.uint8))

    def bright(windows, occluded):
        return mean(windows, occluded) + np.float32(5 / 255)

    found = completed(picture, unknown, bright, channels=1)
    assert len(plan_windows(unknown, S, P, 10**6).levels) > 3
    assert found.pixels.min() >= 95
    assert found.pixels.max() <= 110


def test_answers_that_are_no_pixels():
    unknown = hole((40, 40), 4, 4, 9, 9)
    found = completed(ramp(40, 40), unknown, lambda windows, _: windows + 7)
    assert (found.pixels[unknown] == 255).all()
    with pytest.raises(Problem) as refused:
        completed(ramp(40, 40), unknown, lambda windows, _: windows + np.nan)
    assert refused.value.kind == "diverged"


def test_a_hole_closes_from_outside_in():
    """Beyond the first pass there is no window that sees nothing."""
    unknown = hole((200, 200), 50, 50, 150, 150)
    visible = []

    def watched(windows, occluded):
        visible.extend(1 - occluded.mean((1, 2)))
        return mean(windows, occluded)

    completed(ramp(200, 200), unknown, watched)
    assert min(visible) > 0.1


def test_dots_leave_a_filler_something_to_see():
    """Every patch has an unknown pixel, most of the picture is known all the same."""
    unknown = np.zeros((96, 96), bool)
    unknown[::4, ::4] = True
    picture = ramp(96, 96)
    broken = ImageData(np.where(unknown[..., None], np.uint8(0), picture.pixels))

    def watched(windows, occluded):
        assert not occluded.all()
        return mean(windows, occluded)

    found = completed(broken, unknown, watched)
    assert np.abs(found.pixels.astype(int) - picture.pixels).max() <= 2


def test_the_number_of_windows_grows_with_the_area():
    def count(side: int) -> int:
        unknown = hole((1200, 1200), 20, 20, 20 + side, 20 + side)
        return plan_windows(unknown, S, P, 10**6).windows

    assert count(S // 2) == 1
    counts = {side: count(side) for side in (128, 256, 512, 1024)}
    for side, windows in counts.items():
        assert windows <= 1.5 * (side / (S // 2)) ** 2 + 8
    dots = np.random.default_rng(0).random((1200, 1200)) < 0.5
    assert plan_windows(dots, S, P, 10**6).windows <= 1.5 * (1200 / (S // 2)) ** 2 + 8


def test_so_many_windows_and_no_more():
    unknown = hole((1200, 1200), 0, 0, 1000, 1000)
    windows = plan_windows(unknown, S, P, 10**6).windows
    plan_windows(unknown, S, P, windows)
    with pytest.raises(ImageError) as refused:
        plan_windows(unknown, S, P, windows - 1)
    assert refused.value.code == "too_much_work"
    line = np.ones((1, 10**6), bool)
    line[0, 0] = False
    with pytest.raises(ImageError):
        plan_windows(line, S, P, 8192)


def test_windows_are_whole_patches():
    with pytest.raises(ValueError, match="patch size"):
        plan_windows(hole((9, 9), 1, 1, 2, 2), 32, 5, 10)
    with pytest.raises(ValueError, match="known"):
        plan_windows(np.ones((1, 1), bool), S, P, 10)
