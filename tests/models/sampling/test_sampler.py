"""The chains: what a step is, where it leads, and that nothing else can change it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from scipy import stats

from models.dynamics import Descent, RowParams, StopReason, solve
from models.energies import ModernHopfield
from models.layouts import Dense
from models.sampling import (
    Method,
    Schedule,
    draw_exact_samples,
    draw_samples,
    init_states,
    run_chains,
)
from models.sampling.langevin import KERNELS, MALAKernel, ULAKernel
from models.sampling.philox import _philox, fill_normal, fill_uniform


def memory(count: int, dim: int, seed: int = 0, dtype=torch.float64) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, dim, generator=generator, dtype=torch.float64)
    return torch.nn.functional.normalize(x, dim=1).to(dtype)


def test_philox_gives_the_published_answers() -> None:
    """Known answers of Random123 for philox4x32-10."""
    ones = 0xFFFFFFFF
    for counter, key, answer in (
        ((0, 0, 0, 0), (0, 0), "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
        ((ones,) * 4, (ones,) * 2, "408f276d 41c83b0e a20bc7c6 6d5451fd"),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            "d16cfe09 94fdcceb 5001e420 24126ea1",
        ),
    ):
        words = _philox(*map(np.uint32, counter), *map(np.uint32, key))
        assert " ".join(f"{int(word):08x}" for word in words) == answer


def test_noise_is_normal() -> None:
    out = np.empty((40, 30, 785), np.float32)  # 785: no multiple of four
    fill_normal(out, seed=7, stream=0, first_step=1, scale=0.5)
    z = out.astype(np.float64).ravel() / 0.5
    assert stats.kstest(z, "norm").pvalue > 1e-3
    assert abs(z.mean()) < 4 / len(z) ** 0.5
    assert abs((z**2).mean() - 1) < 4 * (2 / len(z)) ** 0.5
    assert abs((z**4).mean() - 3) < 4 * (96 / len(z)) ** 0.5
    flat = out.reshape(-1, 785)[:, :40] / 0.5
    correlation = np.corrcoef(flat.T) - np.eye(40)
    assert abs(correlation).max() < 5 / len(flat) ** 0.5
    lag = np.corrcoef(z[:-1], z[1:])[0, 1]
    assert abs(lag) < 5 / len(z) ** 0.5
    u = np.empty((200, 30))
    fill_uniform(u, seed=7, stream=0, first_step=1)
    assert stats.kstest(u.ravel(), "uniform").pvalue > 1e-3
    assert u.min() > 0
    assert u.max() < 1


def test_noise_depends_on_its_place_alone() -> None:
    whole, part = np.empty((6, 5, 9), np.float32), np.empty((2, 3, 9), np.float32)
    fill_normal(whole, seed=2**40 + 3, stream=1, first_step=10)
    fill_normal(part, seed=2**40 + 3, stream=1, first_step=13)
    assert np.array_equal(whole[3:5, :3], part)
    for seed, stream, first in ((3, 1, 13), (2**40 + 3, 0, 13), (2**40 + 3, 1, 15)):
        other = np.empty_like(part)
        fill_normal(other, seed, stream, first)
        assert not np.isin(other, part).any()


def test_a_step_is_equation_10() -> None:
    x, beta, alpha = memory(9, 12), 7.0, 0.2
    energy, at = ModernHopfield(x), memory(4, 12, seed=1)
    noise = 0.1 * memory(4, 12, seed=2)
    walk = ULAKernel(energy, at.clone(), beta, alpha)
    walk.step(noise, torch.zeros(4))
    expected = (1 - alpha) * at + alpha * torch.softmax(beta * at @ x.T, 1) @ x + noise
    torch.testing.assert_close(walk.x_CD, expected, rtol=1e-13, atol=1e-13)
    assert walk.noise_scale == pytest.approx((2 * alpha / beta) ** 0.5)


@pytest.mark.parametrize("known", [0, 3])
def test_without_noise_it_is_the_loop_that_relaxes_everything(known: int) -> None:
    """`solve` on the energy's own closed-form force, each chain a row of one token."""
    energy = ModernHopfield(memory(9, 12))
    if known:
        energy = energy.condition_on(torch.arange(12) < known, torch.full((known,), 0.2).double())
    at, steps = memory(4, 12 - known, seed=1), 25
    walk = ULAKernel(energy, at.clone(), 7.0, 0.2)
    for _ in range(steps):
        walk.step(torch.zeros_like(at), torch.zeros(4))
    one = torch.ones(4, dtype=torch.float64)
    params = RowParams(
        np.full(4, steps),
        7 * one[:, None],
        0.2 * one,
        np.zeros(4),
        0 * one,
        np.zeros(4, bool),
        np.zeros(4, bool),
        seeds=(0,) * 4,
    )
    layout = Dense(torch.ones(4, 1, 1, dtype=torch.bool))
    rest = solve(energy, Descent(), torch.nn.Identity(), at, layout, params)
    torch.testing.assert_close(walk.x_CD, rest.x_ND, rtol=1e-12, atol=1e-12)


