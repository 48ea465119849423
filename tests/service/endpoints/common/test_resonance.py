"""Resonance over HTTP: on every route that has attention, and as if absent without strength."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from models import checkpoint
from models.architectures.ait import AiTConfig
from models.architectures.et import ETConfig
from models.base import DynamicsParams
from models.resonance import Resonance
from service.endpoints.common.dynamics import resolved_dynamics
from service.endpoints.common.envelope import require_supported_params
from service.endpoints.common.schemas import Dynamics
from service.errors import Problem
from tests.service.endpoints.anomaly.test_bad_input import check
from tests.support.checkpoints import make_shapes
from tests.support.completion import body as complete_body
from tests.support.image_models import SCENE, SHAPE
from tests.support.image_models import text as base64_of

LOUD = {"strength": 2.0, "vigilance": 0.1, "sharpness": 3.0, "unroll": 3, "feedback": 0.4}
SILENT = LOUD | {"strength": 0.0}


def _shapes() -> list[dict]:
    return [
        {"x": graph.x.tolist(), "edge_index": graph.edge_index.tolist()}
        for graph in make_shapes(3, 4)
    ]


ASKED = {
    "et-small": lambda sample: ("/anomaly/score", sample(11, 1).arrays()),
    "cdat-small": lambda sample: ("/anomaly/score", sample(11, 2).arrays()),
    "cdat-mol": lambda sample: ("/classify", {"smiles": ["CCO", "c1ccccc1N(=O)=O"]}),
    "et-shape": lambda sample: ("/classify", {"graphs": _shapes()}),
    "et-tile": lambda sample: ("/complete", complete_body()),
    "ait-glyph": lambda sample: ("/images/classify", {"image": base64_of(SCENE)}),
    "ait-scene": lambda sample: ("/images/answer", {"image": base64_of(SCENE), "question": SHAPE}),
}


@pytest.fixture(params=ASKED)
def asked(request, client, sample):
    path, asked = ASKED[request.param](sample)

    def send(resonance=None, include=("trace", "components"), **dynamics):
        if resonance is not None:
            dynamics["resonance"] = resonance
        rest = {"model": request.param, "dynamics": dynamics, "include": list(include)}
        response = client.post(path, json=asked | rest)
        assert response.status_code == 200, response.text
        answer = response.json()
        return answer["dynamics"], {
            name: part
            for name, part in answer.items()
            if name not in ("dynamics", "request_id", "timings_ms")
        }

    return send


def test_it_is_heard_and_told_and_silent_without_strength(asked):
    plain, without = asked()
    assert plain["resonance"] is None
    told, answer = asked(LOUD)
    assert told == plain | {"resonance": LOUD | {"gate": "sigmoid", "rank": None}}
    assert answer != without
    assert asked(LOUD) == (told, answer)
    silent, nothing = asked(SILENT)
    assert silent["resonance"]["strength"] == 0
    assert nothing == without  # every digit of it, the trace as well
    defaults, _ = asked({})
    assert defaults["resonance"] == Resonance.model_validate({}).model_dump()


def test_what_resonated_is_told(asked):
    """Of every head, in each result and over all; nothing where nothing resonates."""
    _, quiet = asked()
    _, without = asked(include=["resonance"])
    _, answer = asked(LOUD, include=["resonance"])
    whole = answer.get("convergence")
    each = []
    for name in ("results", "images"):
        each += [one["convergence"] for one in answer.get(name, []) if "convergence" in one]
    found = [c["resonance"] for c in (whole, *each) if c is not None]
    assert found
    for heads in found:
        assert heads
        for head in heads:
            assert 0 <= head["crossing"] <= 1
            assert 0 < head["mean"] < 1
            for pair in head.get("pairs", []):
                assert -1.001 < pair["cosine"] < 1.001
            assert len(head.get("pairs", [])) <= 5
    kinds = {head["kind"] for head in found[0]}
    ait = answer["model"]["name"].startswith("ait")
    assert kinds == ({"attention", "bottleneck"} if ait else {"attention"})
    silent = without.get("convergence") or without["images"][0]["convergence"]
    assert silent["resonance"] == []
    assert "resonance" not in str(quiet)


@pytest.mark.parametrize("gate", ["sigmoid", "centred", "tanh", "piecewise-linear"])
def test_gates(client, sample, checkpoints, gate):
    """What is served is what the network says."""
    one = sample(11, 2)
    shape = {"strength": 1.5, "gate": gate, "sharpness": 4.0, "rank": 3}
    body = one.arrays(model="cdat-small", dynamics={"resonance": shape})
    response = client.post("/anomaly/score", json=body)
    network = checkpoint.load_checkpoint(checkpoints / "cdat-small").network
    knobs = [DynamicsParams(resonance=Resonance.model_validate(shape))]
    expected = network.infer(network.pack([one.graph()]), knobs).logits
    scores = [result["score"] for result in response.json()["results"]]
    np.testing.assert_allclose(scores, expected.numpy(), rtol=1e-4, atol=1e-5)


def test_in_tensors(client, sample):
    one = sample(11, 1)
    dynamics = {"resonance": LOUD}
    json = client.post("/anomaly/score", json=one.arrays(model="et-small", dynamics=dynamics))
    tensors = client.post(
        "/anomaly/score",
        content=one.tensors(model="et-small", dynamics=dynamics),
        headers={"content-type": "application/vnd.safetensors"},
    )
    assert json.json()["results"] == tensors.json()["results"]
    assert json.json()["dynamics"] == tensors.json()["dynamics"]


@pytest.mark.parametrize(
    "config",
    [
        ETConfig.model_validate({"features": ("a",), "attention": False}),
        AiTConfig.model_validate(
            {
                **{"shape": (1, 8, 8), "tasks": ({"name": "p", "labels": ("u", "v")},)},
                **{"attention": False, "workspace": False},
            }
        ),
    ],
    ids=["et", "ait"],
)
def test_without_attention_it_is_refused(config):
    for resonance in (LOUD, SILENT):
        with pytest.raises(Problem) as refused:
            require_supported_params(Dynamics.model_validate({"resonance": resonance}), config)
        [fault] = refused.value.faults
        assert (fault.pointer, fault.code) == ("/dynamics/resonance", "not_read")
    require_supported_params(Dynamics.model_validate({"steps": 3}), config)
    with pytest.raises(ValueError, match="no attention"):
        type(config).model_validate(config.model_dump() | {"resonance": LOUD})


def test_a_memory_has_no_attention_to_tokens(client):
    body = {"memory": "mnist-3", "beta": 100, "dynamics": {"resonance": LOUD}}
    check(client.post("/sample", json=body), 422, "invalid-request", "unknown_field", "/dynamics")


def test_what_was_trained_is_told(checkpoints):
    loaded = checkpoint.load_checkpoint(checkpoints / "cdat-small").network
    shape = {"strength": 0.7, "gate": "tanh", "sharpness": 2.0}
    for learn in (False, True):
        config = loaded.config.model_dump() | {"resonance": shape, "learn_strength": learn}
        network = type(loaded)(type(loaded.config).model_validate(config))
        told = resolved_dynamics(network, DynamicsParams())["resonance"]
        blocks = len(network.blocks_in_order())
        strength = pytest.approx(0.7) if not learn else [[pytest.approx(0.7)] * 2] * blocks
        assert told["strength"] == strength
        assert (told["gate"], told["vigilance"]) == ("tanh", 0.5)
        instead = DynamicsParams(resonance=Resonance.model_validate(LOUD))
        assert resolved_dynamics(network, instead)["resonance"]["strength"] == 2.0


def test_bounds_are_in_the_document(client):
    schemas = client.get("/openapi.json").json()["components"]["schemas"]
    knobs = schemas["Resonance"]["properties"]
    assert set(LOUD) | {"gate", "rank"} == set(knobs)
    assert all(knob["description"] for knob in knobs.values())
    assert (knobs["vigilance"]["minimum"], knobs["vigilance"]["maximum"]) == (-1, 1)
    assert knobs["gate"]["enum"] == ["sigmoid", "centred", "tanh", "piecewise-linear"]
    assert schemas["Resonance"]["additionalProperties"] is False


def test_it_is_told_while_others_compute(server):
    """What is told of a run is found in the run: nothing else may take turns with others."""
    asked = {"model": "cdat-mol", "smiles": ["CCO", "c1ccccc1N(=O)=O"], "include": ["resonance"]}
    asked["dynamics"] = {"resonance": LOUD, "steps": 40}

    def ask(_):
        with server.client() as client:
            return [client.post("/classify", json=asked) for _ in range(20)]

    with ThreadPoolExecutor(8) as pool:
        found = [answer for answers in pool.map(ask, range(8)) for answer in answers]
    assert {answer.status_code for answer in found} == {200}
    heads = [answer.json()["convergence"]["resonance"] for answer in found]
    means = np.array([[head["mean"] for head in each] for each in heads])
    assert means.size
    np.testing.assert_allclose(means, means[:1].repeat(len(means), 0), rtol=1e-3)
