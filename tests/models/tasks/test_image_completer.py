"""Images: patches and back, what MASK hides, descent, and what a network takes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from pydantic import ValidationError
from safetensors.numpy import load_file

from models.architectures.et import ETImage, ETImageConfig
from models.base import DynamicsParams
from models.checkpoint import load_checkpoint
from models.inputs.patches import (
    MaskedImage,
    PatchCodec,
    build_sincos_positions,
    composite,
    measure_hidden_shares,
    patch_mask_to_pixels,
    patchify,
    unpatchify,
)
from models.tasks.completer import CompletionNetwork
from models.tasks.image_completer import ImageCompleter
from tests.support.paths import REPO

SMALL = {"size": 12, "patch": 3, "dim": 16, "heads": 2, "head_dim": 8, "memories": 32}


def _pictures(
    count: int, size: int, patch: int, channels: int = 3, seed: int = 0
) -> list[MaskedImage]:
    rng = np.random.default_rng(seed)
    along = size // patch
    return [
        MaskedImage(
            rng.integers(0, 256, (size, size, channels), np.uint8), rng.random((along, along)) < 0.5
        )
        for _ in range(count)
    ]


def _network(seed: int = 0, **changed: Any) -> ImageCompleter:
    config = ETImageConfig.model_validate(SMALL | changed)
    pixels = np.stack([p.pixels for p in _pictures(8, config.size, config.patch, config.channels)])
    return ETImage.from_data(config, pixels, seed).eval()


@pytest.mark.parametrize(("size", "patch", "channels"), [(28, 4, 1), (32, 8, 3), (8, 8, 3)])
def test_cutting_and_pasting_is_identity(size: int, patch: int, channels: int) -> None:
    images = torch.randn(5, channels, size, size)
    patches = patchify(images, patch)
    assert patches.shape == (5 * (size // patch) ** 2, channels * patch**2)
    assert torch.equal(unpatchify(patches, channels, size), images)
    assert torch.equal(patches[0], images[0, :, :patch, :patch].flatten())
    if size > patch:  # the second patch is to the right of the first
        assert torch.equal(patches[1], images[0, :, :patch, patch : 2 * patch].flatten())


def test_places_are_alike_by_how_far_apart_they_are() -> None:
    """Whatever the place: the likeness of two is a function of the rows and columns between."""
    for along, dim in ((4, 16), (8, 128), (7, 30)):
        place_RCD = build_sincos_positions(along, dim).double().unflatten(0, (along, along))
        alike = torch.einsum("rcd,std->rcst", place_RCD, place_RCD)
        torch.testing.assert_close(alike[0, 0, 1, 2], alike[2, 1, 3, 3])
        torch.testing.assert_close(alike[0, 0, 3, 0], alike[0, 3, 3, 3])
        itself = alike[1, 1, 1, 1]
        assert itself.item() == pytest.approx(2 * (dim // 4))
        rest = alike[1, 1].clone()
        rest[1, 1] = -1
        assert rest.max() < 0.98 * itself  # and no two are the same
    assert build_sincos_positions(1, 3).tolist() == [[0, 0, 0]]


def test_masks_of_pixels_and_of_patches() -> None:
    mask = np.zeros((6, 6), bool)
    mask[1, 4] = mask[5, 0] = True
    assert (measure_hidden_shares(mask, 3) > 0).tolist() == [[False, True], [True, False]]
    occluded = np.random.default_rng(0).random((4, 5, 5)) < 0.5
    assert all((measure_hidden_shares(patch_mask_to_pixels(o, 3), 3) == o).all() for o in occluded)
    assert patch_mask_to_pixels(occluded, 3).shape == (4, 15, 15)


def test_known_pixels_come_back_byte_for_byte() -> None:
    pictures = _pictures(3, 12, 3)
    network = _network()
    pixels = network(network.pack(pictures))
    images = np.stack([picture.pixels for picture in pictures])
    mask = np.random.default_rng(1).random((3, 12, 12)) < 0.3
    out = composite(images, mask, pixels)
    assert out.dtype == np.uint8
    assert (out[~mask] == images[~mask]).all()
    drawn = (255 * pixels).round().clamp(0, 255).permute(0, 2, 3, 1).detach().numpy()
    assert (out[mask] == drawn[mask]).all()


def test_only_occluded_patches_are_masked() -> None:
    network = _network()
    codec, pictures = network.codec, _pictures(4, 12, 3)
    batch = network.pack(pictures)
    x = codec.encode(batch) - codec.position_LD.repeat(batch.rows, 1)
    hidden = torch.from_numpy(np.stack([p.occluded for p in pictures])).flatten()
    assert hidden.any()
    torch.testing.assert_close(x[hidden], codec.mask_D.expand(int(hidden.sum()), -1))
    mean, std = codec.get_training_scale()
    open_patches = codec.encoder((batch.patches_NP - mean) / std)
    torch.testing.assert_close(x[~hidden], open_patches[~hidden])


@pytest.mark.parametrize("contrast", [0.0, 2.0])
def test_what_is_occluded_has_no_part(contrast: float) -> None:
    """Other pixels under the mask change neither an output nor an energy, in any bit."""
    network, pictures = _network(contrast=contrast), _pictures(4, 12, 3)
    others = _pictures(4, 12, 3, seed=9)
    swapped = [
        replace(
            a, pixels=np.where(patch_mask_to_pixels(a.occluded, 3)[..., None], b.pixels, a.pixels)
        )
        for a, b in zip(pictures, others, strict=True)
    ]
    one, two = (network.infer(network.pack(p), [DynamicsParams()] * 4) for p in (pictures, swapped))
    assert torch.equal(one.logits, two.logits)
    for a, b in zip(one.solutions[0].trace, two.solutions[0].trace, strict=True):
        assert np.array_equal(a.energy_R, b.energy_R)
    known = replace(pictures[0], pixels=255 - pictures[0].pixels)
    changed = network.infer(network.pack([known]), [DynamicsParams()]).logits
    assert not torch.allclose(changed[0], one.logits[0], atol=1e-4)


@pytest.mark.parametrize("own", [False, True])
def test_it_is_algorithm_1(own: bool) -> None:
    """Image by image, the energies written out, their gradient by autograd, a step at a time."""
    network, pictures = _network(self_attention=own).double(), _pictures(3, 12, 3)
    codec, (block,) = network.codec, network.blocks_in_order()
    attention, hopfield = block.energy.energies  # type: ignore[misc, union-attr]
    beta = block.log_beta_H.exp().detach()
    assert beta.tolist() == pytest.approx([8**-0.5] * 2)  # set in single precision
    mean, std = (v.view(3, 1, 1) for v in (codec.mean_C, codec.std_C))
    expected = []
    for picture in pictures:
        y = (torch.from_numpy(picture.pixels).permute(2, 0, 1).float().div(255) - mean) / std
        cut = [
            y[:, i : i + 3, j : j + 3].flatten() for i in range(0, 12, 3) for j in range(0, 12, 3)
        ]
        hidden = picture.occluded.ravel()
        x = torch.stack(
            [
                (codec.mask_D if hide else codec.encoder(patch)) + position
                for patch, hide, position in zip(cut, hidden, codec.position_LD, strict=True)
            ]
        )
        for _ in range(12):
            g = block.norm(x).detach().requires_grad_()
            k = torch.einsum("hyd,bd->hyb", attention.key_HYD, g)
            q = torch.einsum("hyd,cd->hyc", attention.query_HYD, g)
            s = torch.einsum("h,hyb,hyc->hcb", beta, k, q)
            if not own:
                s = s.masked_fill(torch.eye(16, dtype=torch.bool), -torch.inf)
            energy = -(s.logsumexp(-1).sum(-1) / beta).sum()
            energy = energy - (g @ hopfield.memories_MD.T).relu().square().sum() / 2
            x = x - 0.1 * torch.autograd.grad(energy, g)[0]
        out = codec.decoder(codec.norm(x)).view(4, 4, 3, 3, 3)
        expected.append(mean + std * out.permute(2, 0, 3, 1, 4).reshape(3, 12, 12))
    assert (network(network.pack(pictures)) - torch.stack(expected)).abs().max() < 1e-9


@pytest.mark.parametrize("variant", [{}, {"self_attention": True}, {"hopfield": False}])
def test_energy_never_rises_in_small_steps(variant: dict[str, Any]) -> None:
    for seed in range(5):
        network = _network(seed, **variant).double()
        batch = network.pack(_pictures(6, 12, 3, seed=seed))
        (solution,) = network.infer(batch, [DynamicsParams(steps=60, step_size=0.01)] * 6).solutions
        energies = np.stack([moment.energy_R for moment in solution.trace])
        assert (np.diff(energies, axis=0) < 1e-12).all()
        assert (energies[0] - energies[-1] > 1e-3).all()


def test_who_sees_whom() -> None:
    batch = _network().pack(_pictures(2, 12, 3))
    for own, network in ((False, _network()), (True, _network(self_attention=True))):
        (layout,) = network.build_layouts(batch)
        mask = layout.mask_RLL  # type: ignore[attr-defined]
        assert (mask.diagonal(dim1=1, dim2=2) == own).all()
        assert mask.sum() == 2 * 16 * (16 if own else 15)


@pytest.mark.parametrize(
    "variant",
    [
        {"self_attention": True},
        {"attention": False},
        {"hopfield": False},
        {"blocks": 3},
        {"channels": 1, "patch": 12},  # a single patch, which sees nothing
    ],
    ids=str,
)
def test_the_force_of_every_variant_is_exact(variant: dict[str, Any]) -> None:
    network = _network(**variant).double()
    c = network.config
    batch = network.pack(_pictures(3, c.size, c.patch, c.channels))
    generator = torch.Generator().manual_seed(0)
    shape = (len(batch.row_of_N), c.dim)
    for block, layout in zip(network.blocks_in_order(), network.build_layouts(batch), strict=True):
        g = torch.randn(shape, generator=generator, dtype=torch.float64, requires_grad=True)
        terms = block.energy(g, layout, block.resolve_params([DynamicsParams()] * 3).beta_RH)
        (gradient,) = torch.autograd.grad(terms.token_energy_N.sum(), g)
        assert (terms.force_ND + gradient).abs().max() < 1e-9
    assert network.infer(batch, [DynamicsParams()] * 3).logits.isfinite().all()


def test_channels_are_standardised() -> None:
    images = np.stack([picture.pixels for picture in _pictures(9, 12, 3)]) // np.array([1, 2, 5])
    codec = PatchCodec(12, 3, 3, 8)
    codec.fit(images.astype(np.uint8))
    flat = images.reshape(-1, 3) / 255
    np.testing.assert_allclose(codec.mean_C.numpy(), flat.mean(0), atol=1e-6)
    np.testing.assert_allclose(codec.std_C.numpy(), flat.std(0), atol=1e-6)
    codec.fit(np.zeros((2, 12, 12, 3), np.uint8))  # of one colour: nothing to divide by
    assert (codec.std_C > 0).all()


def _even(deviation: float, seed: int = 0) -> MaskedImage:
    """A bright surface, but for noise that is seen and what cannot be."""
    rng = np.random.default_rng(seed)
    pixels = np.rint(200 + deviation * rng.standard_normal((12, 12, 3))).astype(np.uint8)
    occluded = rng.random((4, 4)) < 0.5
    return MaskedImage(np.where(patch_mask_to_pixels(occluded, 3)[..., None], 9, pixels), occluded)


@pytest.mark.parametrize("deviation", [12.0, 1.0])
def test_an_even_picture_is_standardised_by_itself(deviation: float) -> None:
    network, picture = _network(contrast=0.5), _even(deviation)
    batch = network.pack([picture])
    mean_NP, std_NP = network.codec.compute_scale(batch)
    known = picture.pixels[~patch_mask_to_pixels(picture.occluded, 3)].astype(np.float64) / 255
    mean, std = (v.double().numpy() for v in (network.codec.mean_C, network.codec.std_C))
    w = max((known.var(0) / std**2).mean() / 0.5**2, 1 / 256)
    assert (w == 1 / 256) == (deviation == 1)
    expected = known.mean(0) + w * (mean - known.mean(0))
    np.testing.assert_allclose(mean_NP.view(16, 3, 9), np.tile(expected[:, None], (16, 1, 9)), 1e-5)
    np.testing.assert_allclose(std_NP[:, ::9], np.tile(std * w**0.5, (16, 1)), 1e-4)


def test_an_even_picture_is_filled_evenly() -> None:
    """What an untrained network draws is off by a deviation; in a clear sky by a sixteenth."""
    picture = _even(1.0)
    hidden = torch.from_numpy(patch_mask_to_pixels(picture.occluded, 3))
    rough, smooth = (
        network(network.pack([picture]))[0, :, hidden].detach() - 200 / 255
        for network in (_network(), _network(contrast=0.5))
    )
    assert rough.square().mean().sqrt() > 0.1
    assert smooth.square().mean().sqrt() < 0.03


def test_other_pictures_are_standardised_by_the_training_images() -> None:
    network, plain = _network(contrast=0.3), _network()
    pictures = _pictures(4, 12, 3)
    nothing = replace(pictures[0], occluded=np.ones((4, 4), bool))
    one_shade = replace(pictures[0], pixels=np.full((12, 12, 3), 90, np.uint8))
    ordinary, shade = (
        [*pictures, nothing],
        network.infer(network.pack([one_shade]), [DynamicsParams()]),
    )
    alone, beside = (
        network.infer(network.pack(p), [DynamicsParams()] * len(p)).logits
        for p in (ordinary, [*ordinary, one_shade])
    )
    assert torch.equal(alone, plain.infer(plain.pack(ordinary), [DynamicsParams()] * 5).logits)
    torch.testing.assert_close(beside, torch.cat([alone, shade.logits]), atol=1e-5, rtol=0)
    assert (shade.logits - 90 / 255).abs().max() < 0.3


def test_what_does_not_fit_is_named() -> None:
    network, (picture,) = _network(), _pictures(1, 12, 3)
    network.check(picture)
    for changed, message in (
        ({"pixels": picture.pixels[..., :1]}, r"uint8 of shape \(12, 12, 3\)"),
        ({"pixels": picture.pixels / 255}, "uint8"),
        ({"occluded": picture.occluded[:1]}, r"bool of shape \(4, 4\)"),
        ({"occluded": picture.occluded.astype(int)}, "bool"),
    ):
        with pytest.raises(ValueError, match=message):
            network.check(replace(picture, **changed))
    with pytest.raises(ValidationError, match="patch must divide size"):
        ETImageConfig(size=32, patch=5)


def _cut_from_a_photo() -> list[np.ndarray]:
    photo = np.asarray(Image.open(REPO / "examples" / "photo.jpg").convert("RGB"))
    corners = np.random.default_rng(0).integers(0, np.array(photo.shape[:2]) - 64, (20, 2))
    return [np.ascontiguousarray(photo[y : y + 64, x : x + 64]) for y, x in corners]


def _threes() -> list[np.ndarray]:
    return list(load_file(REPO / "memories" / "mnist-3.safetensors")["items"][:40, ..., None])


@pytest.mark.parametrize(
    ("name", "pictures"), [("et-photos", _cut_from_a_photo), ("et-mnist", _threes)]
)
def test_the_energy_of_what_ships_falls_at_every_step(
    name: str, pictures: Callable[[], list[np.ndarray]]
) -> None:
    network, shown = load_checkpoint(REPO / "checkpoints" / name).network, np.stack(pictures())
    assert isinstance(network, CompletionNetwork)
    rng, size = np.random.default_rng(1), shown.shape[1]
    patches = [rng.random((size // 4, size // 4)) < rng.random() for _ in shown]
    hidden = np.stack([patch_mask_to_pixels(each, 4) for each in patches])
    batch = network.pack_windows(shown.astype(np.float32) / 255, hidden)
    output = network.infer(batch, [DynamicsParams()] * batch.rows)
    for solution in output.solutions:
        energy_TR = np.stack([moment.energy_R for moment in solution.trace])
        assert (np.diff(energy_TR, axis=0) < 0).all()