def _ratio_of_equation_22(energy, x, y, beta, alpha) -> torch.Tensor:
    """Written out, with both Gaussians."""

    def mean(at):
        return at - alpha * (at - energy.weights(at, beta) @ energy.patterns_KD)

    def log_q(to, come):
        return -(to - mean(come)).pow(2).sum(1) * beta / (4 * alpha)

    target = -beta * (energy.value(y, beta) - energy.value(x, beta))
    return target + log_q(x, y) - log_q(y, x)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_the_acceptance_ratio_is_equation_22(dtype: torch.dtype) -> None:
    x, beta, alpha = memory(20, 784), 2000.0, 0.05
    at = x[:6] + 0.02 * memory(6, 784, seed=1)
    noise = memory(6, 784, seed=2) * (2 * alpha / beta * 784) ** 0.5
    walk = MALAKernel(ModernHopfield(x.to(dtype)), at.to(dtype, copy=True), beta, alpha)
    walk.step(noise.to(dtype), torch.full((6,), -torch.inf, dtype=dtype))  # takes every step
    exact = ModernHopfield(x)
    mean = (1 - alpha) * at + alpha * exact.weights(at, beta) @ x
    expected = _ratio_of_equation_22(exact, at, mean + noise, beta, alpha)
    # At beta = 2000 the terms of eq. 22 are near 1000: float32 would keep three digits of them.
    tolerance = 1e-9 if dtype == torch.float64 else 2e-3
    torch.testing.assert_close(walk.log_ratio_C.double(), expected, rtol=0, atol=tolerance)
    torch.testing.assert_close(walk.x_CD.double(), mean + noise, rtol=0, atol=1e-6)


