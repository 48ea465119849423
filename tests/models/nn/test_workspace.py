"""The workspace and its energy against plain loops over the paper's equations."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from models.dynamics import Descent, RowParams, StopReason, solve
from models.energies import AssociativeMemory
from models.inputs.patches import patchify
from models.layouts import Dense, PatternLayout
from models.nn.transformer import MultiHeadAttention
from models.nn.workspace import Workspace, compute_balance_loss

ROWS, LENGTH, DIM, SLOTS = 3, 4, 6, 5


def _random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def _layout(own: bool) -> PatternLayout:
    return PatternLayout(_random(ROWS if own else 1, SLOTS, DIM, seed=1), ROWS, LENGTH)


def _workspace(share: float = 0.5, decay: float = 0.9, heads: int = 2) -> Workspace:
    torch.manual_seed(3)
    return Workspace(DIM, SLOTS, 8, heads, share, decay).double()


@pytest.mark.parametrize("own", [True, False])
@pytest.mark.parametrize("beta", [0.01, 1.0, 30.0])
def test_energy_and_force(own: bool, beta: float) -> None:
    """Eq. 7-8 token by token, and the force against autograd."""
    layout, x_ND = _layout(own), _random(ROWS * LENGTH, DIM).requires_grad_()
    beta_R1 = beta * torch.tensor([[1.0], [1.5], [0.5]], dtype=torch.float64)
    terms = AssociativeMemory()(x_ND, layout, beta_R1)
    for token in range(ROWS * LENGTH):
        row = token // LENGTH
        b, xi = float(beta_R1[row]), x_ND[token].detach()
        attractors = layout.patterns_PMD[row if own else 0]
        lse = math.log(sum(math.exp(b * float(a @ xi)) for a in attractors)) / b
        zeta = max(float(a.norm()) for a in attractors)
        energy = -lse + float(xi @ xi) / 2 + math.log(SLOTS) / b + zeta**2 / 2
        assert terms.token_energy_N[token].item() == pytest.approx(energy, abs=1e-9)
        assert energy >= 0
    (gradient,) = torch.autograd.grad(terms.token_energy_N.sum(), x_ND)
    assert (terms.force_ND + gradient).abs().max() < 1e-9


def test_a_step_of_one_is_the_retrieval_and_the_energy_falls() -> None:
    layout, x_ND = _layout(True), _random(ROWS * LENGTH, DIM)
    params = RowParams(
        steps_R=np.array([1, 6, 40]),
        beta_RH=torch.tensor([[0.5], [2.0], [8.0]], dtype=torch.float64),
        step_size_R=torch.ones(ROWS, dtype=torch.float64),
        tolerance_R=np.array([0, 0, 1e-6]),
        noise_R=torch.zeros(ROWS, dtype=torch.float64),
        nesterov_R=np.zeros(ROWS, bool),
        descent_R=np.zeros(ROWS, bool),
        seeds=(0, 0, 0),
    )
    energy, rest = AssociativeMemory(), torch.nn.Identity()
    solution = solve(energy, Descent(), rest, x_ND, layout, params)
    for token in range(LENGTH):  # of the first row, which takes one step
        p_M = torch.softmax(0.5 * layout.patterns_PMD[0] @ x_ND[token], 0)
        torch.testing.assert_close(solution.x_ND[token], p_M @ layout.patterns_PMD[0])
    assert solution.steps_R.tolist()[:2] == [1, 6]
    assert solution.stop_reasons[2] is StopReason.CONVERGED
    course = np.stack([moment.energy_R for moment in solution.trace])
    assert (np.diff(course, axis=0) <= 1e-12).all()


def test_the_energy_refuses_what_it_cannot_read() -> None:
    x_ND = _random(ROWS * LENGTH, DIM)
    with pytest.raises(ValueError, match="attractors"):
        AssociativeMemory()(x_ND, Dense(torch.ones(ROWS, LENGTH, LENGTH).bool()), torch.ones(3, 1))
    with pytest.raises(ValueError, match="one inverse temperature"):
        AssociativeMemory()(x_ND, _layout(True), torch.ones(3, 2))
    with pytest.raises(ValueError, match="for each row"):
        PatternLayout(_random(2, SLOTS, DIM), ROWS, LENGTH)


def test_stored_tokens_see_no_other() -> None:
    layout = _layout(False)
    q_NHY = _random(ROWS * LENGTH, 2, 3)
    seen = layout.attend(q_NHY, q_NHY, torch.ones(ROWS * LENGTH, 2, dtype=torch.float64))
    assert not any(part.any() for part in seen)


@pytest.mark.parametrize("share", [0.3, 1.0])
def test_writing_by_loops(share: float) -> None:
    """Eq. 3-4, slot by slot and patch by patch; the memory itself stays as it was."""
    workspace, x_PLE = _workspace(share), _random(2, 7, DIM)
    kept = workspace.memory_MD.clone()
    written = workspace(x_PLE).memory_PMD
    k = {0.3: 2, 1.0: 7}[share]
    assert workspace.bottleneck_size(7) == k
    for pool in range(2):
        heads = []
        for i in range(2):
            part = slice(4 * i, 4 * i + 4)
            query = (kept @ workspace.query.weight.T)[:, part]
            key = (x_PLE[pool] @ workspace.key.weight.T)[:, part]
            value = (x_PLE[pool] @ workspace.value.weight.T)[:, part]
            read = torch.zeros(SLOTS, 4, dtype=torch.float64)
            for j in range(SLOTS):
                score = torch.softmax(key @ query[j] / math.sqrt(4), 0)
                for patch in sorted(range(7), key=lambda p: -score[p])[:k]:
                    read[j] += score[patch] * value[patch]
            heads.append(read)
        new = workspace.norm(torch.cat(heads, 1) @ workspace.out.weight.T)
        mixed = 0.9 * kept + 0.1 * new
        expected = mixed / mixed.square().sum(0).sqrt()
        torch.testing.assert_close(written[pool], expected, rtol=1e-9, atol=1e-12)
    assert torch.equal(workspace.memory_MD, kept)


def test_what_is_kept() -> None:
    """The memory becomes gamma^(t+1); of several pools the mean, each feature of unit length."""
    workspace = _workspace()
    written = workspace(_random(1, 9, DIM)).memory_PMD
    workspace.store_memory(written)
    torch.testing.assert_close(workspace.memory_MD, written[0].detach(), rtol=1e-9, atol=1e-12)
    several = torch.tensor([[[3.0, 0.0], [0.0, 1.0]], [[1.0, 0.0], [4.0, 1.0]]]).double()
    small = Workspace(DIM, 2, 2, 1, 1.0, 0.9).double()
    small.store_memory(several)
    expected = torch.tensor([[2.0, 0.0], [2.0, 1.0]]).double()
    expected[:, 0] /= math.sqrt(8)
    torch.testing.assert_close(small.memory_MD, expected)


def test_gradients_pass_while_the_memory_is_written() -> None:
    """Through W^V and W^O too, which the released code cuts off; never into the memory."""
    workspace = _workspace()
    written = workspace(_random(1, 9, DIM))
    workspace.store_memory(written.memory_PMD)
    written.memory_PMD.square().sum(-1).log().sum().backward()
    assert all(p.grad is not None and p.grad.any() for p in workspace.parameters())
    assert not workspace.memory_MD.requires_grad


def test_balance_by_hand() -> None:
    """Eq. 5-6: two slots choose two of four patches each."""
    score = torch.tensor([[[[0.6, 0.2, 0.0, 0.0], [0.4, 0.0, 0.4, 0.0]]]])
    # importance 1, 0.2, 0.4, 0: mean 0.4, variance 0.14; loads 2, 1, 1, 0: mean 1, variance 0.5.
    assert compute_balance_loss(score).item() == pytest.approx(0.14 / 0.16 + 0.5)
    even = torch.full((1, 1, 2, 4), 0.25)
    assert compute_balance_loss(even).item() == pytest.approx(0, abs=1e-6)
    # Summed over heads, the mean over pools.
    both = torch.stack([torch.cat([score[0], score[0]]), torch.cat([even[0], score[0]])])
    assert compute_balance_loss(both).item() == pytest.approx(1.5 * (0.14 / 0.16 + 0.5))


def test_the_bottleneck_is_a_share_of_the_pool() -> None:
    workspace = _workspace(share=1 / 64)
    assert [workspace.bottleneck_size(pool) for pool in (1, 64, 512 * 64)] == [1, 1, 512]
    score = _workspace(share=0.5).compute_attention(_workspace().memory_MD, _random(1, 8, DIM))
    assert ((score > 0).sum(-1) == 4).all()


def test_patches_by_loops() -> None:
    pixels = _random(2, 3, 4, 6)
    cut = patchify(pixels, 2).unflatten(0, (2, -1))
    assert cut.shape == (2, 6, 12)
    for i in range(2):
        for j in range(3):
            square = pixels[:, :, 2 * i : 2 * i + 2, 2 * j : 2 * j + 2]
            assert torch.equal(cut[:, 3 * i + j], square.flatten(1))


def test_attention_by_loops() -> None:
    torch.manual_seed(0)
    layer = MultiHeadAttention(DIM, 2, 3, 0.0).double()
    x_RLD, context_RKD = _random(2, 4, DIM), _random(2, 5, DIM, seed=1)
    key, value = (context_RKD @ layer.key_value.weight.T).chunk(2, -1)
    query = x_RLD @ layer.query.weight.T
    for r in range(2):
        heads = []
        for part in (slice(0, 3), slice(3, 6)):
            p = torch.softmax(query[r][:, part] @ key[r][:, part].T / math.sqrt(3), -1)
            heads.append(p @ value[r][:, part])
        expected = layer.out(torch.cat(heads, -1))
        torch.testing.assert_close(layer(x_RLD, context_RKD)[r], expected)
