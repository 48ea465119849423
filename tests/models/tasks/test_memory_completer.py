"""Images completed from stored ones."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from models.base import DynamicsParams
from models.energies import ClampedMemory
from models.layouts import PatternLayout
from models.memories import Memory
from models.tasks.memory_completer import LUMA_C, MAX_DEFAULT_BETA, MemoryCompleter

RNG = np.random.default_rng(4)
STORED = RNG.random((12, 6, 5, 3), np.float32)
MEMORY = Memory.from_items("images", STORED)
HIDDEN = np.zeros((6, 5), bool)
HIDDEN[3:] = True


def fill(image: np.ndarray, hidden: np.ndarray = HIDDEN, **params) -> tuple[np.ndarray, object]:
    network = MemoryCompleter(MEMORY, image[None], hidden).compare()
    output = network.infer(
        network.pack([network.make_item(image, hidden)]), [DynamicsParams(**params)]
    )
    pixels, _ = network.read_outputs(output.logits)
    return pixels[0], output


@pytest.mark.parametrize("stored", range(0, 12, 5))
def test_a_half_hidden_stored_image_comes_back(stored: int) -> None:
    blank = np.where(HIDDEN[..., None], np.float32(0.5), STORED[stored])
    pixels, _ = fill(blank)
    np.testing.assert_allclose(pixels, STORED[stored], atol=1e-6)
    np.testing.assert_array_equal(pixels[~HIDDEN], blank[~HIDDEN])


def test_from_the_nearest_image_to_the_mean_of_all() -> None:
    image = RNG.random((6, 5, 3), np.float32)
    distance_K = np.square(STORED - image)[:, ~HIDDEN].sum((1, 2))
    sharp, _ = fill(image, beta=MAX_DEFAULT_BETA)
    np.testing.assert_allclose(sharp[HIDDEN], STORED[distance_K.argmin()][HIDDEN], atol=1e-5)
    even, _ = fill(image, beta=1e-6)
    np.testing.assert_allclose(even[HIDDEN], STORED.mean(0)[HIDDEN], atol=1e-5)
    weight_K = np.exp(-0.8 / 2 * distance_K)
    blend = np.tensordot(weight_K / weight_K.sum(), STORED, 1)
    np.testing.assert_allclose(fill(image, beta=0.8)[0][HIDDEN], blend[HIDDEN], atol=1e-5)
    default = float(8 / distance_K.min())
    np.testing.assert_allclose(fill(image)[0], fill(image, beta=default)[0], atol=1e-5)
    halved = fill(image, beta_scale=0.5)[0]
    np.testing.assert_allclose(halved, fill(image, beta=default / 2)[0], atol=1e-5)


def test_a_brighter_image_is_not_nearer() -> None:
    """By products alone the brightest stored image would win over an exact copy."""
    bright = np.stack([np.full((6, 5), 0.2, np.float32), np.ones((6, 5), np.float32)])
    bright[0, 4, 2] = 0.3
    memory = Memory.from_items("images", bright)
    image = bright[0][..., None]
    network = MemoryCompleter(memory, image[None], HIDDEN).compare()
    output = network.infer(network.pack([network.make_item(image, HIDDEN)]), [DynamicsParams()])
    np.testing.assert_allclose(output.logits[0, 0].numpy(), bright[0], atol=1e-6)


def test_the_force_is_that_of_the_energy() -> None:
    rng = np.random.default_rng(1)
    patterns_KD, score_RK = (torch.from_numpy(rng.random(shape)) for shape in ((6, 9), (3, 6)))
    hidden_D = torch.arange(9) < 5
    energy = ClampedMemory(patterns_KD.norm(dim=1), -score_RK, hidden_D)
    layout = PatternLayout(patterns_KD[None], 3, 1)
    beta_R1 = torch.tensor([[0.5], [2.0], [30.0]], dtype=torch.float64)
    g_ND = torch.from_numpy(rng.random((3, 5))).requires_grad_()
    terms = energy(g_ND, layout, beta_R1)
    (gradient_ND,) = torch.autograd.grad(terms.token_energy_N.sum(), g_ND)
    torch.testing.assert_close(terms.force_ND, -gradient_ND, rtol=0, atol=1e-12)


@pytest.mark.parametrize("step_size", [0.1, 0.7, 1.0])
def test_the_energy_falls(step_size: float) -> None:
    image = RNG.random((6, 5, 3), np.float32)
    _, output = fill(image, steps=8, step_size=step_size, beta=0.5)
    energies = np.array([moment.energy_R[0] for moment in output.solutions[0].trace])
    assert (np.diff(energies) <= 1e-6).all()
    assert energies[0] > energies[-1]


def test_batched_equals_single() -> None:
    network, windows = MemoryCompleter.build_example(2)
    assert isinstance(network, MemoryCompleter)
    params = [
        DynamicsParams(),
        DynamicsParams(steps=3, beta=2.0, noise=0.1, seed=4),
        DynamicsParams(beta_scale=0.2, step_size=0.3),
    ]
    assert len({round(beta, 3) for beta in network.default_beta_R}) == 3
    together = network.infer(network.pack(windows), params)
    for row, window in enumerate(windows):
        alone = MemoryCompleter(network.memory, window.pixels[None], window.hidden).compare()
        output = alone.infer(alone.pack([window]), [params[row]])
        torch.testing.assert_close(together.logits[row], output.logits[0], rtol=1e-5, atol=1e-5)


def test_the_default_beta_of_a_row_is_its_own() -> None:
    far = RNG.random((6, 5, 3), np.float32)
    rows = np.stack([STORED[3], far])  # a copy, whose default is the largest, beside another
    both = MemoryCompleter(MEMORY, rows, HIDDEN).compare()
    alone = MemoryCompleter(MEMORY, far[None], HIDDEN).compare()
    assert both.default_beta_R == [MAX_DEFAULT_BETA, *alone.default_beta_R]
    items = [both.make_item(row, HIDDEN) for row in rows]
    output = both.infer(both.pack(items), [DynamicsParams()] * 2)
    by_itself = alone.infer(alone.pack(items[1:]), [DynamicsParams()])
    torch.testing.assert_close(output.logits[1], by_itself.logits[0], rtol=1e-5, atol=1e-5)


def test_a_grey_image_is_compared_with_luma() -> None:
    grey = RNG.random((6, 5), np.float32)
    luma_KHW = STORED @ LUMA_C
    distance_K = np.square(luma_KHW - grey)[:, ~HIDDEN].sum(1)
    for params, beta in (({}, 8 / distance_K.min()), ({"beta": 2.0}, 2.0)):
        weight_K = np.exp(-beta / 2 * (distance_K - distance_K.min()))
        blend = np.tensordot(weight_K / weight_K.sum(), luma_KHW, 1)
        filled, _ = fill(grey[..., None], **params)
        np.testing.assert_allclose(filled[HIDDEN][:, 0], blend[HIDDEN], atol=1e-5)
        np.testing.assert_array_equal(filled[~HIDDEN][:, 0], grey[~HIDDEN])


def test_the_comparison_can_be_stopped() -> None:
    def stop() -> None:
        raise InterruptedError

    network = MemoryCompleter(MEMORY, STORED[:1], HIDDEN)
    with pytest.raises(InterruptedError):
        network.compare(stop)
    assert not network.is_compared
    assert network.compare().is_compared
