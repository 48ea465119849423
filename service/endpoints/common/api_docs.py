"""OpenAPI fragments that FastAPI cannot infer: bodies that routes parse, problems, jobs."""

from __future__ import annotations

from collections.abc import Callable
from http import HTTPStatus
from typing import Any

from pydantic import BaseModel

from service.endpoints.common.schemas import JobBody, ProblemDocument
from service.errors import MEDIA_TYPE
from service.media_types import JSON, MULTIPART, SAFETENSORS
from service.validation.safetensors_body import TensorSpecs

REF = "#/components/schemas/{model}"
IMAGE_TYPES = "image/png, image/jpeg, image/webp"
DOCUMENTED_MODELS: dict[type[BaseModel], None] = {}
"""Models that some route refers to by name; `service.endpoints.openapi` adds their schemas."""

Responses = dict[int | str, dict[str, Any]]


def schema_name(model: type[BaseModel]) -> str:
    """Name of the schema of `model`, which becomes part of the document."""
    DOCUMENTED_MODELS[model] = None
    return model.__name__


def schema_ref(model: type[BaseModel]) -> dict[str, str]:
    """Reference to the schema of `model`."""
    return {"$ref": REF.format(model=schema_name(model))}


def problems(*statuses: int) -> Responses:
    """`responses` of a route that may answer with these problems."""
    content = {MEDIA_TYPE: {"schema": schema_ref(ProblemDocument)}}
    return {
        status: {"description": HTTPStatus(status).phrase, "content": content}
        for status in statuses
    }


def binary_response(*media_types: str) -> Responses:
    """`responses` of a route that also answers in these types."""
    binary = {"schema": {"type": "string", "format": "binary"}}
    return {200: {"content": dict.fromkeys(media_types, binary)}}


def job_responses(failed: Callable[..., Responses] = problems) -> Responses:
    """`responses` of a route that answers with a job where the client prefers that."""
    text = {"type": "string"}
    headers = {
        "Location": {"description": "where the job is", "schema": text},
        "Preference-Applied": {"description": "`respond-async`", "schema": text},
    }
    description = "The request is kept as a job: only under the header `Prefer: respond-async`"
    accepted = {"description": description, "model": JobBody, "headers": headers}
    return {202: accepted} | failed(409, 503)


def json_body(model: type[BaseModel]) -> dict[str, Any]:
    """`openapi_extra` of a route that takes JSON alone."""
    content = {JSON: {"schema": schema_ref(model)}}
    return {"requestBody": {"required": True, "content": content}}


def json_or_tensors_body(description: str, *models: type[BaseModel]) -> dict[str, Any]:
    """`openapi_extra` of a route that takes JSON after one of `models`, or a safetensors file."""
    content = {
        JSON: {"schema": {"oneOf": [schema_ref(model) for model in models]}},
        SAFETENSORS: {"schema": {"type": "string", "format": "binary"}},
    }
    return {"requestBody": {"required": True, "description": description, "content": content}}


def json_or_form_body(
    description: str, of_json: type[BaseModel], of_form: type[BaseModel], parts: dict[str, str]
) -> dict[str, Any]:
    """`openapi_extra` of a route that takes JSON, or a form with `parts` of these media types."""
    content: dict[str, Any] = {
        JSON: {"schema": schema_ref(of_json)},
        MULTIPART: {"schema": schema_ref(of_form)},
    }
    kinds = parts | {"dynamics": JSON, "include": JSON}
    content[MULTIPART]["encoding"] = {name: {"contentType": kind} for name, kind in kinds.items()}
    return {"requestBody": {"required": True, "description": description, "content": content}}


def list_tensors(tensors: TensorSpecs) -> str:
    """`name` (types, dimensions) of each tensor."""
    return ", ".join(
        f"`{name}` ({' | '.join(dtypes)}, {' or '.join(map(str, dims))}-dimensional)"
        for name, (dtypes, dims) in tensors.items()
    )
