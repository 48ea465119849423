"""Memories: what they refuse, and that what goes in comes out."""

from __future__ import annotations

import time

import numpy as np
import pytest
import torch

from models.memories import InvalidMemoryError, Memory, decode_letters, encode_letters

RNG = np.random.default_rng(0)


def items(kind: str) -> np.ndarray:
    if kind == "vectors":
        return (RNG.standard_normal((9, 7)) * RNG.uniform(1, 50, (9, 1))).astype(np.float32)
    if kind == "images":
        return RNG.uniform(0, 1, (9, 4, 5, 3)).astype(np.float32)
    if kind == "sequences":
        return RNG.integers(0, 21, (9, 30)).astype(np.uint8)
    return (0.01 * RNG.standard_normal((9, 6))).astype(np.float32)


@pytest.mark.parametrize("kind", ["vectors", "images", "returns", "sequences"])
def test_patterns_are_unit_and_keep_their_length(kind: str) -> None:
    raw = items(kind)
    memory = Memory.from_items(kind, raw)
    torch.testing.assert_close(memory.patterns_KD.norm(dim=1), torch.ones(9))
    features = memory.codec.encode(raw)
    np.testing.assert_allclose(memory.norms_K, np.linalg.norm(features, axis=1), rtol=1e-6)
    states = memory.encode_states(raw)
    torch.testing.assert_close(states, memory.patterns_KD)
    assert memory.sha256 == Memory.from_items(kind, raw.copy()).sha256
    assert memory.sha256 != Memory.from_items(kind, raw[::-1]).sha256


@pytest.mark.parametrize("kind", ["vectors", "images"])
def test_stored_patterns_come_back(kind: str) -> None:
    raw = items(kind)
    memory = Memory.from_items(kind, raw)
    np.testing.assert_allclose(memory.decode(memory.patterns_KD, 1e4), raw, rtol=1e-4, atol=1e-5)


def test_images_stay_images() -> None:
    memory = Memory.from_items("images", items("images"))
    wild = memory.decode(3 * torch.randn(2, memory.dim), 100.0)
    assert wild.shape == (2, 4, 5, 3)
    assert wild.min() == 0
    assert wild.max() == 1


def test_sequences_come_back_because_their_length_does() -> None:
    family = RNG.integers(0, 20, 60)
    raw = np.where(RNG.random((40, 60)) < 0.4, RNG.integers(0, 20, (40, 60)), family)
    raw = raw.astype(np.uint8)
    memory = Memory.from_items("sequences", raw)
    assert memory.dim < 40
    assert (memory.decode(memory.patterns_KD, 1e5) == raw).mean() > 0.97
    short = Memory(memory.patterns_KD, torch.ones_like(memory.norms_K), memory.codec, memory.sha256)
    assert (short.decode(memory.patterns_KD, 1e5) == raw).mean() < 0.9


def test_returns_get_the_moments_of_their_history() -> None:
    raw = (RNG.standard_normal((50, 6)) * RNG.uniform(0.01, 0.1, 6) + 0.02).astype(np.float32)
    memory = Memory.from_items("returns", raw)
    torch.testing.assert_close(memory.patterns_KD.sum(1), torch.zeros(50), rtol=0, atol=1e-6)
    back = memory.decode(torch.randn(40, 6), 50.0)
    np.testing.assert_allclose(back.mean(0), raw.mean(0), atol=1e-6)
    np.testing.assert_allclose(back.std(0), raw.std(0), rtol=1e-4)
    assert memory.decode(torch.randn(1, 6), 50.0).shape == (1, 6)


def test_rounding_is_not_blown_up_to_the_spread_of_returns() -> None:
    """Chains that stay at one day tell nothing of volatility."""
    raw = (0.02 * RNG.standard_normal((50, 6)) + 0.01).astype(np.float32)
    memory = Memory.from_items("returns", raw)
    one_day = memory.patterns_KD[3] + 1e-3 * torch.randn(40, 6)
    back = memory.decode(one_day, 30.0)
    assert (back.std(0) < 1e-3 * raw.std(0)).all()
    np.testing.assert_allclose(back.mean(0), raw.mean(0), atol=1e-6)
    flat = raw.copy()
    flat[:, 2] = 0.125
    assert (Memory.from_items("returns", flat).decode(torch.randn(9, 6), 50.0)[:, 2] == 0.125).all()


def test_letters() -> None:
    places = encode_letters(["ACDY", "a-.w"])
    assert places.tolist() == [[0, 1, 2, 19], [0, 20, 20, 18]]
    assert encode_letters(["."]).tolist() == [[20]]
    assert decode_letters(places) == ["ACDY", "A--W"]
    for bad in ("AXCD", "AC1D", "AC*D", "Aß", "ß", "\u017f", "A\x00"):
        with pytest.raises(ValueError, match="amino"):
            encode_letters([bad])


