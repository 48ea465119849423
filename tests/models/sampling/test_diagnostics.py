"""Temperatures, measures, the null model, heads, conditions, agreement of chains."""

from __future__ import annotations

from math import log, sqrt

import numpy as np
import pytest
import torch
from scipy import stats

from models.dynamics import StopReason
from models.energies import ModernHopfield
from models.memories.memory import ClampedCoordinates
from models.sampling import (
    Method,
    NoInflectionError,
    Regularity,
    RunInterruptedError,
    Schedule,
    SubspaceHeads,
    compute_entropy_derivatives,
    compute_metrics,
    compute_mixture_weights,
    compute_similarities,
    draw_exact_samples,
    draw_null_samples,
    draw_samples,
    find_beta_star,
    find_beta_star_log,
    init_states,
    null_energy,
    null_novelty,
    run_chains,
    snr,
)
from models.sampling.temperature import truncated_svd
from tests.models.sampling.test_sampler import memory


def test_slopes_are_derivatives() -> None:
    """Against float64 autograd of the entropy, in beta and in ln beta."""
    s = compute_similarities(memory(12, 9))
    for b in (0.3, 4.0, 40.0):
        for position, of in (((1, 2), lambda v: v), ((None, 3), torch.exp)):
            start = torch.tensor(b if of is not torch.exp else log(b), dtype=torch.float64)
            v = start.requires_grad_()
            p = torch.softmax(of(v) * torch.from_numpy(s), 1)
            entropy = -(p * p.clamp(min=1e-300).log()).sum(1).mean()
            (first,) = torch.autograd.grad(entropy, v, create_graph=True)
            (second,) = torch.autograd.grad(first, v)
            found = compute_entropy_derivatives(s, b)
            assert found.entropy[0] == pytest.approx(float(entropy.detach()), rel=1e-10)
            if position[0] is not None:
                assert found[position[0]][0] == pytest.approx(float(first.detach()), rel=1e-8)
            assert found[position[1]][0] == pytest.approx(float(second), rel=1e-7)


def test_entropy_at_the_ends() -> None:
    found = compute_entropy_derivatives(compute_similarities(memory(12, 9)), [1e-9, 1e9])
    assert found.entropy[0] == pytest.approx(log(12))
    assert found.entropy[1] == pytest.approx(0, abs=1e-9)


def test_beta_star_is_the_inflection() -> None:
    s = compute_similarities(memory(30, 64))
    star = find_beta_star(s)
    below, at, above = compute_entropy_derivatives(s, [0.999 * star, star, 1.001 * star]).curvature
    assert below < 0 < above
    assert abs(at) < 1e-3 * abs(below)
    fine = np.linspace(0.2 * star, 5 * star, 4001)
    assert fine[compute_entropy_derivatives(s, fine).slope.argmin()] == pytest.approx(
        star, rel=2e-3
    )


def test_beta_star_of_random_patterns_goes_as_the_square_root_of_the_dimension() -> None:
    """Eq. 13, which fixes the power and not the constant."""
    small, large = (
        find_beta_star(compute_similarities(memory(400, dim), memory(20, dim, seed=9)))
        for dim in (64, 576)
    )
    assert large / small == pytest.approx(3, rel=0.1)


def test_the_rule_of_the_code_is_another() -> None:
    s = compute_similarities(memory(30, 64))
    grid = np.geomspace(0.1, 500, 50)
    assert find_beta_star_log(s) in grid
    assert find_beta_star_log(s) < find_beta_star(s)
    fine = np.geomspace(0.1, 500, 5000)
    least = fine[compute_entropy_derivatives(s, fine).log_curvature.argmin()]
    assert abs(log(find_beta_star_log(s) / least)) < log(grid[1] / grid[0])


@pytest.mark.parametrize("patterns", [memory(1, 4), memory(1, 4).repeat(3, 1)])
def test_no_inflection(patterns: torch.Tensor) -> None:
    with pytest.raises(NoInflectionError):
        find_beta_star(compute_similarities(patterns))


def test_snr_of_the_paper() -> None:
    for beta, expected in ((2000, 0.113), (200, 0.036), (50, 0.018), (10, 0.008)):
        assert snr(0.01, beta, 784) == pytest.approx(expected, abs=5e-4)
    assert snr(0.01, sqrt(64), 64) == pytest.approx(0.025)  # eq. 14


