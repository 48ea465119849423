"""The parts of the OpenAPI document that FastAPI cannot infer: bodies it does not parse, problems.

All of it is generated from `service.endpoints.common.schemas`.
"""

from __future__ import annotations

from collections.abc import Callable
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from service.auth.middleware import PUBLIC_PATHS
from service.endpoints.anomaly.schemas import (
    ArrayScoreRequest,
    RowScoreRequest,
    StoredScoreRequest,
    TensorEnvelope,
)
from service.endpoints.classify.graph_list import TENSORS as GRAPH_LIST_TENSORS
from service.endpoints.classify.schemas import GraphsRequest, SmilesRequest, TensorClassifyRequest
from service.endpoints.common.schemas import JobBody, ProblemDocument
from service.endpoints.complete.schemas import CompleteForm, CompleteRequest, FrameEvent
from service.endpoints.graphs.parse import TENSORS_OF_GRAPH
from service.endpoints.graphs.schemas import (
    EdgesToAdd,
    GraphUpdate,
    NodesToSet,
    StoreArrays,
    StoreRows,
)
from service.endpoints.images.schemas import (
    AnswerImagesForm,
    AnswerImagesRequest,
    ClassifyImagesForm,
    ClassifyImagesRequest,
)
from service.endpoints.open_inference.errors import is_of_protocol
from service.endpoints.open_inference.schemas import InferError, InferRequest
from service.endpoints.open_inference.tensors import BINARY, HEADER
from service.endpoints.sample.memory_body import PATTERNS
from service.endpoints.sample.parse import TENSORS as SAMPLE_TENSORS
from service.endpoints.sample.schemas import (
    SampleRequest,
    StoreMemory,
    StoreSequences,
    TensorSampleRequest,
)
from service.errors import MEDIA_TYPE
from service.media_types import JSON, MULTIPART, SAFETENSORS
from service.settings import Settings
from service.validation.safetensors_body import GRAPH_TENSORS, TensorSpecs

_TEXT = {"type": "string"}
_ASKED = {
    "Prefer": (
        "`respond-async`: answer 202 with a job and keep its answer (RFC 7240). The request is on "
        "the disk by then, and run again if the server ends before it is done.",
        _TEXT,
    ),
    "Idempotency-Key": (
        "1 to 255 printable characters in quotes that no other request has. Sent again with the "
        "same request it leads to the same job, or without a job to the same answer (of a stored "
        "graph as it is by then), 409 while that is being made; with any other request to 422.",
        _TEXT | {"pattern": r'^"([ !#-\[\]-~]|\\["\\]){1,255}"$'},
    ),
}
"""Headers that every route takes which computes."""
_TOLD = {
    "X-Cache": {"description": "`hit` where the answer was given before", "schema": _TEXT},
    "Server-Timing": {"description": "milliseconds in each phase", "schema": _TEXT},
}
_PICTURE = "image/png, image/jpeg, image/webp"
_REF = "#/components/schemas/{model}"
_OWN = (
    ArrayScoreRequest,
    RowScoreRequest,
    StoredScoreRequest,
    StoreArrays,
    StoreRows,
    NodesToSet,
    EdgesToAdd,
    GraphUpdate,
    TensorEnvelope,
    SmilesRequest,
    GraphsRequest,
    TensorClassifyRequest,
    CompleteRequest,
    CompleteForm,
    FrameEvent,
    ClassifyImagesRequest,
    ClassifyImagesForm,
    AnswerImagesRequest,
    AnswerImagesForm,
    SampleRequest,
    TensorSampleRequest,
    StoreMemory,
    StoreSequences,
    ProblemDocument,
    InferRequest,
    InferError,
)


def problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """`responses` of a route that may answer with these problems."""
    schema = {"$ref": _REF.format(model=ProblemDocument.__name__)}
    return {
        status: {
            "description": HTTPStatus(status).phrase,
            "content": {MEDIA_TYPE: {"schema": schema}},
        }
        for status in statuses
    }


