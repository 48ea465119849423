"""Reasons over HTTP: every `include` on every route, bounded, and of no cost to the answer."""

from __future__ import annotations

import json

import numpy as np
import pytest
import safetensors.numpy

from service.endpoints.anomaly.schemas import ScoreResponse
from service.endpoints.classify.schemas import ClassifyResponse
from service.endpoints.common.include import TOKENS
from service.endpoints.common.reason_schemas import Explanation
from service.endpoints.complete.schemas import CompleteResponse
from service.endpoints.images.schemas import AnswerImagesResponse, ClassifyImagesResponse
from service.settings import Settings
from tests.service.endpoints.anomaly.test_bad_input import check
from tests.support.checkpoints import make_shapes
from tests.support.completion import body as complete_body
from tests.support.image_models import SCENE, SHAPE
from tests.support.image_models import text as base64_of

TENSORS = {"accept": "application/vnd.safetensors"}
MOLECULES = ["CCO", "c1ccccc1N(=O)=O", "?", "[Na+].[Cl-]"]
LOUD = {"strength": 2.0, "vigilance": 0.1, "sharpness": 3.0}


def _shapes() -> list[dict]:
    return [
        {"x": graph.x.tolist(), "edge_index": graph.edge_index.tolist()}
        for graph in make_shapes(3, 4)
    ]


ASKED = {
    "et-small": ("/anomaly/score", lambda sample: sample(11, 1).arrays(), ScoreResponse),
    "cdat-small": ("/anomaly/score", lambda sample: sample(11, 2).rows(), ScoreResponse),
    "et-edges": (
        "/anomaly/score",
        lambda sample: sample(11, 2, edge_features=2).arrays(),
        ScoreResponse,
    ),
    "cdat-mol": ("/classify", lambda _: {"smiles": MOLECULES}, ClassifyResponse),
    "et-shape": ("/classify", lambda _: {"graphs": _shapes()}, ClassifyResponse),
    "et-tile": ("/complete", lambda _: complete_body(num_samples=2), CompleteResponse),
    "ait-glyph": (
        "/images/classify",
        lambda _: {"image": base64_of(SCENE)},
        ClassifyImagesResponse,
    ),
    "ait-scene": (
        "/images/answer",
        lambda _: {"image": base64_of(SCENE), "question": SHAPE},
        AnswerImagesResponse,
    ),
}
KINDS = {"neighbours", "features", "nodes", "memories"}
EXPLAINED = ("et-small", "cdat-small", "et-edges", "cdat-mol", "et-shape")


@pytest.fixture(params=ASKED)
def asked(request, client, sample):
    path, body, schema = ASKED[request.param]

    def send(*include, headers=None, **rest):
        full = body(sample) | {"model": request.param, "include": list(include)} | rest
        return client.post(path, json=full, headers=headers)

    send.model, send.schema = request.param, schema
    return send


def parts(answer: dict) -> list[dict]:
    """Where `reasons` stand."""
    if "images" in answer:
        return answer["images"]
    if "results" not in answer:  # but in columns
        return [answer]
    found = [one for one in answer["results"] if one.get("status", "ok") == "ok"]
    return [answer] if "score" in found[0] else found


def plain(answer: dict) -> dict:
    """What an answer says whatever is included."""
    beside = ("request_id", "timings_ms", "reasons", "explanation")
    return {
        name: [plain(one) for one in part] if isinstance(part, list) else part
        for name, part in answer.items()
        if name not in beside
    }


def test_nothing_is_different_for_who_does_not_ask(asked):
    without = asked()
    assert without.status_code == 200, without.text
    assert "reasons" not in without.text
    assert plain(asked("attention", "memories").json()) == plain(without.json())
    assert asked("reasons").status_code == 422
    check(asked("embeddings"), 422, "invalid-request", "not_allowed", "/include/0")