def test_regularity_bounds_the_hessian() -> None:
    """Proposition 1: -1 <= .. the Hessian's eigenvalues lie within what it promises."""
    x = memory(6, 5)
    edge = Regularity.from_patterns(x, 1.0).convex_below
    sigma = float(torch.linalg.matrix_norm(x, 2))
    assert edge == pytest.approx(2 / sigma**2)
    for beta in (0.5 * edge, 0.99 * edge, 20 * edge):
        bound = Regularity.from_patterns(x, beta)
        for at in memory(30, 5, seed=2) * 0.7:

            def value(v: torch.Tensor, beta: float = beta) -> torch.Tensor:
                return ModernHopfield(x).value(v[None], beta)[0]

            eigenvalues = torch.linalg.eigvalsh(torch.autograd.functional.hessian(value, at))
            assert eigenvalues.abs().max() <= bound.lipschitz + 1e-9
            if beta < edge:
                assert eigenvalues.min() >= 1 - beta * sigma**2 / 2 - 1e-9
    # Beyond the edge it need not be convex: two opposite patterns, halfway between them.
    two = torch.tensor([[1.0, 0.0], [-1.0, 0.0]], dtype=torch.float64)
    beta = 1.5 * Regularity.from_patterns(two, 1.0).convex_below
    middle = torch.autograd.functional.hessian(
        lambda v: ModernHopfield(two).value(v[None], beta)[0], torch.zeros(2).double()
    )
    assert torch.linalg.eigvalsh(middle).min() < 0


def test_measures_written_out() -> None:
    x, samples, beta = memory(7, 5), memory(4, 5, seed=1) * 1.7, 3.0
    found = compute_metrics(samples.float(), x.float(), beta)
    cosine = torch.nn.functional.cosine_similarity
    nearest = [max(float(cosine(s, p, dim=0)) for p in x) for s in samples]
    pairs = [1 - float(cosine(samples[i], samples[j], dim=0)) for i in range(4) for j in range(i)]
    assert found.max_cosine == pytest.approx(np.mean(nearest), abs=1e-6)
    assert found.novelty == pytest.approx(1 - np.mean(nearest), abs=1e-6)
    assert found.diversity == pytest.approx(np.mean(pairs), abs=1e-6)
    energies = [-float(torch.logsumexp(beta * x @ s, 0)) / beta + float(s @ s) / 2 for s in samples]
    assert found.energy == pytest.approx(np.mean(energies), abs=1e-6)
    p = torch.softmax(beta * samples @ x.T, 1)
    assert found.entropy == pytest.approx(float(-(p * p.log()).sum(1).mean()), abs=1e-6)
    assert compute_metrics(samples[:1], x, beta).diversity == 0


def test_the_closed_forms_of_the_null() -> None:
    """Memory far apart, as random patterns in many dimensions are."""
    x, beta = memory(50, 784), 2000.0
    found = compute_metrics(draw_null_samples(x, beta, 400, 1), x, beta)
    assert found.novelty == pytest.approx(null_novelty(beta, 784), abs=0.003)
    assert found.energy == pytest.approx(null_energy(beta, 784), abs=0.006)


def test_the_null_is_what_the_chains_sample() -> None:
    """For patterns of unit length exp(-beta E) is the mixture: chains that mix cannot differ."""
    x, beta = memory(6, 10), 3.0
    drawn = draw_samples(
        x, init_states(x, 200, 0), beta, 0.1, Schedule(1500, 300, 60, 20), 4000, method=Method.MALA
    )
    energy = ModernHopfield(x)
    null = energy.value(draw_null_samples(x, beta, 4000, 1), beta).numpy()
    assert stats.ks_2samp(energy.value(drawn.samples_SD, beta).numpy(), null).pvalue > 1e-3
    assert drawn.metrics.novelty == pytest.approx(drawn.null_metrics.novelty, abs=0.01)
    # Patterns of other lengths have other weights, which the exact mixture knows.
    longer = ModernHopfield(x * torch.linspace(0.6, 1.4, 6).double()[:, None])
    exact = draw_exact_samples(longer, beta, 4000, 2)
    chains = run_chains(
        longer, x.repeat(60, 1), beta, 0.1, Schedule(1500, 500, 100, 10), seed=1, method=Method.MALA
    )
    found = longer.value(chains.samples_PCD.flatten(0, 1), beta).numpy()
    assert stats.ks_2samp(found, longer.value(exact, beta).numpy()).pvalue > 1e-3
    flat = longer.value(draw_null_samples(longer.patterns_KD, beta, 4000, 2), beta).numpy()
    assert stats.ks_2samp(found, flat).pvalue < 1e-3


