"""Windows over holes: what is filled has no seams, and what is hidden has no part in it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from models.inputs.inpainting import fill as filling
from models.inputs.inpainting import laplace
from models.inputs.inpainting.fill import (
    Answers,
    FilledPixels,
    HoleFiller,
    Windows,
    fill_holes,
)
from models.inputs.inpainting.plan import Tiling, plan_windows
from tests.support.completion import hole

TILING = Tiling.from_size(32)
Answer = Callable[[Windows], np.ndarray]


def fill(image: np.ndarray, hidden: np.ndarray, answer: Answer) -> np.ndarray:
    """The image with its hidden pixels filled, in its own type."""
    plan = plan_windows(hidden, TILING, 10**6)
    filled = fill_holes(image, plan, lambda windows, _: Answers(answer(windows), None))
    return filled.write(image)


def linear(windows: Windows) -> np.ndarray:
    """Continues each window as the plane that fits what is known best."""
    pixels, hidden = windows
    assert pixels.dtype == np.float32
    rows, columns = np.mgrid[: pixels.shape[1], : pixels.shape[2]]
    basis = np.stack([np.ones(rows.size), rows.ravel(), columns.ravel()], 1)
    filled = []
    for window, known in zip(pixels, ~hidden, strict=True):
        values = window.reshape(len(basis), -1)[known.ravel()]
        fit, *_ = np.linalg.lstsq(basis[known.ravel()], values, rcond=None)
        filled.append((basis @ fit).reshape(window.shape))
    return np.array(filled, np.float32)


def prefill(windows: Windows) -> np.ndarray:
    """Leaves windows as they are."""
    return windows.pixels


def ramp(height: int, width: int) -> np.ndarray:
    """Three planes, each of whole numbers."""
    rows, columns = np.mgrid[:height, :width]
    return np.stack([rows, columns, 255 - rows], -1).astype(np.uint8)


SIDES = st.sampled_from([1, 2, 3, 5, 16, 31, 32, 33, 47, 64, 90])


@settings(max_examples=80, deadline=None)
@given(
    shape=st.tuples(SIDES, SIDES),
    seed=st.integers(0, 9999),
    share=st.floats(0, 1),
    kind=st.sampled_from(["dots", "box", "all but one"]),
    channels=st.sampled_from([(1, np.uint8), (1, np.uint16), (3, np.uint8)]),
)
def test_what_is_hidden_has_no_part_and_what_is_known_stays(
    shape, seed, share, kind, channels
) -> None:
    rng = np.random.default_rng(seed)
    if kind == "dots":
        hidden = rng.random(shape) < share
    elif kind == "all but one":
        hidden = np.ones(shape, bool)
        hidden[rng.integers(shape[0]), rng.integers(shape[1])] = False
    else:
        low = [rng.integers(n) for n in shape]
        high = [rng.integers(a, n) + 1 for a, n in zip(low, shape, strict=True)]
        hidden = hole(shape, *low, *high)
    if hidden.all() or not hidden.any():
        return
    count, depth = channels
    peak = np.iinfo(depth).max
    image = rng.integers(0, peak, (*shape, count), depth, endpoint=True)
    before = image.copy()
    filled = fill(image, hidden, linear)
    np.testing.assert_array_equal(image, before)
    np.testing.assert_array_equal(filled[~hidden], image[~hidden])
    other = np.where(hidden[..., None], rng.integers(0, peak, image.shape, depth), image)
    np.testing.assert_array_equal(fill(other, hidden, linear), filled)


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
    "dots": np.add.outer(np.arange(96) % 4, np.arange(96) % 4) == 0,
}


@pytest.mark.parametrize("name", HOLES)
def test_a_network_that_knows_the_picture_restores_it(name: str) -> None:
    hidden = HOLES[name]
    picture = ramp(*hidden.shape)
    broken = np.where(hidden[..., None], np.uint8(77), picture)
    off = fill(broken, hidden, linear).astype(int) - picture
    # Near what half the size has completed the prefill counts too, which no border crosses.
    assert np.abs(off).max() <= (6 if name == "wide at a border" else 1)


@pytest.mark.parametrize(
    "name", sorted(HOLES.keys() - {"in a corner", "at a border", "wide at a border"})
)
def test_the_prefill_restores_planes(name: str) -> None:
    """Away from the border, over which nothing flows."""
    hidden = HOLES[name]
    picture = ramp(*hidden.shape)
    broken = np.where(hidden[..., None], np.uint8(77), picture)
    off = fill(broken, hidden, prefill).astype(int) - picture
    assert np.abs(off).max() <= (
        1 if name != "a diagonal" else 4
    )  # at two corners it is at the border


def test_a_smaller_picture_is_mirrored() -> None:
    hidden = hole((11, 20), 4, 5, 8, 12)
    shown = []

    def watch(windows: Windows) -> np.ndarray:
        shown.append(windows)
        return windows.pixels

    filled = fill(
        np.where(hidden[..., None], 0, np.full((11, 20, 3), 91)).astype(np.uint8), hidden, watch
    )
    assert (filled == 91).all()
    ((pixels, shown_hidden),) = shown
    assert pixels.shape == (1, 32, 32, 3)
    assert np.allclose(pixels, 91 / 255)
    assert 0 < shown_hidden.mean() < 1


@pytest.mark.parametrize("box", [(40, 40, 160, 160), (0, 30, 100, 170), (96, 10, 106, 190)])
def test_windows_that_disagree_leave_no_seams(box) -> None:
    """A ramp of one grey level a pixel, from a network that is off by up to 40 in each window."""
    hidden = hole((200, 200), *box)
    rng = np.random.default_rng(0)

    def off(windows: Windows) -> np.ndarray:
        offset = rng.uniform(-40, 40, (len(windows.pixels), 1, 1, 1)) / 255
        return (linear(windows) + offset).astype(np.float32)

    filled = fill(ramp(200, 200), hidden, off)[:, :, 1].astype(int)
    inside = filled[box[0] : box[2], box[1] : box[3]]
    for axis in (0, 1):
        steps = np.abs(np.diff(inside, axis=axis))
        assert np.percentile(steps, 99) <= 16, axis


def test_errors_add_up_over_scales_and_no_further() -> None:
    """A network that is too bright by 5 of 255 each time, in a hole of six scales."""
    hidden = hole((264, 264), 4, 4, 260, 260)
    picture = np.full((264, 264, 1), 100, np.uint8)
    filled = fill(picture, hidden, lambda windows: windows.pixels + np.float32(5 / 255))
    scales = len(plan_windows(hidden, TILING, 10**6).levels)
    assert filled.min() >= 95
    assert filled.max() <= 100 + 5 * scales


def test_answers_beyond_black_and_white_are_cut_off() -> None:
    hidden = hole((40, 40), 4, 4, 9, 9)
    assert (fill(ramp(40, 40), hidden, lambda windows: windows.pixels + 7)[hidden] == 255).all()


@pytest.mark.parametrize("shade", [0, 255])
def test_at_a_border_black_and_white_stay_what_they_are(shade: int) -> None:
    """Deep pixels beside a border lie beyond the pixels of half the size."""
    hidden = hole((120, 160), 0, 30, 70, 130)
    noise = np.random.default_rng(0).integers(0, 6, (120, 160, 3))
    picture = np.abs(shade - noise).astype(np.uint8)

    def answer(windows: Windows) -> np.ndarray:
        more = np.random.default_rng(1).normal(0, 0.02, windows.pixels.shape)
        return (windows.pixels + more).astype(np.float32)

    filled = fill(picture, hidden, answer).astype(int)
    assert np.abs(filled - shade).max() < 60


def test_it_can_be_ended_while_nothing_is_completed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(laplace, "DIRECT_PIXELS", 0)
    hidden = hole((90, 90), 20, 20, 60, 60)

    def stop() -> None:
        raise TimeoutError

    def answer(windows: Windows, _: object) -> Answers:
        raise AssertionError("no window should be completed")

    with pytest.raises(TimeoutError):
        fill_holes(ramp(90, 90), plan_windows(hidden, TILING, 100), answer, check=stop)


def test_expected_errors_are_averaged_and_enlarged() -> None:
    hidden = hole((120, 120), 20, 20, 90, 90)
    plan = plan_windows(hidden, TILING, 100)

    def answer(windows: Windows, _: object) -> Answers:
        return Answers(windows.pixels, np.full(windows.hidden.shape, 0.25, np.float32))

    filled = fill_holes(ramp(120, 120), plan, answer)
    assert len(plan.levels) > 1
    assert filled.expected_error is not None
    ring = plan.levels[0].completed.ravel()[filled.places]
    assert filled.expected_error[ring].min() >= 0.24999
    assert filled.expected_error.max() <= 0.3  # beside what is known 0 goes on as a plane


def test_a_preview_is_what_would_be_if_windows_ended_so() -> None:
    hidden = hole((60, 60), 20, 20, 30, 30)
    plan = plan_windows(hidden, TILING, 100)
    assert plan.num_windows == 1
    seen: list[FilledPixels] = []

    def answer(windows: Windows, preview: Callable[[Answers], FilledPixels]) -> Answers:
        for value in (0.25, 0.5):
            seen.append(preview(Answers(np.full_like(windows.pixels, value), None)))
        return Answers(np.full_like(windows.pixels, 0.75), None)

    filled = fill_holes(ramp(60, 60), plan, answer)
    for each, value in zip((*seen, filled), (0.25, 0.5, 0.75), strict=True):
        np.testing.assert_array_equal(each.places, np.flatnonzero(hidden))
        np.testing.assert_allclose(each.values, value, rtol=1e-6)


def test_a_preview_of_a_smaller_scale_is_of_full_size() -> None:
    hidden = hole((120, 120), 20, 20, 90, 90)
    plan = plan_windows(hidden, TILING, 100)
    picture, off = ramp(120, 120).astype(int), list[int]()

    def answer(windows: Windows, preview: Callable[[Answers], FilledPixels]) -> Answers:
        answers = Answers(linear(windows), None)
        filled = preview(answers).write(ramp(120, 120)).astype(int)
        off.append(int(np.abs(filled - picture).max()))
        return answers

    fill_holes(ramp(120, 120), plan, answer)
    assert len(off) == len(plan.levels) > 2
    assert max(off) <= 20  # the smallest is enlarged eight times
    assert off[-1] <= 2


@pytest.mark.parametrize("box", [(10, 10, 20, 60), (8, 8, 72, 72)], ids=["thin", "wide"])
def test_completions_share_what_no_answer_changes(
    box: tuple[int, int, int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    image, hidden = ramp(80, 80), hole((80, 80), *box)
    plan = plan_windows(hidden, TILING, 10**6)
    solved: list[int] = []
    solve = filling.fill_harmonic

    def count(places: np.ndarray, *args) -> np.ndarray:
        solved.append(len(places))
        return solve(places, *args)

    monkeypatch.setattr(filling, "fill_harmonic", count)

    def brighten(by: float) -> Callable[[Windows, object], Answers]:
        return lambda windows, _: Answers(windows.pixels + np.float32(by), None)

    alone = [fill_holes(image, plan, brighten(by)).write(image) for by in (0.1, -0.2, 0.1)]
    levels = len(plan.levels)
    assert len(solved) == 3 * levels
    solved.clear()
    holes = HoleFiller(image, plan)
    for by, expected in zip((0.1, -0.2, 0.1), alone, strict=True):
        np.testing.assert_array_equal(holes.fill(brighten(by)).write(image), expected)
    assert len(solved) == 1 + 3 * (levels - 1)
