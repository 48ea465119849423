"""The interface as it describes itself, and requests that keep to it."""

from __future__ import annotations

import json

import pytest

from tests.service.endpoints.complete.test_api import body as picture
from tests.support.image_models import SHAPE


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
            if "/health/" in path or path == "/":
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
    assert shapes == [
        "ArrayScoreRequest",
        "RowScoreRequest",
        "StoredScoreRequest",
        "TransactionScoreRequest",
    ]
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
    for path, routes in document["paths"].items():
        kind = "application/json" if path.startswith("/v2") else "application/problem+json"
        for route in routes.values():
            for status, response in route["responses"].items():
                if not status.startswith("2"):
                    assert set(response["content"]) == {kind}
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
            "solver",
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