def test_known_coordinates_stay_and_the_others_follow() -> None:
    """The conditional of a mixture of Gaussians, in closed form."""
    x, beta = memory(5, 6), 4.0
    mask, values = np.array([True, True, False, False, False, False]), np.array([0.5, -0.3])
    known = ClampedCoordinates(mask, values, 1.0)
    drawn = draw_samples(
        x,
        init_states(x, 300, 0),
        beta,
        0.15,
        Schedule(1200, 300, 60, 15),
        4500,
        method=Method.MALA,
        clamped=known,
        seed=3,
    )
    assert (drawn.samples_SD[:, :2] == torch.from_numpy(values)).all()
    # p(k | known) from N(known; x_k, I / beta), for patterns of equal length.
    given = torch.from_numpy(values)
    w_K = torch.softmax(-beta / 2 * (x[:, :2] - given).pow(2).sum(1), 0)
    expected = w_K @ x[:, 2:]
    assert (drawn.samples_SD[:, 2:].mean(0) - expected).abs().max() < 0.03
    assert (x[:, 2:].mean(0) - expected).abs().max() > 0.09  # where nothing is known
    spread = (w_K @ x[:, 2:].pow(2)) - expected**2 + 1 / beta
    torch.testing.assert_close(drawn.samples_SD[:, 2:].var(0), spread, rtol=0.08, atol=0)
    assert drawn.null_metrics.energy == pytest.approx(drawn.metrics.energy, abs=0.03)


def test_heads_divide_the_memory() -> None:
    x = memory(12, 40)
    heads = SubspaceHeads.from_patterns(x, 3)
    assert [b.shape[1] for b in heads.bases_Dd] == [4, 4, 3]  # eleven axes of twelve patterns
    assert sum(heads.shares) == pytest.approx(1)
    assert heads.shares[0] > heads.shares[1] > heads.shares[2]
    torch.testing.assert_close(heads.join(heads.split(x)), x)
    basis = torch.cat(heads.bases_Dd, 1)
    torch.testing.assert_close(basis.T @ basis, torch.eye(11).double())
    with pytest.raises(ValueError, match="11 axes"):
        SubspaceHeads.from_patterns(x, 12)
    with pytest.raises(ValueError, match="0 axes"):
        SubspaceHeads.from_patterns(x[:1], 1)


def test_heads_sample_in_their_own_subspaces() -> None:
    """One run per head, with noise of its own, put together."""
    x, schedule = memory(12, 40), Schedule(60, 20, 20, 2)
    start, heads = init_states(x, 5, 0), SubspaceHeads.from_patterns(x, 3)
    drawn = draw_samples(x, start, 50.0, 0.1, schedule, 10, heads=3, seed=6)
    parts = [
        run_chains(
            ModernHopfield(m), at, 50.0, 0.1, schedule, seed=6, stream=h
        ).samples_PCD.flatten(0, 1)
        for h, (m, at) in enumerate(zip(heads.split(x), heads.split(start.x_CD), strict=True))
    ]
    torch.testing.assert_close(drawn.samples_SD, heads.join(parts))
    assert drawn.num_steps == 180


def test_agreement_tells_stuck_chains_from_mixed_ones() -> None:
    x = memory(8, 8)
    schedule = Schedule(3000, 500, 25, 1)
    mixed = draw_samples(x, init_states(x, 8, 0), 1.0, 0.2, schedule, 8).diagnostics
    stuck = draw_samples(x, init_states(x, 8, 0), 500.0, 0.01, schedule, 8).diagnostics
    for found in (mixed, stuck):
        assert found.r_hat_energy == pytest.approx(1, abs=0.1)
    assert mixed.r_hat_state == pytest.approx(1, abs=0.1)
    assert stuck.r_hat_state is not None
    assert stuck.r_hat_state > 2
    assert mixed.ess_energy is not None
    assert 100 < mixed.ess_energy <= 2000
    short = draw_samples(x, init_states(x, 8, 0), 1.0, 0.2, Schedule(5, 3, 1, 1), 8).diagnostics
    assert short.r_hat_energy is None


