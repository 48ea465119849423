"""Post-processing of the OpenAPI document: what holds for all routes, and limits from settings.

What one route takes and returns stands beside the route, made by `endpoints.common.api_docs`.
"""

from __future__ import annotations

from typing import Annotated, Any

import orjson
from fastapi import Depends, FastAPI, Response
from fastapi.openapi.utils import get_openapi
from pydantic.json_schema import models_json_schema

from service.auth.middleware import PUBLIC_PATHS
from service.context import AppContext, get_context
from service.endpoints.classify.schemas import GraphsRequest, SmilesRequest
from service.endpoints.common.api_docs import DOCUMENTED_MODELS, REF, problems
from service.endpoints.images.schemas import AnswerImagesRequest, ClassifyImagesRequest
from service.endpoints.open_inference.errors import is_of_protocol
from service.endpoints.open_inference.schemas import protocol_problems
from service.endpoints.openapi_examples import add_examples
from service.endpoints.sample.schemas import SampleRequest, TensorSampleRequest
from service.media_types import JSON
from service.settings import Settings

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


def install(app: FastAPI, settings: Settings) -> None:
    """Make `app` describe itself in full, at /openapi.json."""

    def describe() -> dict[str, Any]:
        if app.openapi_schema is None:
            document = get_openapi(
                title=app.title,
                version=app.version,
                description=app.description,
                routes=app.routes,
            )
            _, own = models_json_schema(
                [(model, "validation") for model in DOCUMENTED_MODELS], ref_template=REF
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

    async def show(context: Annotated[AppContext, Depends(get_context)]) -> Response:
        document = describe()
        add_examples(document, context)  # of the models that the key may use
        return Response(orjson.dumps(document), media_type=JSON)

    app.add_api_route("/openapi.json", show, include_in_schema=False)

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
            of_route = protocol_problems if is_of_protocol(path) else problems
            for status, response in of_route(401, 403, 429).items():
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
