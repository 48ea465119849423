"""Every knob changes what it should and nothing else."""

from __future__ import annotations

import numpy as np
import pytest

from tests.service.endpoints.anomaly.test_bad_input import check

MODELS = {"et-small": 1, "cdat-small": 2}


@pytest.fixture(params=MODELS)
def relax(request, client, sample):
    one = sample(11, MODELS[request.param])

    def send(**dynamics):
        body = one.arrays(model=request.param, dynamics=dynamics, include=["trace"])
        response = client.post("/anomaly/score", json=body)
        assert response.status_code == 200, response.text
        return response.json()

    return send


def scores(answer):
    return [result["score"] for result in answer["results"]]


def changed(before, after):
    """Names of the dynamics that differ."""
    return {
        name for name in before["dynamics"] if before["dynamics"][name] != after["dynamics"][name]
    }


def energies(answer, block=0):
    return [e["energy"] for e in answer["convergence"]["trace"] if e["block"] == block]


def test_trained_knobs_are_resolved(relax, client):
    plain = relax()
    dynamics = plain["dynamics"]
    model = client.get(f"/models/{plain['model']['name']}").json()
    assert dynamics["steps"] == model["knobs"]["steps"] == 4
    assert dynamics["step_size"] == model["knobs"]["step_size"]
    assert dynamics["beta"] == model["knobs"]["beta"]
    assert (dynamics["beta_scale"], dynamics["tolerance"], dynamics["noise"]) == (1, 0, 0)
    assert plain["convergence"]["stop_reason"] == "step_limit"
    told = {name: dynamics[name] for name in ("steps", "step_size")} | {"beta_scale": 1}
    assert relax(**told)["results"] == plain["results"]


def test_steps(relax):
    plain, fewer, more = relax(), relax(steps=2), relax(steps=9)
    assert changed(plain, fewer) == changed(plain, more) == {"steps"}
    blocks = len(plain["dynamics"]["beta"])
    assert [a["convergence"]["steps"] / blocks for a in (fewer, plain, more)] == [2, 4, 9]
    assert energies(fewer) == energies(plain)[:3] == energies(more)[:3]
    assert scores(fewer) != scores(plain) != scores(more)
    none = relax(steps=0)
    assert (none["convergence"]["steps"], none["convergence"]["residual"]) == (0, None)
    assert none["convergence"]["energy_drop"] == 0


def test_beta(relax):
    plain, sharp = relax(), relax(beta=3.0)
    assert changed(plain, sharp) == {"beta", "beta_scale"}
    assert all(beta == 3 for heads in sharp["dynamics"]["beta"] for beta in heads)
    assert sharp["dynamics"]["beta_scale"] is None
    assert scores(sharp) != scores(plain)
    assert energies(sharp)[0] != energies(plain)[0]
    assert sharp["convergence"]["steps"] == plain["convergence"]["steps"]


@pytest.mark.parametrize("knob", ["beta", "beta_scale", "step_size"])
def test_what_single_precision_has_no_number_for_is_refused(relax, knob):
    for value in (5e-324, 1e-46, 1e-30):
        with pytest.raises(AssertionError, match="greater than or equal to"):
            relax(**{knob: value})
    least = relax(**{knob: 1e-12})
    assert np.isfinite(least["convergence"]["energy_final"])


def test_beta_scale(relax):
    plain, sharp = relax(), relax(beta_scale=2.0)
    assert changed(plain, sharp) == {"beta", "beta_scale"}
    trained = plain["dynamics"]["beta"]
    for heads, before in zip(sharp["dynamics"]["beta"], trained, strict=True):
        assert heads == pytest.approx([2 * beta for beta in before])
    # Fresh networks have one beta for all heads, so the absolute knob can say the same.
    assert scores(relax(beta=2 * trained[0][0])) == pytest.approx(scores(sharp), rel=1e-4, abs=1e-5)


def test_step_size(relax):
    plain, small = relax(), relax(step_size=0.01)
    assert changed(plain, small) == {"step_size"}
    assert energies(small)[0] == energies(plain)[0]
    assert scores(small) != scores(plain)
    assert small["convergence"]["steps"] == plain["convergence"]["steps"]
    drop = [a["convergence"]["energy_drop"] for a in (small, plain)]
    assert drop[0] != drop[1]


