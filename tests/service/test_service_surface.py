"""What the server says of itself: models, health, metrics, OpenAPI, ids, logs."""

from __future__ import annotations

import asyncio
import json

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from service.main import create_app
from service.model_schemas import (
    ClassifierDetail,
    CompleterDetail,
    ModelList,
    RecogniserDetail,
    ScorerDetail,
)
from service.schemas import ProblemDocument
from service.settings import Settings
from tests.service.recognising import SCENE, SHAPE, look
from tests.service.test_service_complete import body as picture

FAMILIES = {
    "basin_requests": "counter",
    "basin_problems": "counter",
    "basin_request_seconds": "histogram",
    "basin_energy_per_node": "histogram",
    "basin_energy_drop_per_node": "histogram",
    "basin_residual": "histogram",
    "basin_steps": "histogram",
    "basin_stops": "counter",
    "basin_classified": "counter",
    "basin_item_errors": "counter",
    "basin_windows": "counter",
    "basin_images": "counter",
    "basin_chain_steps": "counter",
    "basin_samples": "counter",
    "basin_acceptance": "histogram",
    "basin_jobs": "counter",
    "basin_jobs_unfinished": "gauge",
    "basin_cache": "counter",
    "basin_cache_bytes": "gauge",
    "basin_model_info": "gauge",
    "basin_queue_depth": "gauge",
}


def families(client):
    return {f.name: f for f in text_string_to_metric_families(client.get("/metrics").text)}


def value(family, suffix="", **labels):
    return sum(
        sample.value
        for sample in family.samples
        if sample.name == family.name + suffix and labels.items() <= sample.labels.items()
    )