def test_what_tokens_see_and_which_memories_fire(asked):
    response = asked("attention", "memories", "components")
    assert response.status_code == 200, response.text
    answer = response.json()
    asked.schema.model_validate(answer)
    for one in parts(answer):
        reasons = one["reasons"]
        assert reasons["told"] == min(reasons["tokens"], TOKENS)
        for attention in reasons["attention"]:
            assert len(attention["tokens"]) <= TOKENS
            for token in attention["tokens"]:
                seen = token["seen"]
                assert len(seen) <= 5
                weights = [other["weight"] for other in seen]
                assert weights == sorted(weights, reverse=True)
                assert sum(weights) < 1 + 1e-5
                for other in seen:
                    assert other["weight"] == pytest.approx(np.mean(other["heads"]))
        for memories in reasons["memories"]:
            for fired in (memories["top"], *(token["fired"] for token in memories["tokens"])):
                assert len(fired) <= 5
                assert sum(memory["share"] for memory in fired) < 1 + 1e-5
        totals = one["convergence"]["components"]
        for name, total in totals.items():
            found = sum(
                np.sum(token[name]) for block in reasons["components"] for token in block["tokens"]
            )
            whole = total["final"] * (reasons["tokens"] if "images" in answer else 1)
            assert found == pytest.approx(whole, rel=1e-4, abs=1e-4)
        if asked.model == "et-small":
            assert reasons["attention"][0]["tokens"][0]["node_id"].startswith("n")
        if asked.model.startswith(("ait", "et-tile")):
            assert all("tile" in memory for b in reasons["memories"] for memory in b["top"])


def test_all_of_it_is_in_tensors(asked):
    include = ("attention", "memories", "components", "resonance")
    response = asked(*include, headers=TENSORS, dynamics={"resonance": LOUD})
    assert response.status_code == 200, response.text
    assert response.headers["content-type"] == TENSORS["accept"]
    tensors = safetensors.numpy.load(response.content)
    listed = asked(*include, dynamics={"resonance": LOUD}).json()
    size = int.from_bytes(response.content[:8], "little")
    told = json.loads(json.loads(response.content[8 : 8 + size])["__metadata__"]["response"])
    beside = {"b64_png", "reasons", "timings_ms", "request_id"}
    if "results.row" in tensors:
        np.testing.assert_array_equal(tensors["results.row"], np.arange(len(listed["results"])))
        for name in ("score", "probability", "label", "rank"):
            column = [result[name] for result in listed["results"]]
            np.testing.assert_allclose(tensors[f"results.{name}"], column, rtol=1e-5)
        assert {result["threshold"] for result in listed["results"]} == {told["threshold"]}
        beside |= {"results", "threshold"}
    assert [set(one) - beside for one in parts(listed)] == [
        set(one) - beside for one in parts(told)
    ]
    counts = [one["reasons"]["tokens"] for one in parts(listed)]
    assert np.diff(tensors["ptr"]).tolist() == counts
    for row, one in enumerate(parts(listed)):
        for place, attention in enumerate(one["reasons"]["attention"]):
            first, last = tensors[f"attention_{place}.ptr"][row : row + 2]
            token_P, seen_P = tensors[f"attention_{place}.pairs"][:, first:last]
            weight_PH = tensors[f"attention_{place}.weight"][first:last]
            r_PH = tensors[f"attention_{place}.resonance"] if "images" not in listed else weight_PH
            assert ((r_PH >= 0) & (r_PH <= 1)).all()
            for token in attention["tokens"][:3]:
                for other in token["seen"]:
                    [at] = np.flatnonzero((token_P == token["token"]) & (seen_P == other["token"]))
                    np.testing.assert_allclose(weight_PH[at], other["heads"], atol=1e-5)
        for block, memories in enumerate(one["reasons"]["memories"]):
            share = tensors[f"memories_{block}.share"][slice(*tensors["ptr"][row : row + 2])]
            for memory in memories["top"]:
                assert share[:, memory["memory"]].mean() == pytest.approx(memory["share"], abs=1e-5)


def test_an_explanation_of_a_hub(client) -> None:
    """Which of more neighbours than are tried are, gradients tell."""
    chance = np.random.default_rng(2)
    x = chance.standard_normal((60, 5)).round(3).tolist()
    star = [[0] * 59, list(range(1, 60))]
    body = {"model": "et-small", "graph": {"x": x, "edge_index": star}, "targets": [0]}
    answer = client.post("/anomaly/score", json=body | {"include": ["explanation"]})
    assert answer.status_code == 200, answer.text
    told = answer.json()["results"][0]["explanation"]["neighbours"]
    assert (told["parts"], told["tried"]) == (59, 32)