def test_tolerance(relax):
    blocks = len(relax()["dynamics"]["beta"])
    full = relax(steps=64)
    residual = full["convergence"]["residual"]
    early = relax(steps=64, tolerance=min(2 * residual, 1))
    assert changed(full, early) == {"tolerance"}
    assert early["convergence"]["stop_reason"] == "converged"
    assert early["convergence"]["steps"] < full["convergence"]["steps"] == 64 * blocks
    assert early["convergence"]["residual"] < 2 * residual
    taken = energies(early)
    assert energies(full)[: len(taken)] == taken
    assert relax(steps=64, tolerance=1e-300)["results"] == full["results"]


def test_solver(relax):
    plain, carried = relax(steps=64), relax(steps=64, solver="nesterov")
    assert changed(plain, carried) == {"solver"}
    # Momentum begins with the second move.
    assert energies(carried)[:2] == energies(plain)[:2]
    assert energies(carried)[2:] != energies(plain)[2:]
    assert scores(carried) != scores(plain)
    assert relax(steps=64, solver="euler")["results"] == plain["results"]
    assert relax(steps=1, solver="nesterov")["results"] == relax(steps=1)["results"]


def test_noise_and_seed(relax):
    plain, noisy = relax(), relax(noise=0.5, seed=7)
    assert changed(plain, noisy) == {"noise", "seed"}
    assert scores(noisy) != scores(plain)
    assert energies(noisy)[0] == energies(plain)[0]
    assert scores(relax(noise=0.5, seed=7)) == scores(noisy)
    assert scores(relax(noise=0.5, seed=8)) != scores(noisy)
    assert scores(relax(seed=8)) == scores(plain)  # no noise, no seed


@pytest.mark.parametrize(
    "dynamics",
    [
        {"steps": 1},
        {"beta_scale": 1.1},
        {"noise": 0.1},
        {"tolerance": 0.5},
        {"solver": "nesterov"},
        {"solver": "descent"},
        {"resonance": {}},
    ],
    ids=lambda dynamics: next(iter(dynamics)),
)
def test_other_dynamics_are_not_judged_by_energies_of_the_trained_ones(relax, dynamics):
    found = relax(**dynamics)["convergence"]
    assert found["energy_percentile"] is not None
    assert found["out_of_distribution"] is None


def test_dynamics_as_trained_are_judged_however_they_are_asked_for(relax):
    trained = relax()["dynamics"]
    same = {name: trained[name] for name in ("steps", "step_size")}
    for dynamics in ({}, same, {"seed": 7}):
        assert relax(**dynamics)["convergence"]["out_of_distribution"] in (True, False)


def test_the_answer_says_whether_the_energy_rose(relax):
    """Of V where the motion is controlled; whatever is included, for every step is looked at."""
    wild = {"step_size": 5.0, "steps": 64}
    nesterov, careful = {"solver": "nesterov", "steps": 64}, wild | {"solver": "descent"}
    for dynamics in ({}, {"step_size": 0.05}, nesterov, wild, careful):
        answer = relax(**dynamics)
        trace = answer["convergence"]["trace"]
        values = [entry.get("storage", entry["energy"]) for entry in trace]
        rose = [
            after - before > 1e-5 * abs(before)
            for entry, before, after in zip(trace[1:], values, values[1:], strict=False)
            if entry["step"]
        ]
        assert answer["convergence"]["energy_rose"] is any(rose)
        if answer["model"]["name"] == "et-small" or dynamics is careful:
            assert not any(rose)
        elif "step_size" in dynamics:
            assert any(rose) is (dynamics is wild)
    assert relax(noise=0.5)["convergence"]["energy_rose"] is None
    assert relax(steps=0)["convergence"]["energy_rose"] is None


def test_divergence_is_told(relax, client):
    wild = relax(step_size=100, steps=64)
    found = wild["convergence"]
    if wild["model"]["name"] == "cdat-small":  # its decay overshoots without bound
        assert found["stop_reason"] == "diverged"
        assert found["energy_rose"] is True
        assert found["steps"] < 64 * len(wild["dynamics"]["beta"])
    assert all(isinstance(score, float) for score in scores(wild))


@pytest.mark.parametrize(
    ("dynamics", "rule"),
    [
        ({"beta": 1, "beta_scale": 1}, "give beta or beta_scale, not both"),
        ({"noise": 0.1, "solver": "nesterov"}, "there is noise with solver euler alone"),
        ({"noise": 0.1, "solver": "descent"}, "there is noise with solver euler alone"),
    ],
)
def test_what_does_not_go_together_is_told_as_a_rule(client, sample, dynamics, rule):
    body = sample(11).arrays(dynamics=dynamics)
    problem = check(client.post("/anomaly/score", json=body), 422, "invalid-request", "conflict")
    assert problem.detail == rule