def test_detailed_balance_on_a_grid() -> None:
    """pi_i q_ij a_ij = pi_j q_ji a_ji for every pair of a grid over two basins, and pi P = pi."""
    beta, alpha = 6.0, 0.3
    energy = ModernHopfield(torch.tensor([[1.0], [-0.7]], dtype=torch.float64))
    grid = torch.linspace(-2.5, 2.5, 81, dtype=torch.float64)[:, None]
    count = len(grid)
    come, to = grid.repeat_interleave(count, 0), grid.repeat(count, 1)
    drift = (1 - alpha) * come + alpha * energy.weights(come, beta) @ energy.patterns_KD
    walk = MALAKernel(energy, come.clone(), beta, alpha)
    walk.step(to - drift, torch.zeros(count**2, dtype=torch.float64))
    accept = walk.log_ratio_C.clamp(max=0).exp().reshape(count, count)
    propose = torch.exp(-((to - drift) ** 2) * beta / (4 * alpha)).reshape(count, count)
    pi = torch.exp(-beta * energy.value(grid, beta))
    flow = pi[:, None] * propose * accept
    assert flow.max() > 0.1
    torch.testing.assert_close(flow, flow.T, rtol=1e-10, atol=1e-14)
    assert (accept < 0.9).any()
    # Without the correction for the asymmetric proposal it does not hold.
    naive = torch.exp(-beta * energy.value(grid, beta))[None] / pi[:, None]
    flow = pi[:, None] * propose * naive.clamp(max=1)
    assert (flow - flow.T).abs().max() > 1e-3
    # The chain on the grid: moves with this flow, stays with what is left.
    moves = propose / propose.sum(1).max() * accept
    chain = moves + torch.diag(1 - moves.sum(1))
    torch.testing.assert_close(pi @ chain, pi, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(("method", "bias"), [("ula", True), ("mala", False)])
def test_one_pattern_is_a_gaussian(method: str, bias: bool) -> None:
    """exp(-beta E) = N(x, I / beta); ULA's stationary variance is 1 / (beta (1 - alpha / 2))."""
    x, beta, alpha, dim = memory(1, 4), 0.5, 0.6, 4
    schedule = Schedule(num_steps=1600, burn_in=100, thin=5, samples_per_chain=300)
    chains = run_chains(
        ModernHopfield(x), x.repeat(200, 1), beta, alpha, schedule, method=Method(method), seed=3
    )
    z = (chains.samples_PCD - x).reshape(-1, dim)
    expected = 1 / (beta * (1 - alpha / 2)) if bias else 1 / beta
    assert float(z.var()) == pytest.approx(expected, rel=0.015)
    assert float(z.mean()) == pytest.approx(0, abs=0.03)
    thin = z[::7].flatten().numpy() / expected**0.5
    assert stats.kstest(thin, "norm").pvalue > 1e-3
    wrong = thin * (1 if bias else (1 - alpha / 2) ** 0.5) * (expected * beta) ** 0.5
    assert stats.kstest(wrong, "norm").pvalue < 1e-3


SMALL = Schedule(num_steps=3000, burn_in=500, thin=50, samples_per_chain=50)


def _energies(method: Method, alpha: float, beta: float, seed: int) -> np.ndarray:
    """Of 64 chains on 8 patterns in 8 dimensions, nearly independent."""
    x = memory(8, 8)
    start = init_states(x, 64, seed).x_CD
    chains = run_chains(ModernHopfield(x), start, beta, alpha, SMALL, method=method, seed=seed)
    return chains.energy_TC.flatten().numpy()


def test_the_stationary_energies() -> None:
    """ULA and MALA against a MALA reference of other seed and step, and against exact draws."""
    beta = 4.0
    reference = _energies(Method.MALA, 0.2, beta, seed=11)
    energy = ModernHopfield(memory(8, 8))
    exact = energy.value(draw_exact_samples(energy, beta, 3200, seed=5), beta).numpy()
    assert stats.ks_2samp(reference, exact).pvalue > 1e-3
    for method, alpha in ((Method.ULA, 0.05), (Method.MALA, 0.3)):
        found = _energies(method, alpha, beta, seed=2)
        assert stats.ks_2samp(found, reference).pvalue > 1e-3
        assert stats.ks_2samp(found, exact).pvalue > 1e-3
    # The test can tell: ULA's bias at a large step, and a temperature off by a fifth.
    assert stats.ks_2samp(_energies(Method.ULA, 0.6, beta, 2), reference).pvalue < 1e-3
    warm = ModernHopfield(memory(8, 8)).value(draw_exact_samples(energy, 0.8 * beta, 3200, 5), beta)
    assert stats.ks_2samp(warm.numpy(), reference).pvalue < 1e-3


def test_mala_accepts_as_often_as_the_paper_says() -> None:
    """99.2 % at alpha = 0.01, d = 784, beta = 2000; 74.7 % at 0.1 (appendix K)."""
    x = memory(100, 784, dtype=torch.float32)
    schedule = Schedule(num_steps=400, burn_in=200, thin=100, samples_per_chain=1)
    start = init_states(x, 30, 0).x_CD
    warm = run_chains(ModernHopfield(x), start, 2000.0, 0.01, schedule, method=Method.MALA).final_CD
    for alpha, expected, slack in ((0.01, 0.992, 0.005), (0.1, 0.747, 0.03)):
        chains = run_chains(
            ModernHopfield(x), warm, 2000.0, alpha, schedule, method=Method.MALA, seed=1
        )
        assert chains.acceptance_rate_C is not None
        assert float(chains.acceptance_rate_C.mean()) == pytest.approx(expected, abs=slack)


@pytest.mark.parametrize("method", list(Method))
def test_same_seed_same_samples_whatever_else_runs(method: Method) -> None:
    x = memory(20, 30, dtype=torch.float32)
    start, schedule = init_states(x, 6, 4), Schedule(60, 20, 10, 2)

    def once(seed: int) -> torch.Tensor:
        return draw_samples(x, start, 50.0, 0.05, schedule, 12, method=method, seed=seed).samples_SD

    torch.manual_seed(1)
    alone = once(4)
    state = torch.random.get_rng_state()
    with ThreadPoolExecutor(4) as pool:
        among = list(pool.map(once, [1, 4, 2, 4, 3]))
    assert torch.equal(torch.random.get_rng_state(), state)
    assert torch.equal(alone, among[1])
    assert torch.equal(alone, among[3])
    assert not torch.equal(alone, among[0])


@pytest.mark.parametrize("method", list(Method))
def test_a_chain_does_not_know_its_neighbours(method: Method) -> None:
    """Fewer chains, other blocks of noise: the same paths."""
    x, schedule = memory(20, 3000), Schedule(80, 20, 10, 3)
    start = init_states(x, 9, 4).x_CD
    many = run_chains(ModernHopfield(x), start, 50.0, 0.05, schedule, method=method, seed=8)
    few = run_chains(ModernHopfield(x), start[:2], 50.0, 0.05, schedule, method=method, seed=8)
    torch.testing.assert_close(many.samples_PCD[:, :2], few.samples_PCD, rtol=1e-9, atol=1e-9)
    other = run_chains(
        ModernHopfield(x), start[:2], 50.0, 0.05, schedule, method=method, stream=1, seed=8
    )
    assert not torch.allclose(other.samples_PCD, few.samples_PCD, atol=1e-3)


@pytest.mark.parametrize("method", list(Method))
def test_float32_follows_float64(method: Method) -> None:
    x = memory(50, 784)
    start, schedule = init_states(x, 5, 0).x_CD, Schedule(200, 100, 50, 2)
    double = run_chains(ModernHopfield(x), start, 2000.0, 0.01, schedule, method=method, seed=1)
    single = run_chains(
        ModernHopfield(x.float()), start.float(), 2000.0, 0.01, schedule, method=method, seed=1
    )
    torch.testing.assert_close(single.samples_PCD.double(), double.samples_PCD, rtol=0, atol=1e-5)
    torch.testing.assert_close(single.energy_TC, double.energy_TC, rtol=0, atol=1e-5)


@pytest.mark.parametrize("method", list(Method))
def test_an_interrupt_stops_before_the_next_step(method: Method) -> None:
    x, asked = memory(5, 6), []

    def interrupt() -> StopReason | None:
        asked.append(1)
        return StopReason.CANCELLED if len(asked) > 7 else None

    chains = run_chains(
        ModernHopfield(x), x, 5.0, 0.1, Schedule(), method=method, interrupt=interrupt
    )
    assert (chains.num_steps, chains.stop_reason) == (7, StopReason.CANCELLED)
    assert len(asked) == 8
    assert len(chains.samples_PCD) == len(chains.energy_TC) == 0


def test_the_schedule_of_the_paper() -> None:
    schedule = Schedule()
    assert schedule.num_snapshots == 30
    assert schedule.sampled_steps_P().tolist() == [2100, 2800, 3600, 4300, 5000]
    recorded = schedule.recorded_steps_T()
    assert (recorded > 2000).sum() == 30
    assert set(schedule.sampled_steps_P()) <= set(recorded)
    odd = Schedule(num_steps=101, burn_in=7, thin=3, samples_per_chain=31)
    assert odd.sampled_steps_P().tolist() == list(range(10, 101, 3))
    assert set(odd.sampled_steps_P()) <= set(odd.recorded_steps_T())
    for bad in ((5, 5, 1, 1), (5, -1, 1, 1), (5, 0, 0, 1), (5, 0, 1, 6), (5, 0, 1, 0)):
        with pytest.raises(ValueError, match=r"schedule|steps"):
            Schedule(*bad)


def test_what_is_recorded_is_the_energy_of_the_state() -> None:
    x = memory(5, 6)
    schedule = Schedule(num_steps=40, burn_in=20, thin=10, samples_per_chain=2)
    axes = torch.eye(6, dtype=torch.float64)[:, :2]
    chains = run_chains(ModernHopfield(x), x, 5.0, 0.1, schedule, axes_DA=axes)
    for p, state in enumerate(chains.samples_PCD):
        torch.testing.assert_close(chains.energy_TC[p], ModernHopfield(x).value(state, 5.0))
        assert torch.equal(chains.projections_TCA[p], state[:, :2])
    assert torch.equal(chains.samples_PCD[-1], chains.final_CD)


def test_every_method_is_a_walk() -> None:
    assert set(KERNELS) == set(Method)