@pytest.mark.parametrize("name", EXPLAINED)
def test_explanations(client, sample, name):
    path, body, schema = ASKED[name]
    body = body(sample) | {"model": name, "include": ["explanation"]}
    if path == "/anomaly/score":
        body["targets"] = ["n3", "n0"]
    response = client.post(path, json=body)
    assert response.status_code == 200, response.text
    answer = response.json()
    schema.model_validate(answer)
    for one in answer["results"]:
        if one.get("status") == "error":
            assert "explanation" not in one
            continue
        told = one["explanation"]
        is_score = path == "/anomaly/score"
        for target, explained in ({one["node_id"]: told} if is_score else told).items():
            assert set(explained) == set(Explanation.model_fields)
            prediction = one if is_score else one["predictions"][target]
            assert explained["target"] == target
            for field in ("label", "probability"):
                assert explained[field] == prediction[field]
            if is_score:
                assert (explained["unit"], explained["value"]) == ("score", one["score"])
            else:
                assert explained["unit"] == "log_odds"
                assert explained["value"] > 0 or len(prediction["probabilities"]) > 2
            absent = {"nodes"} if is_score else {"neighbours", "features"}
            assert {kind for kind in KINDS if explained[kind] is None} == absent
            for kind in KINDS - absent:
                found = explained[kind]
                up = one.get("label", 1) == 1 or path == "/classify"
                for side, sign in (("supports", 1 if up else -1), ("opposes", -1 if up else 1)):
                    effects = [sign * part["effect"] for part in found[side]]
                    assert len(effects) <= 5
                    assert all(effect > 0 for effect in effects)
                    assert effects == sorted(effects, reverse=True)
                if len(found["supports"]) == 1:
                    moved = found["deletion"]["moved"]
                    assert moved == pytest.approx(abs(found["supports"][0]["effect"]), abs=1e-4)
            if name == "cdat-mol":
                svg = explained["svg"]
                assert svg is None or svg.rstrip().endswith("</svg>")
                assert svg is not None or explained["nodes"]["tried"] == 0
            else:
                assert explained["svg"] is None
    response = client.post(path, json=body, headers=TENSORS)
    size = int.from_bytes(response.content[:8], "little")
    document = json.loads(json.loads(response.content[8 : 8 + size])["__metadata__"]["response"])
    in_json = [one["explanation"] for one in answer["results"] if "explanation" in one]
    if path == "/anomaly/score":
        assert document["explanations"] == in_json
    else:
        assert [one.get("explanation") for one in document["results"]] == [
            one.get("explanation") for one in answer["results"]
        ]
    without = {k: v for k, v in body.items() if k != "include"}
    assert plain(client.post(path, json=without).json()) == plain(answer)


def test_what_is_not_told_is_refused(client, sample):
    for name in set(ASKED) - set(EXPLAINED):
        path, body, _ = ASKED[name]
        response = client.post(
            path, json=body(sample) | {"model": name, "include": ["explanation"]}
        )
        check(response, 422, "invalid-request", "not_told", "/include")
    many = sample(11, 1).arrays(model="et-small", include=["explanation"])  # 40 nodes
    check(client.post("/anomaly/score", json=many), 422, "invalid-request", "too_many", "/targets")
    smiles = {"smiles": ["CCO"] * (Settings().max_explained + 1), "include": ["explanation"]}
    check(client.post("/classify", json=smiles), 422, "invalid-request", "too_many", "/include")
    accept = {"accept": "text/html"}
    response = client.post("/classify", json={"smiles": "CCO"}, headers=accept)
    assert response.status_code == 406


def test_targets_are_told_of(client, sample):
    body = sample(11, 1).arrays(model="et-small", include=["memories"], targets=["n3", "n0", "n9"])
    answer = client.post("/anomaly/score", json=body).json()
    ranked = sorted(answer["results"], key=lambda result: result["rank"])
    told = [token["node_id"] for token in answer["reasons"]["memories"][0]["tokens"]]
    assert told == [result["node_id"] for result in ranked]  # the most suspicious first
    assert (answer["reasons"]["told"], answer["reasons"]["tokens"]) == (3, 40)
