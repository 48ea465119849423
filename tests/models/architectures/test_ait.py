"""AiT: pictures that are asked about together never hear of each other."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from models.architectures.ait import AiT, AiTConfig
from models.base import DynamicsParams
from models.inputs.images import ImageBatch, ImageInput
from models.inputs.questions import ANSWERS, COLORS, QUESTION_WIDTH, QUESTIONS, encode_question
from models.interpret.prototypes import list_galleries
from training.tasks.images.configs import ABLATIONS


def _example(**changed) -> tuple[AiT, list[ImageInput]]:
    network, pictures = AiT.build_example(0)
    assert isinstance(network, AiT)
    if not changed:
        return network.eval(), pictures
    torch.manual_seed(0)
    config = AiTConfig.model_validate(network.config.model_dump() | changed)
    return AiT(config).eval(), pictures


def _others(seed: int) -> list[ImageInput]:
    rng = np.random.default_rng(seed)
    return [
        ImageInput(
            rng.random((2, 4, 6)).astype(np.float32),
            (10 * rng.standard_normal(5)).astype(np.float32),
        )
        for _ in range(2)
    ]


@pytest.mark.parametrize("trained", [False, True])
def test_questions_apart_do_not_hear_of_each_other(trained: bool) -> None:
    """Several about one picture are answered as each alone; no patch knows of any."""
    network, (picture, *others) = _example(asked="apart", pool="picture")
    network.train(trained)
    state = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    questions = [p.question for p in (picture, *others)]
    alone = []
    for question in questions:
        network.load_state_dict(state)
        alone.append(network(network.pack([replace(picture, question=question)])))
    network.load_state_dict(state)
    asked_RKQ = torch.from_numpy(np.stack([questions, questions[::-1]]))
    pixels_RCHW = torch.from_numpy(np.stack([picture.pixels] * 2))
    tokens = network.config.num_patches + 3
    together = network(ImageBatch(pixels_RCHW, asked_RKQ, tokens))
    torch.testing.assert_close(together, torch.cat(alone + alone[::-1]))
    assert (alone[0] - alone[1]).abs().max() > 1e-4
    assert [layout.length for layout in network.build_layouts(network.pack([picture]))] == [7, 7]


def test_convolutions_before_the_patches() -> None:
    """They halve the sides, rounded up; in service they know of one picture alone."""
    network, pictures = _example(stem=(6, 5), patch=1)
    assert network.config.grid == (1, 2)
    assert network.config.num_tokens == 3
    network.train()
    for _ in range(3):
        network(network.pack(_others(1))).sum().backward()
    network.eval()
    whole = network.infer(network.pack(pictures), [DynamicsParams()] * 3).logits
    for row, picture in enumerate(pictures):
        alone = network.infer(network.pack([picture]), [DynamicsParams()]).logits[0]
        torch.testing.assert_close(whole[row], alone)
    assert list_galleries(network).keys() == {"positions"}, "no token is a patch of pixels"
    assert list_galleries(network)["positions"]().tiles.shape == (1, 2, 1, 2, 1)
    with pytest.raises(ValidationError, match="multiples of the patch"):
        _example(stem=(6,), patch=2)


def test_requests_of_one_batch_are_independent_bit_for_bit() -> None:
    network, pictures = _example()
    params = [
        DynamicsParams(steps=2, beta=3.0, noise=0.1, seed=4),
        DynamicsParams(),
        DynamicsParams(),
    ]
    first = network.infer(network.pack(pictures), params)
    for seed, other in enumerate(
        (DynamicsParams(), DynamicsParams(steps=9, beta=50.0), DynamicsParams(tolerance=1e3))
    ):
        batch = network.pack([pictures[0], *_others(seed)])
        again = network.infer(batch, [params[0], other, other])
        assert torch.equal(first.logits[0], again.logits[0])
        for one, two in zip(first.solutions, again.solutions, strict=True):
            tokens = network.config.num_tokens
            assert torch.equal(one.x_ND[:tokens], two.x_ND[:tokens])
            assert one.steps_R[0] == two.steps_R[0]
            for a, b in zip(one.trace[:3], two.trace[:3], strict=True):
                assert a.energy_R[0] == b.energy_R[0]


def test_requests_leave_nothing_behind() -> None:
    network, pictures = _example()
    state = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    ask = network.pack(pictures[:1])
    before = network.infer(ask, [DynamicsParams()]).logits
    network.infer(network.pack(_others(1)), [DynamicsParams(beta=30.0)] * 2)
    network(network.pack(_others(2)))
    assert torch.equal(network.infer(ask, [DynamicsParams()]).logits, before)
    assert all(torch.equal(state[name], t) for name, t in network.state_dict().items())


def test_in_training_the_batch_is_one_pool_and_the_memory_moves() -> None:
    network, pictures = _example()
    network.train()
    layer = network.layers[0]
    before = layer.workspace.memory_MD.clone()  # type: ignore[union-attr]
    together = network(network.pack(pictures))
    moved = layer.workspace.memory_MD.clone()  # type: ignore[union-attr]
    assert not torch.equal(before, moved)
    torch.testing.assert_close(moved.norm(dim=0), torch.ones(moved.shape[1]))
    assert network.balance.item() > 0
    assert network.balance.requires_grad
    network, pictures = _example()
    network.train()
    other = network(network.pack([pictures[0], *_others(1)]))
    assert not torch.allclose(together[0], other[0], rtol=1e-4)


def test_trained_with_pools_of_one_picture_is_trained_as_is_served() -> None:
    network, pictures = _example(pool="picture")
    batch = network.pack(pictures)
    served = network(batch)
    torch.testing.assert_close(network.train()(batch), served)


def test_without_writing_the_memory_is_read_as_it_is() -> None:
    network, pictures = _example(write=False)
    for layer, layout in zip(
        network.layers, network.build_layouts(network.pack(pictures)), strict=True
    ):
        expected = layer.lift(layer.workspace.memory_MD)  # type: ignore[operator, union-attr]
        assert torch.equal(layout.patterns_PMD[0], expected)  # type: ignore[attr-defined]


@pytest.mark.parametrize("ablation", ABLATIONS)
def test_ablations_learn_with_every_parameter_they_have(ablation: str) -> None:
    network, pictures = _example(**ABLATIONS[ablation], dropout=0.1)
    batch = network.train().pack(pictures)
    (network(batch).square().sum() + network.balance).backward()
    assert [n for n, p in network.named_parameters() if p.grad is None or not p.grad.any()] == []
    blocks = {"no-hopfield": 0, "no-memory": 0, "dense": 0}.get(ablation, 2)
    assert len(network.blocks_in_order()) == blocks
    output = network.eval().infer(batch, [DynamicsParams()] * 3)
    torch.testing.assert_close(output.logits, network(batch))
    assert len(output.solutions) == blocks


def test_the_question_and_the_picture_both_count() -> None:
    network, (one, other, _) = _example()
    logits = network(network.pack([one, replace(one, question=other.question), other]))
    assert not torch.allclose(logits[0], logits[1])
    assert not torch.allclose(logits[1], logits[2])


def test_what_the_network_cannot_see_is_refused() -> None:
    network, (picture, *_) = _example()
    network.check(picture)
    for wrong, why in (
        (replace(picture, pixels=picture.pixels[:1]), "of shape"),
        (replace(picture, pixels=picture.pixels * np.nan), "between 0 and 1"),
        (replace(picture, pixels=picture.pixels + 1), "between 0 and 1"),
        (replace(picture, question=None), "5 numbers"),
        (replace(picture, question=np.zeros(4)), "5 numbers"),
        (replace(picture, question=np.full(5, np.inf)), "finite"),
    ):
        with pytest.raises(ValueError, match=why):
            network.check(wrong)
    for changed in ({"patch": 3}, {"slot_heads": 3}, {"share": 0.0}, {"tasks": ()}):
        with pytest.raises(ValidationError):
            _example(**changed)


def test_channels_are_standardised_on_the_pictures_given() -> None:
    config = _example()[0].config
    pixels = np.random.default_rng(0).integers(0, 256, (9, 2, 4, 6)).astype(np.uint8)
    network = AiT.from_images(config, pixels, 0)
    unit = torch.from_numpy(pixels).double() / 255
    torch.testing.assert_close(network.mean_C.double(), unit.mean((0, 2, 3)))
    torch.testing.assert_close(network.std_C.double(), unit.std((0, 2, 3), correction=0))
    again = AiT.from_images(config, pixels.astype(np.float32) / 255, 0).state_dict()
    for name, tensor in network.state_dict().items():
        torch.testing.assert_close(tensor, again[name])


def test_questions() -> None:
    assert (len(ANSWERS), QUESTION_WIDTH) == (10, 18)
    question = encode_question("relational", "others of its shape", "green")
    assert np.flatnonzero(question).tolist() == [1, 13, 17]
    pair = encode_question("ternary", "objects between", "red", "grey")
    assert np.flatnonzero(pair).tolist() == [0, 10, 14, 15]
    every = [
        encode_question(k, asked, c)
        for k in list(QUESTIONS)[:2]
        for asked in QUESTIONS[k]
        for c in COLORS
    ]
    assert len({q.tobytes() for q in every}) == 36
    for wrong in (
        ("nonsense", "shape", "red"),
        ("relational", "shape", "red"),
        ("non-relational", "shape", "pink"),
        ("non-relational", "shape", "red", "blue"),
        ("ternary", "objects between", "red"),
        ("ternary", "objects between", "red", "red"),
    ):
        with pytest.raises(ValueError, match=r"question|colour"):
            encode_question(*wrong)
