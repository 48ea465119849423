"""What the server says of itself: models, health, ids, logs, problems."""

from __future__ import annotations

import asyncio

import httpx

from service.app import create_app
from service.endpoints.common.schemas import ProblemDocument
from service.endpoints.models.schemas import (
    ClassifierDetail,
    CompleterDetail,
    ModelList,
    RecogniserDetail,
    ScorerDetail,
)
from service.settings import Settings


def test_models(client):
    listed = ModelList.model_validate_json(client.get("/models").content).models
    assert {model.name: model.route for model in listed} == {
        **dict.fromkeys(("et-small", "cdat-small", "et-edges"), "/anomaly/score"),
        **dict.fromkeys(("cdat-mol", "et-shape"), "/classify"),
        **dict.fromkeys(("et-tile", "et-grey", "et-pane"), "/complete"),
        **dict.fromkeys(("ait-glyph", "ait-grey"), "/images/classify"),
        "ait-scene": "/images/answer",
    }
    assert {m.name: m.default_for for m in listed if m.default_for} == {
        "et-small": ["/anomaly/score"],
        "cdat-mol": ["/classify"],
        "et-tile": ["/complete"],
        "ait-glyph": ["/images/classify"],
        "ait-scene": ["/images/answer"],
    }
    kinds = {
        "/anomaly/score": ScorerDetail,
        "/classify": ClassifierDetail,
        "/complete": CompleterDetail,
        "/images/classify": RecogniserDetail,
        "/images/answer": RecogniserDetail,
    }
    for model in listed:
        response = client.get(f"/models/{model.name}")
        of_nodes = model.route == "/anomaly/score"
        detail = kinds[model.route].model_validate_json(response.content)
        assert detail.model_dump() | model.model_dump() == detail.model_dump()
        assert detail.limits.max_steps == 64
        assert detail.limits.max_body_bytes == 1 << 20
        assert detail.knobs.steps == detail.config["steps"] == (4 if of_nodes else 3)
        assert detail.energy.values


def test_a_scorer(client):
    for name, relations, edge_features in (
        *(("et-small", 1, []), ("cdat-small", 2, [])),
        ("et-edges", 2, ["amount", "hour"]),
    ):
        detail = ScorerDetail.model_validate_json(client.get(f"/models/{name}").content)
        assert detail.task == "anomaly"
        assert detail.features[0].name == "age"
        assert len(detail.relations) == relations
        assert [feature.name for feature in detail.edge_features] == edge_features


def test_a_classifier(client):
    def described(name):
        return ClassifierDetail.model_validate_json(client.get(f"/models/{name}").content)

    molecules, shapes = described("cdat-mol"), described("et-shape")
    assert molecules.task == shapes.task == "classification"
    assert (molecules.reads_smiles, shapes.reads_smiles) == (True, False)
    assert molecules.features[0].values is not None
    assert molecules.features[0].values[:3] == ("H", "Li", "B")
    assert [f.name for f in molecules.edge_features] == ["bond", "conjugated", "in ring", "stereo"]
    assert shapes.edge_features == []
    assert [(task.name, task.labels) for task in molecules.tasks] == [
        ("mutagen", ["no", "yes"]),
        ("colour", ["red", "green", "blue"]),
    ]
    assert [task.temperature for task in molecules.tasks] == [0.5, 2.0]
    assert molecules.limits.max_graphs == 1024
    assert "threshold" not in client.get("/models/cdat-mol").json()


def test_a_completer(client):
    for name, channels in (("et-tile", 3), ("et-grey", 1)):
        detail = CompleterDetail.model_validate_json(client.get(f"/models/{name}").content)
        assert (detail.task, detail.features) == ("completion", [])
        assert (detail.size, detail.patch, detail.channels) == (16, 4, channels)
        assert (detail.limits.max_pixels, detail.limits.max_windows) == (16_000_000, 8192)
        assert "max_nodes" not in client.get(f"/models/{name}").json()["limits"]


def test_health(client):
    for path in ("/health/live", "/health/ready"):
        response = client.get(path)
        assert (response.status_code, response.json()) == (200, {"status": "ok"})


def test_request_ids_are_taken_or_made(client):
    def answered(sent):
        response = client.get("/health/live", headers={"x-request-id": sent})
        assert response.headers["x-content-type-options"] == "nosniff"
        return response.headers["x-request-id"]

    assert answered("my-id_7") == "my-id_7"
    for bad in ("", "a b", "x" * 65, 'a"b', "a\tb"):
        made = answered(bad)
        assert made != bad
        assert len(made) == 24
    assert answered("") != answered("")


def test_the_id_is_in_the_body_and_the_log(client, server, sample, wait):
    secret = 0.123456789
    body = sample(2).arrays()
    body["graph"]["x"][0][0] = secret
    response = client.post("/anomaly/score", json=body, headers={"x-request-id": "find-me"})
    assert response.json()["request_id"] == "find-me"

    def lines():
        return [line for line in server.log_lines() if line.get("request_id") == "find-me"]

    wait(lines)  # it is written once the answer is out
    [line] = lines()
    assert (line["route"], line["status"], line["method"]) == ("/anomaly/score", 200, "POST")
    assert line["ms"] > 0
    assert str(secret) not in server.log.read_text()


def test_every_line_of_the_log_is_an_object(server):
    assert all(isinstance(line, dict) and "event" in line for line in server.log_lines())


def test_problems_fit_their_schema(client):
    ProblemDocument.model_validate_json(client.get("/nothing").content, strict=True)


def test_an_exception_is_told_without_its_reason():
    app = create_app(Settings())

    @app.get("/break")
    async def fail() -> None:
        raise RuntimeError("a secret")

    async def get() -> httpx.Response:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            return await client.get("/break")

    response = asyncio.run(get())
    assert response.status_code == 500
    problem = ProblemDocument.model_validate_json(response.content, strict=True)
    assert problem.type == "urn:basin:problem:internal-error"
    assert problem.request_id == response.headers["x-request-id"]
    assert "secret" not in response.text


def test_settings_are_described():
    assert all(field.description for field in Settings.model_fields.values())
    assert Settings.model_config.get("env_prefix") == "BASIN_"


def test_every_model_answers_its_example(client):
    document = client.get("/openapi.json").json()
    for model in client.get("/models").json()["models"]:
        example = client.get(f"/models/{model['name']}").json()["example"]
        answer = client.post(model["route"], json=example)
        assert answer.status_code == 200, (model["name"], answer.text)
        content = document["paths"][model["route"]]["post"]["requestBody"]["content"]
        assert content["application/json"]["examples"][model["name"]] == {"value": example}