def test_chains_that_never_move_have_no_agreement() -> None:
    x = memory(10, 784)
    frozen = draw_samples(
        x, init_states(x, 4, 0), 2000.0, 1.0, Schedule(40, 20, 2, 1), 4, method=Method.MALA
    )
    assert frozen.acceptance_rate_C is not None
    assert frozen.acceptance_rate_C.max() == 0
    assert frozen.diagnostics.ess_energy is None or frozen.diagnostics.r_hat_state is None


def test_starts_are_distinct_while_patterns_last() -> None:
    x = memory(6, 300)
    start = init_states(x, 15, 3)
    assert start.patterns_C is not None
    assert sorted(start.patterns_C[:6]) == sorted(start.patterns_C[6:12]) == list(range(6))
    off = start.x_CD - x[start.patterns_C]
    assert float(off.std()) == pytest.approx(0.01, rel=0.05)
    assert not torch.equal(init_states(x, 15, 4).x_CD, start.x_CD)


def test_starts_given_a_part_are_where_it_fits() -> None:
    x = memory(6, 30)
    known = ClampedCoordinates(np.arange(30) < 15, x[4, :15].numpy(), 1.0)
    cold, warm = (init_states(x, 400, 0, known, beta).patterns_C for beta in (300.0, 1.0))
    assert cold is not None
    assert warm is not None
    assert (cold == 4).all()
    energy = ModernHopfield(x).condition_on(torch.arange(30) < 15, x[4, :15])
    shares = np.bincount(warm, minlength=6) / 400
    np.testing.assert_allclose(shares, compute_mixture_weights(energy, 1.0), atol=0.08)


def test_what_draw_refuses() -> None:
    x = memory(6, 5)
    with pytest.raises(ValueError, match="fewer states"):
        draw_samples(x, init_states(x, 2, 0), 1.0, 0.1, Schedule(30, 10, 10, 2), 5)
    known = ClampedCoordinates(np.array([True, *[False] * 4]), np.zeros(1), 1.0)
    with pytest.raises(ValueError, match="heads"):
        draw_samples(
            x, init_states(x, 2, 0), 1.0, 0.1, Schedule(30, 10, 10, 2), 4, heads=2, clamped=known
        )
    with pytest.raises(RunInterruptedError):
        draw_samples(
            x,
            init_states(x, 2, 0),
            1.0,
            0.1,
            Schedule(30, 10, 10, 2),
            4,
            interrupt=lambda: StopReason.DEADLINE,
        )


@pytest.mark.parametrize("rows", [[100, 100], [300, 300], [300, 900]])
def test_axes_of_memories_whose_spectrum_is_flat_or_nothing(rows: list[int]) -> None:
    for x in (torch.eye(*rows), torch.zeros(*rows)):
        s, axes_DA = truncated_svd(x, 10)
        again, _ = truncated_svd(x, 10)
        np.testing.assert_array_equal(s, again)
        np.testing.assert_allclose(s, float(x[0, 0]), atol=1e-9)
        if s[0]:
            np.testing.assert_allclose(axes_DA.T @ axes_DA, np.eye(10), atol=1e-9)


def test_leading_axes_of_a_large_memory() -> None:
    x = torch.from_numpy(np.random.default_rng(0).standard_normal((400, 500)))
    x[:, :10] *= 10
    s, axes_DA = truncated_svd(x, 10)
    _, exact, vt = np.linalg.svd(x.numpy(), full_matrices=False)
    np.testing.assert_allclose(s, exact[:10], rtol=1e-9)
    np.testing.assert_allclose(np.abs((vt[:10] * axes_DA.T).sum(1)), 1, rtol=1e-9)


def test_the_search_for_beta_star_can_be_ended() -> None:
    class EndError(Exception):
        pass

    def watch() -> None:
        raise EndError

    for rule in (find_beta_star, find_beta_star_log):
        with pytest.raises(EndError):
            rule(compute_similarities(memory(12, 9)), watch)


def test_cold_mala_chains_are_not_rejected_by_rounding() -> None:
    x = memory(20, 784).float()
    start = init_states(x, 4, 0)
    drawn = draw_samples(x, start, 1e6, 0.01, Schedule(200, 100, 10, 5), 20, method=Method.MALA)
    assert drawn.acceptance_rate_C is not None
    assert drawn.acceptance_rate_C.mean() > 0.97  # 0.92 in float32
    assert drawn.samples_SD.dtype == torch.float32