def faults(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """`problems`, as the Open Inference Protocol tells them."""
    schema = {"$ref": _REF.format(model=InferError.__name__)}
    return {
        status: {"description": HTTPStatus(status).phrase, "content": {JSON: {"schema": schema}}}
        for status in statuses
    }


def infer_body() -> dict[str, Any]:
    """`openapi_extra` of the route that infers."""
    described = {"schema": {"$ref": _REF.format(model=InferRequest.__name__)}}
    binary = {"schema": {"type": "string", "format": "binary"}}
    said = (
        f"JSON, or JSON with tensors in bytes behind it and its length in the header {HEADER}; "
        "the content type is not looked at."
    )
    content = {JSON: described, BINARY: binary}
    return {"requestBody": {"required": True, "description": said, "content": content}}


def score_body() -> dict[str, Any]:
    """`openapi_extra` of a route that takes a graph."""
    return _body(
        (ArrayScoreRequest, RowScoreRequest, StoredScoreRequest),
        f"JSON, or a safetensors file with the tensors {_listed(GRAPH_TENSORS)}, of which "
        "`edge_type` and `targets` (row numbers) may be left out. The entry `request` of its "
        f"`__metadata__` holds the rest as JSON text, after the schema {TensorEnvelope.__name__}.",
    )


def classify_body() -> dict[str, Any]:
    """`openapi_extra` of the route that takes molecules or whole graphs."""
    return _body(
        (SmilesRequest, GraphsRequest),
        f"JSON, or a safetensors file with the tensors {_listed(GRAPH_LIST_TENSORS)}: graphs one "
        "after the other, as PyTorch Geometric batches them. Graph i has the rows ptr[i] to "
        "ptr[i + 1] of x, and `edge_index` counts rows of all of x; without `ptr` they are one "
        "graph. "
        "`edge_attr` comes with models that have `edge_features`. The entry `request` of its "
        "`__metadata__` holds the rest as JSON text, after the schema "
        f"{TensorClassifyRequest.__name__}.",
    )


def complete_body() -> dict[str, Any]:
    """`openapi_extra` of the route that completes pictures."""
    description = "A picture and what of it to fill, as JSON with base64 or as a form with files."
    parts = {"image": _PICTURE, "mask": _PICTURE, "num_samples": JSON}
    return _picture_body(CompleteRequest, CompleteForm, parts, description)


def images_body(of_json: type[BaseModel], of_form: type[BaseModel]) -> dict[str, Any]:
    """`openapi_extra` of a route that looks at pictures."""
    description = "Pictures of any size, as JSON with base64 or as a form with files."
    return _picture_body(of_json, of_form, {"image": _PICTURE}, description)


def _picture_body(
    of_json: type[BaseModel], of_form: type[BaseModel], parts: dict[str, str], description: str
) -> dict[str, Any]:
    content: dict[str, Any] = {
        media_type: {"schema": {"$ref": _REF.format(model=shape.__name__)}}
        for media_type, shape in ((JSON, of_json), (MULTIPART, of_form))
    }
    kinds = parts | {"dynamics": JSON, "include": JSON}
    content[MULTIPART]["encoding"] = {name: {"contentType": kind} for name, kind in kinds.items()}
    return {"requestBody": {"required": True, "description": description, "content": content}}


def also(*media_types: str) -> dict[int | str, dict[str, Any]]:
    """`responses` of a route whose answer comes in these types too."""
    binary = {"schema": {"type": "string", "format": "binary"}}
    return {200: {"content": dict.fromkeys(media_types, binary)}}


def sample_body() -> dict[str, Any]:
    """`openapi_extra` of the route that samples a memory."""
    return _body(
        (SampleRequest,),
        f"JSON, or a safetensors file with any of the tensors {_listed(SAMPLE_TENSORS)}. The "
        "entry `request` of its `__metadata__` holds the rest as JSON text, after the schema "
        f"{TensorSampleRequest.__name__}.",
    )


def store_body() -> dict[str, Any]:
    """`openapi_extra` of the route that stores a memory."""
    return _body(
        (StoreMemory, StoreSequences),
        f"JSON, or a safetensors file with the tensor {_listed(PATTERNS)} and the rest as JSON "
        "text in the entry `request` of its `__metadata__`.",
    )


def put_graph_body() -> dict[str, Any]:
    """`openapi_extra` of the route that stores a graph."""
    return _body(
        (StoreArrays, StoreRows),
        f"JSON, or a safetensors file with the tensors {_listed(TENSORS_OF_GRAPH)}, of which "
        "`edge_type` and `node_ids` may be left out. The entry `request` of its `__metadata__` "
        "holds `model` as JSON text. `node_ids` are numbers, or a list of names as JSON in bytes.",
    )


def update_body(shape: type[BaseModel]) -> dict[str, Any]:
    """`openapi_extra` of a route that changes a stored graph."""
    content = {JSON: {"schema": {"$ref": _REF.format(model=shape.__name__)}}}
    return {"requestBody": {"required": True, "content": content}}


def _body(shapes: tuple[type[BaseModel], ...], description: str) -> dict[str, Any]:
    refs = [{"$ref": _REF.format(model=shape.__name__)} for shape in shapes]
    return {
        "requestBody": {
            "required": True,
            "description": description,
            "content": {
                JSON: {"schema": {"oneOf": refs}},
                SAFETENSORS: {"schema": {"type": "string", "format": "binary"}},
            },
        }
    }


def jobs(
    failed: Callable[..., dict[int | str, dict[str, Any]]] = problems,
) -> dict[int | str, dict[str, Any]]:
    """`responses` of a route that computes, and answers with a job where that is preferred."""
    told = {
        "Location": {"description": "where the job is", "schema": _TEXT},
        "Preference-Applied": {"description": "`respond-async`", "schema": _TEXT},
    }
    description = "The request is kept as a job: only under the header `Prefer: respond-async`"
    accepted = {"description": description, "model": JobBody, "headers": told}
    return {202: accepted} | failed(409, 503)


def _listed(tensors: TensorSpecs) -> str:
    return ", ".join(
        f"`{name}` ({' | '.join(dtypes)}, {' or '.join(map(str, dims))}-dimensional)"
        for name, (dtypes, dims) in tensors.items()
    )


def install(app: FastAPI, settings: Settings) -> None:
    """Make `app` describe itself in full."""

    def describe() -> dict[str, Any]:
        if app.openapi_schema is None:
            document = get_openapi(
                title=app.title,
                version=app.version,
                description=app.description,
                routes=app.routes,
            )
            _, own = models_json_schema(
                [(model, "validation") for model in _OWN], ref_template=_REF
            )
            schemas = document.setdefault("components", {}).setdefault("schemas", {})
            for name, schema in own["$defs"].items():
                schemas.setdefault(name, schema)
            _drop_validation_errors(document)
            _describe_parameters(document, settings)
            _describe_keys(document, settings)
            for bound in schemas["Dynamics"]["properties"]["steps"]["anyOf"]:
                if bound.get("type") == "integer":
                    bound["maximum"] = settings.max_steps
            for request in (SampleRequest, TensorSampleRequest):
                steps = schemas[request.__name__]["properties"]["steps"]
                steps["maximum"] = settings.max_sample_steps
            _, several = schemas[SmilesRequest.__name__]["properties"]["smiles"]["anyOf"]
            for many in (several, schemas[GraphsRequest.__name__]["properties"]["graphs"]):
                many["maxItems"] = settings.max_graphs
            for request in (ClassifyImagesRequest, AnswerImagesRequest):
                _, several = schemas[request.__name__]["properties"]["image"]["anyOf"]
                several["maxItems"] = settings.max_images
            app.openapi_schema = document
        return app.openapi_schema

    app.openapi = describe  # type: ignore[method-assign]


def _timeout(settings: Settings) -> dict[str, Any]:
    most = [int(1e3 * seconds) for seconds in (settings.deadline_s, settings.job_deadline_s)]
    said = f"time there is for the answer, else 504 with the steps taken; a job's may be {most[1]}"
    schema = {"type": "integer", "minimum": 1, "maximum": max(most), "default": most[0]}
    return {"name": "timeout_ms", "in": "query", "description": said, "schema": schema}


def _describe_parameters(document: dict[str, Any], settings: Settings) -> None:
    """Of the operations that may answer with a job."""
    for path in document["paths"].values():
        for operation in path.values():
            if "202" in operation["responses"]:
                operation["parameters"] = (
                    operation.get("parameters", [])
                    + [
                        {"name": name, "in": "header", "description": said, "schema": schema}
                        for name, (said, schema) in _ASKED.items()
                    ]
                    + [_timeout(settings)]
                )
                operation["responses"]["200"]["headers"] = _TOLD


def _describe_keys(document: dict[str, Any], settings: Settings) -> None:
    """Every operation may ask for one, but those for probes."""
    said = "`python -m service key` makes keys; what each is for is said where they are kept"
    scheme = {"type": "http", "scheme": "bearer", "description": said}
    document["components"]["securitySchemes"] = {"key": scheme}
    document["security"] = [{"key": []}] if settings.keys else [{}, {"key": []}]
    for path, operations in document["paths"].items():
        for operation in operations.values():
            if path in PUBLIC_PATHS:
                operation["security"] = []
                continue
            told = faults if is_of_protocol(path) else problems
            for status, response in told(401, 403, 429).items():
                operation["responses"].setdefault(str(status), response)


def _drop_validation_errors(document: dict[str, Any]) -> None:
    """FastAPI promises its own 422 for any route with a parameter; none here can give it."""
    for name in ("HTTPValidationError", "ValidationError"):
        document["components"]["schemas"].pop(name, None)
    for path in document["paths"].values():
        for operation in path.values():
            told = operation["responses"].get("422", {}).get("content", {}).get(JSON, {})
            if told.get("schema", {}).get("$ref", "").endswith("HTTPValidationError"):
                del operation["responses"]["422"]
