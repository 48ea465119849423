"""What networks have learned, as tiles."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from models.architectures.ait import AiT
from models.architectures.et import ET, ETImage
from models.inputs.patches import MaskedImage, unpatchify
from models.interpret.prototypes import list_galleries
from models.tasks.image_completer import ImageConfig


@pytest.fixture(scope="module")
def et():
    return ETImage.build_example(3)[0]


def test_a_memory_is_what_the_decoder_reads_of_it(et):
    found = list_galleries(et)["memories"]()
    assert found.tiles.shape == (2, 10, 2, 2, 3)
    assert found.axes == ("block", "memory")
    assert found.columns == 5
    energy = et.blocks_in_order()[1].energy
    xi_MD = next(p for name, p in energy.named_parameters() if name.endswith("memories_MD"))
    token_ND = torch.zeros(16, 12)
    token_ND[5] = xi_MD[7]
    batch = et.pack([MaskedImage(np.zeros((8, 8, 3), np.uint8), np.ones((4, 4), bool))])
    with torch.no_grad():
        pixels = et.codec.decode(token_ND, batch)[0, :, 2:4, 2:4].clamp(0, 1)
    np.testing.assert_allclose(found.tiles[1, 7], pixels.permute(1, 2, 0), atol=1e-6)


def test_rows_of_queries_and_keys(et):
    found = list_galleries(et)["attention"]()
    assert found.tiles.shape == (2, 2, 2, 4, 2, 2, 3)
    assert (len(found.axes), found.columns) == (4, 4)
    attention = et.blocks_in_order()[0].energy.energies[0]
    with torch.no_grad():
        patch = et.codec.decode_patches(attention.key_HYD[1, 2][None])
    expected = unpatchify(patch, 3, 2)[0].permute(1, 2, 0).clamp(0, 1)
    np.testing.assert_allclose(found.tiles[0, 1, 1, 2], expected, atol=1e-6)


def test_positions_are_like_themselves(et):
    found = list_galleries(et)["positions"]()
    assert found.tiles.shape == (4, 4, 4, 4, 1)
    assert found.columns == 4
    with torch.no_grad():
        similar = torch.cosine_similarity(et.codec.position_LD[1], et.codec.position_LD[5], 0)
    for row in range(4):
        for column in range(4):
            tile = found.tiles[row, column]
            assert tile[row, column, 0] == pytest.approx(1) == tile.max()
    assert found.tiles[0, 1, 1, 1, 0] == pytest.approx((1 + float(similar)) / 2, abs=1e-6)


def test_what_an_ablation_lacks_is_not_shown():
    def without(**parts):
        config = {"size": 8, "patch": 2, "dim": 12, "heads": 2, "head_dim": 4, **parts}
        return set(list_galleries(ETImage(ETImage.config_type.model_validate(config))))

    assert without() == {"memories", "attention", "positions"}
    assert without(hopfield=False) == {"attention", "positions"}
    assert without(attention=False) == {"memories", "positions"}
    assert issubclass(ETImage.config_type, ImageConfig)
    assert list_galleries(ET.build_example(0)[0]) == {}


def test_an_attractor_is_the_patch_whose_embedding_comes_nearest():
    network, _ = AiT.build_example(1)
    assert isinstance(network, AiT)
    found = list_galleries(network)["memories"]()
    assert found.tiles.shape == (2, 5, 2, 2, 2)
    assert (found.tiles.min((2, 3, 4)) == 0).all()
    assert found.tiles.max((2, 3, 4)) == pytest.approx(np.ones((2, 5)))
    # Where the workspace holds embeddings of patches, it shows these patches, up to their range.
    rng = np.random.default_rng(2)
    patches_MP = torch.from_numpy(rng.standard_normal((5, 8)))
    patches_MP -= patches_MP.mean(0)
    layer = network.layers[0]
    with torch.no_grad():
        layer.workspace.memory_MD.copy_(torch.eye(5, 8))
        layer.lift.weight.zero_()
        layer.lift.weight[:, :5] = (patches_MP.float() @ network.embed.weight.T).T
    shown = list_galleries(network)["memories"]().tiles[0].transpose(0, 3, 1, 2).reshape(5, 8)
    scaled = patches_MP.numpy() * network.std_C.numpy().repeat(4)
    low, high = scaled.min(1, keepdims=True), scaled.max(1, keepdims=True)
    np.testing.assert_allclose(shown, (scaled - low) / (high - low), atol=1e-4)
    assert list_galleries(network)["positions"]().tiles.shape == (2, 3, 2, 3, 1)
    assert "attention" not in list_galleries(network)