def test_models(client):
    listed = ModelList.model_validate_json(client.get("/models").content).models
    assert {model.name: model.route for model in listed} == {
        **dict.fromkeys(("et-small", "cdat-small"), "/anomaly/score"),
        **dict.fromkeys(("cdat-mol", "et-shape"), "/classify"),
        **dict.fromkeys(("et-tile", "et-grey"), "/complete"),
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
    for name, relations in (("et-small", 1), ("cdat-small", 2)):
        detail = ScorerDetail.model_validate_json(client.get(f"/models/{name}").content)
        assert detail.task == "anomaly"
        assert detail.features[0].name == "age"
        assert len(detail.relations) == relations


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
        assert (detail.limits.max_pixels, detail.limits.max_windows) == (4_000_000, 8192)
        assert "max_nodes" not in client.get(f"/models/{name}").json()["limits"]


def test_health(client):
    for path in ("/health/live", "/health/ready"):
        response = client.get(path)
        assert (response.status_code, response.json()) == (200, {"status": "ok"})


def test_metrics(client, sample):
    one = sample(2)
    before = families(client)
    good = {"route": "/anomaly/score", "status": "200"}
    for _ in range(3):
        assert client.post("/anomaly/score", json=one.arrays()).status_code == 200
    client.post("/anomaly/score", json=one.arrays(dynamics={"steps": -1}))
    client.post("/classify", json={"smiles": ["CCO", "CC", "?"]})
    client.post("/classify", json={"smiles": ["?", "?"]})
    client.post("/complete", json=picture(num_samples=2))
    look(client, SCENE, SCENE)
    look(client, SCENE, question=SHAPE)
    client.get("/no/such/path")
    after = families(client)
    assert {name: after[name].type for name in FAMILIES} == FAMILIES
    assert "process_resident_memory_bytes" in after

    def grown(name, suffix, **labels):
        then = before.get(name)
        return value(after[name], suffix, **labels) - (value(then, suffix, **labels) if then else 0)

    assert grown("basin_requests", "_total", **good) == 3
    assert grown("basin_requests", "_total", route="unmatched", status="404") == 1
    assert grown("basin_problems", "_total", type="invalid-request") == 1
    assert grown("basin_stops", "_total", model="et-small", reason="step_limit") == 3
    for name in ("energy_per_node", "energy_drop_per_node", "residual", "steps"):
        assert grown(f"basin_{name}", "_count", model="et-small") == 3
        assert grown(f"basin_{name}", "_count", model="cdat-mol") == 2
    assert grown("basin_steps", "_sum", model="et-small") == 12
    assert grown("basin_classified", "_total", model="cdat-mol") == 2
    assert grown("basin_item_errors", "_total", model="cdat-mol", code="not_smiles") == 3
    assert grown("basin_stops", "_total", model="cdat-mol", reason="step_limit") == 2
    for phase in ("read", "parse", "molecules", "queue", "compute", "encode"):
        assert grown("basin_request_seconds", "_count", route="/classify", phase=phase) >= 1
    assert grown("basin_windows", "_total", model="et-tile") == 2
    assert grown("basin_steps", "_sum", model="et-tile") == 2 * 2 * 3
    assert grown("basin_stops", "_total", model="et-tile", reason="step_limit") == 2
    assert grown("basin_energy_per_node", "_count", model="et-tile") == 2
    for phase in ("read", "parse", "decode", "queue", "compute", "encode"):
        assert grown("basin_request_seconds", "_count", route="/complete", phase=phase) == 1
    assert grown("basin_images", "_total", model="ait-glyph") == 2
    assert grown("basin_images", "_total", model="ait-scene") == 1
    assert grown("basin_energy_per_node", "_count", model="ait-glyph") == 2
    assert grown("basin_steps", "_sum", model="ait-glyph") == 2 * 2 * 3
    for phase in ("read", "parse", "decode", "queue", "compute", "encode"):
        for route in ("/images/classify", "/images/answer"):
            assert grown("basin_request_seconds", "_count", route=route, phase=phase) == 1
    for phase in ("read", "parse", "queue", "compute", "encode"):
        assert grown("basin_request_seconds", "_count", route="/anomaly/score", phase=phase) >= 3
    assert value(after["basin_model_info"]) == 9
    routes = {sample.labels["route"] for sample in after["basin_requests"].samples}
    assert routes <= {
        "/anomaly/score",
        "/classify",
        "/complete",
        "/images/classify",
        "/images/answer",
        "/sample",
        "/memories",
        "/memories/{id}",
        "/jobs/{id}",
        "/jobs/{id}/result",
        "/jobs/{id}/events",
        "/models",
        "/models/{name}",
        "/models/{name}/memories",
        "/health/live",
        "/health/ready",
        "/metrics",
        "/openapi.json",
        "/docs",
        "unmatched",
    }


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


@pytest.fixture(scope="module")
def document(server):
    with server.client() as client:
        return client.get("/openapi.json").json()


def test_openapi_is_valid(document):
    validator = pytest.importorskip("openapi_spec_validator")
    validator.validate(document)


def test_openapi_tells_of_keys(document):
    assert document["components"]["securitySchemes"]["key"]["scheme"] == "bearer"
    assert document["security"] == [{}, {"key": []}], "they may be sent where none are asked for"
    for path, operations in document["paths"].items():
        for operation in operations.values():
            if path.startswith("/health/"):
                assert operation["security"] == []
            else:
                assert {"401", "403", "429"} <= operation["responses"].keys()


def test_openapi_has_every_reference(document):
    schemas = document["components"]["schemas"]
    text = json.dumps(document)
    names = {part.split('"')[0] for part in text.split("#/components/schemas/")[1:]}
    assert names <= schemas.keys()
    assert "$defs" not in text


def test_openapi_describes_bodies_answers_and_errors(document):
    operation = document["paths"]["/anomaly/score"]["post"]
    body = operation["requestBody"]["content"]
    assert set(body) == {"application/json", "application/vnd.safetensors"}
    shapes = [s["$ref"].split("/")[-1] for s in body["application/json"]["schema"]["oneOf"]]
    assert shapes == ["ArrayScoreRequest", "RowScoreRequest"]
    classify = document["paths"]["/classify"]["post"]
    shapes = classify["requestBody"]["content"]["application/json"]["schema"]["oneOf"]
    assert [s["$ref"].split("/")[-1] for s in shapes] == ["SmilesRequest", "GraphsRequest"]
    assert "`ptr`" in classify["requestBody"]["description"]
    assert set(classify["responses"]) == set(operation["responses"])
    several = document["components"]["schemas"]["SmilesRequest"]["properties"]["smiles"]["anyOf"]
    assert several[1]["maxItems"] == 1024
    complete = document["paths"]["/complete"]["post"]
    content = complete["requestBody"]["content"]
    assert {kind: shape["schema"]["$ref"].split("/")[-1] for kind, shape in content.items()} == {
        "application/json": "CompleteRequest",
        "multipart/form-data": "CompleteForm",
    }
    form = document["components"]["schemas"]["CompleteForm"]
    assert form["properties"]["image"]["format"] == "binary"
    assert content["multipart/form-data"]["encoding"].keys() <= form["properties"].keys()
    assert set(complete["responses"]) == set(operation["responses"])
    assert set(complete["responses"]["200"]["content"]) == {
        *("application/json", "image/png", "text/event-stream", "application/vnd.safetensors")
    }
    for path, name in (("/images/classify", "Classify"), ("/images/answer", "Answer")):
        images = document["paths"][path]["post"]
        content = images["requestBody"]["content"]
        shapes = [shape["schema"]["$ref"].split("/")[-1] for shape in content.values()]
        assert shapes == [f"{name}ImagesRequest", f"{name}ImagesForm"]
        assert set(images["responses"]) == set(operation["responses"])
    asked = document["components"]["schemas"]["AnswerImagesRequest"]["properties"]
    assert asked["image"]["anyOf"][1]["maxItems"] == 64
    sample = document["paths"]["/sample"]["post"]
    assert sample["requestBody"]["content"].keys() == body.keys()
    assert set(sample["responses"]["200"]["content"]) == {*body, "image/png"}
    assert set(document["paths"]["/memories/{id}"]) == {"put", "get", "delete"}
    assert set(operation["responses"]) == {
        *(
            "200",
            "202",
            "400",
            "401",
            "403",
            "404",
            "406",
            "408",
            "409",
            "413",
            "415",
            "422",
            "429",
        ),
        *("500", "503", "504"),
    }
    assert {parameter["name"] for parameter in sample["parameters"]} == {
        *("Prefer", "Idempotency-Key", "timeout_ms")
    }
    assert set(sample["responses"]["200"]["headers"]) == {"X-Cache", "Server-Timing"}
    assert set(sample["responses"]["202"]["headers"]) == {"Location", "Preference-Applied"}
    for path in document["paths"].values():
        for route in path.values():
            for status, response in route["responses"].items():
                if not status.startswith("2"):
                    assert set(response["content"]) == {"application/problem+json"}
    knobs = document["components"]["schemas"]["Dynamics"]["properties"]
    assert set(knobs) == {
        *(
            "steps",
            "beta",
            "beta_scale",
            "step_size",
            "tolerance",
            "noise",
            "seed",
            "deterministic",
            "resonance",
        )
    }
    assert all(knob["description"] for knob in knobs.values())
    assert knobs["steps"]["anyOf"][0] == {"type": "integer", "minimum": 0, "maximum": 64}


def test_requests_fit_the_documented_schema(document, sample):
    jsonschema = pytest.importorskip("jsonschema")
    for shape, body in (
        ("ArrayScoreRequest", sample(1, 2).arrays(targets=["n1"], dynamics={"steps": 3})),
        ("RowScoreRequest", sample(1, 2).rows(include=["trace"])),
        ("SmilesRequest", {"smiles": "CCO", "dynamics": {"beta": 2.0}}),
        ("SmilesRequest", {"smiles": ["CCO"], "model": "cdat-mol", "include": ["trace"]}),
        ("GraphsRequest", {"graphs": [{"x": [[1, 0.5]], "edge_index": [[], []]}]}),
        (
            "GraphsRequest",
            {"graphs": [{"x": [[1], [2]], "edge_index": [[0], [1]], "edge_attr": [[3]]}]},
        ),
        ("SampleRequest", {"memory": "mnist-3", "beta": [1.0, 2.0], "method": "mala"}),
        (
            "SampleRequest",
            {"memory": {"patterns": [[1.0]]}, "clamp": {"index": [0], "values": [1.0]}},
        ),
        ("CompleteRequest", picture(num_samples=2, mask_mode="black_fill", include=["trace"])),
        ("ClassifyImagesRequest", {"image": "aaaa", "fit": "crop"}),
        ("AnswerImagesRequest", {"image": ["aaaa", "aaaa"], "question": SHAPE}),
        (
            "AnswerImagesRequest",
            {"image": "aaaa", "question": [{"asked": "shape", "colour": "red"}, SHAPE]},
        ),
        ("StoreSequences", {"sequences": ["ACD"], "licence": "CC0"}),
    ):
        schema = {"$ref": f"#/components/schemas/{shape}", "components": document["components"]}
        jsonschema.Draft202012Validator(schema).validate(json.loads(json.dumps(body, default=int)))
        assert not jsonschema.Draft202012Validator(schema).is_valid(body | {"colour": 1})


def test_docs_page(client):
    assert client.get("/docs").status_code == 200


def test_problems_fit_their_schema(client):
    ProblemDocument.model_validate_json(client.get("/nothing").content, strict=True)


def test_an_exception_is_told_without_its_reason():
    app = create_app(Settings())

    @app.get("/break")
    async def fail() -> None:
        raise RuntimeError("a secret")

    async def get() -> httpx.Response:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://h") as client:
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