@pytest.mark.parametrize(
    ("change", "code", "rows"),
    [
        (lambda x: x.__setitem__((3, 2), np.nan), "not_finite", [3]),
        (lambda x: x.__setitem__((5, 0), np.inf), "not_finite", [5]),
        (lambda x: x.__setitem__(4, 0), "zero_norm", [4]),
        (lambda x: x.__setitem__(7, x[2]), "duplicate", [7]),
        (lambda x: x.__setitem__(7, 3 * x[2]), "duplicate", [7]),
        (lambda x: x.__setitem__(slice(6, 9), x[1]), "duplicate", [6, 7, 8]),
        (lambda x: x.__setitem__(slice(None), 0), "zero_norm", list(range(9))),
    ],
)
def test_what_is_no_memory(change, code: str, rows: list[int]) -> None:
    raw = items("vectors")
    change(raw)
    with pytest.raises(InvalidMemoryError) as fault:
        Memory.from_items("vectors", raw)
    assert fault.value.code == code
    assert fault.value.items.tolist() == rows


def test_a_day_on_which_all_assets_moved_alike_has_no_direction() -> None:
    raw = items("returns")
    raw[2] = 0.01
    with pytest.raises(InvalidMemoryError) as fault:
        Memory.from_items("returns", raw)
    assert (fault.value.code, fault.value.items.tolist()) == ("zero_norm", [2])


def test_opposite_and_near_patterns_are_no_duplicates() -> None:
    raw = items("vectors")
    raw[3] = -raw[2]
    raw[4] = raw[2] * (1 + 1e-4 * np.arange(7))
    assert Memory.from_items("vectors", raw).num_patterns == 9


def test_many_patterns_with_one_projection_take_no_longer() -> None:
    """The direction of the projection is known, so a memory can be made to lie across it."""
    across = np.random.default_rng(0).standard_normal(4)
    across /= np.linalg.norm(across)
    raw = RNG.standard_normal((30_000, 4))
    raw -= np.outer(raw @ across, across)
    start = time.perf_counter()
    assert Memory.from_items("vectors", raw).num_patterns == 30_000
    assert time.perf_counter() - start < 2
    raw[29_000:] = raw[:1000]
    with pytest.raises(InvalidMemoryError) as fault:
        Memory.from_items("vectors", raw)
    assert fault.value.items.tolist() == list(range(29_000, 30_000))


def test_copies_are_found_whatever_rounds_them() -> None:
    raw = RNG.standard_normal((3000, 50)).astype(np.float32)
    copies = raw[:900] * RNG.uniform(0.1, 10, (900, 1)).astype(np.float32)
    with pytest.raises(InvalidMemoryError) as fault:
        Memory.from_items("vectors", np.vstack([raw, copies, raw[:10]]))
    assert fault.value.items.tolist() == list(range(3000, 3910))


def test_a_part_that_patterns_hardly_have_implies_no_enormous_length() -> None:
    raw = np.array([[1, 0, 1e-30], [0, 1, 1e-30], [1, 1, 1e-30]], np.float32)
    memory = Memory.from_items("vectors", raw)
    known = memory.clamp_coordinates(np.array([2]), np.array([1e6]))
    assert known.norm == pytest.approx(float(memory.norms_K.mean()))
    back = memory.decode(torch.randn(4, 3), 10.0, known)
    assert np.isfinite(back).all()


def test_part_of_a_stored_pattern_is_on_its_scale() -> None:
    raw = items("vectors")
    memory = Memory.from_items("vectors", raw)
    known = memory.clamp_coordinates(np.array([5, 1, 2]), raw[4, [5, 1, 2]])
    assert known.mask_D.tolist() == [False, True, True, False, False, True, False]
    assert known.norm == pytest.approx(float(memory.norms_K[4]), rel=1e-5)
    np.testing.assert_allclose(known.values_k, memory.patterns_KD[4, [1, 2, 5]], rtol=1e-5)
    whole = memory.patterns_KD[4:5].clone()
    back = memory.decode(whole, 100.0, known)
    np.testing.assert_allclose(back[0], raw[4], rtol=1e-5)
    assert (back[0, [1, 2, 5]] == raw[4, [1, 2, 5]]).all()
    nothing = memory.clamp_coordinates(np.array([0]), np.array([0.0]))
    assert nothing.norm == pytest.approx(float(memory.norms_K.mean()))
