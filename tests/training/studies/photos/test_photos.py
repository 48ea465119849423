"""Windows of photographs: masks, prefill, the energy and its peer, and a short training."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch.nn import functional as F
from typer.testing import CliRunner

from training.__main__ import app
from training.datasets.sources import data_folder
from training.studies.photos import network
from training.studies.photos.data import ARCHIVE, split_photos
from training.studies.photos.masks import draw_masks
from training.studies.photos.network import Core, EnergyBlock, WindowCompleter
from training.studies.photos.prefill import prefill_windows

WEIGHTS = Path(network.__file__).parent / "weights"
with_photos = pytest.mark.skipif(
    not (data_folder() / ARCHIVE).exists(), reason="BSDS500 is not here"
)


def solve_dense(image_SS: np.ndarray, mask_SS: np.ndarray) -> np.ndarray:
    """Laplace's equation by a dense solve, pixel by pixel."""
    size, filled = len(image_SS), image_SS.copy()
    places = {(int(y), int(x)): i for i, (y, x) in enumerate(np.argwhere(mask_SS))}
    a, b = np.zeros((len(places), len(places))), np.zeros(len(places))
    for (y, x), i in places.items():
        for beside in ((y + 1, x), (y - 1, x), (y, x + 1), (y, x - 1)):
            if not (0 <= beside[0] < size and 0 <= beside[1] < size):
                continue
            a[i, i] += 1
            if beside in places:
                a[i, places[beside]] -= 1
            else:
                b[i] += image_SS[beside]
    filled[mask_SS] = np.linalg.solve(a, b)
    return filled


def test_prefill_is_the_dense_solution() -> None:
    rng = np.random.default_rng(0)
    images, masks = rng.random((4, 32, 32)), draw_masks(4, 32, 0)[0]
    both = torch.from_numpy(images)[:, None], torch.from_numpy(masks)[:, None].double()
    filled = prefill_windows(*both, iterations=300)[:, 0].numpy()
    for image, mask, found in zip(images, masks, filled, strict=True):
        np.testing.assert_allclose(found, solve_dense(image, mask), atol=1e-9)
    quickly = prefill_windows(*both)[:, 0].numpy()
    assert np.abs(quickly - filled).mean() < 1e-4


def test_prefill_of_what_nothing_is_known_of() -> None:
    filled = prefill_windows(torch.rand(1, 3, 16, 16), torch.ones(1, 1, 16, 16))
    assert torch.equal(filled, torch.full_like(filled, 0.5))


def test_masks_come_of_their_seed() -> None:
    one, kinds = draw_masks(30, 80, 1)
    assert np.array_equal(one, draw_masks(30, 80, 1)[0])
    assert not np.array_equal(one, draw_masks(30, 80, 2)[0])
    assert len(set(kinds.tolist())) > 3
    inside = one[:, 8:-8, 8:-8].mean((1, 2))
    assert inside.min() > 0.015
    assert inside.max() < 0.55


def test_force_is_the_gradient() -> None:
    torch.manual_seed(0)
    block = EnergyBlock(12, 2, 6, 8, 4, 2).double()
    torch.nn.init.normal_(block.bias_HP)
    g_RLD = torch.randn(3, 16, 12, dtype=torch.double, requires_grad=True)
    energy_R, force = block.compute_energy_and_force(g_RLD)
    gradient = torch.autograd.grad(energy_R.sum(), g_RLD)[0]
    torch.testing.assert_close(force, -gradient, atol=1e-9, rtol=0)


@pytest.mark.parametrize("core", ["et", "vit", "none"])
def test_before_training_the_answer_is_the_prefill(core: Core) -> None:
    completer = WindowCompleter(core, size=16, dim=24, heads=2, memories=24, blocks=1)
    mask = torch.from_numpy(draw_masks(2, 32, 0)[0])[:, None, 8:-8, 8:-8].float()
    residual, log_error = completer(torch.rand(2, 3, 16, 16), mask)
    assert residual.abs().max() == 0
    assert log_error.shape == (2, 1, 16, 16)


@pytest.mark.parametrize("core", ["et", "vit"])
def test_trained_weights_load(core: Core) -> None:
    WindowCompleter(core).load_state_dict(load_file(WEIGHTS / f"{core}.safetensors"))


def test_energy_falls_in_every_trained_block() -> None:
    completer = WindowCompleter().double()
    completer.load_state_dict(load_file(WEIGHTS / "et.safetensors"))
    rng = np.random.default_rng(0)
    smooth = F.interpolate(torch.from_numpy(rng.random((4, 3, 8, 8))), scale_factor=8)
    mask = torch.from_numpy(draw_masks(4, 64, 0)[0])[:, None].double()
    energies: list[torch.Tensor] = []

    def watch(block: torch.nn.Module, inputs: tuple[torch.Tensor], output: torch.Tensor) -> None:
        assert isinstance(block, EnergyBlock)
        x_RLD = inputs[0]
        for _ in range(block.steps + 1):
            energy_R, force = block.compute_energy_and_force(block.norm(x_RLD))
            energies.append(energy_R)
            x_RLD = x_RLD + block.log_step.exp() * force
        steps = torch.stack(energies[-block.steps - 1 :]).diff(dim=0)
        assert (steps < 0).all()

    for block in completer.blocks:
        block.register_forward_hook(watch)
    with torch.no_grad():
        completer(prefill_windows(smooth, mask), mask)
    assert len(energies) == 9


@with_photos
def test_photographs_are_set_apart() -> None:
    split = split_photos(data_folder() / ARCHIVE)
    assert [len(part) for part in split] == [220, 20, 60]
    assert len({*split.train, *split.val, *split.test}) == 300
    assert split.test[:3] == ["val/54082.jpg", "val/219090.jpg", "val/291000.jpg"]


@with_photos
@pytest.mark.parametrize("core", ["et", "vit", "none"])
def test_a_short_training(core: str, tmp_path: Path) -> None:
    arguments = ["photo-windows", "--core", core, "--smoke", "--out", str(tmp_path)]
    ran = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert ran.exit_code == 0
    assert (tmp_path / f"{core}.safetensors").exists()
    assert (tmp_path / f"{core}.jsonl").read_text().count('"doubt"') == 1
