"""Load, replace and drop models while the server runs: on a port of its own."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Annotated

from fastapi import APIRouter, Depends, Request, Response
from pydantic import BaseModel, Field

from models.manifest import CheckpointError
from service.context import AppContext, get_context
from service.endpoints.common.api_docs import problems
from service.errors import make_problem
from service.observability.request_state import get_state
from service.registry.handles import Classifier, Model
from service.registry.model_ref import ModelRef

_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")

router = APIRouter(tags=["admin"])


class LoadedModel(ModelRef):
    """A loaded model."""

    bytes: int = Field(description="bytes of its weights")
    requests: int = Field(description="running and waiting requests, including jobs")


class LoadedModels(BaseModel):
    models: list[LoadedModel]


@router.get("/models", summary="What is loaded", responses=problems(422, 500, 503))
async def loaded_models(context: Annotated[AppContext, Depends(get_context)]) -> LoadedModels:
    context.registry.require_loaded()
    return LoadedModels(
        models=[_describe_model(model, context) for model in context.registry.list_models()]
    )


@router.put(
    "/models/{name}",
    summary="Load a checkpoint, or its new version",
    responses=problems(404, 422, 500, 503),
)
async def load_model(
    name: str, request: Request, context: Annotated[AppContext, Depends(get_context)]
) -> LoadedModel:
    """Load the folder `name` of `BASIN_CHECKPOINTS`, verify it and run it once. Only then it
    replaces the model of that name; running requests finish with the old one."""
    context.registry.require_loaded()
    try:
        path = _folder(name, context.settings.checkpoints)
        model = await asyncio.to_thread(context.registry.replace, path, name)
    except CheckpointError as error:
        raise make_problem("invalid-checkpoint", "", "refused", str(error)) from None
    get_state(request.scope).model = name
    if isinstance(model, Classifier) and model.reads_smiles:
        await asyncio.to_thread(context.smiles_pool.start)
    context.publish_models()
    return _describe_model(model, context)


@router.delete(
    "/models/{name}",
    summary="Drop a model",
    status_code=204,
    responses=problems(404, 422, 500, 503),
)
async def drop_model(
    name: str, request: Request, context: Annotated[AppContext, Depends(get_context)]
) -> Response:
    """Running requests finish with the model; later ones get 404."""
    context.registry.drop(name)
    get_state(request.scope).model = name
    context.publish_models()
    return Response(status_code=204)


def _folder(name: str, checkpoints: Path) -> Path:
    """Return the folder of a checkpoint.

    Raises:
        Problem: there is no such checkpoint.
    """
    path = checkpoints / name
    if not _NAME.fullmatch(name) or not path.is_dir():
        rule = "No such folder in BASIN_CHECKPOINTS. Copy the checkpoint there first."
        raise make_problem("unknown-model", "", "unknown_model", rule)
    return path


def _describe_model(model: Model, context: AppContext) -> LoadedModel:
    requests = context.engine.admission.pending(model.name)
    return LoadedModel(**model.ref.model_dump(), bytes=model.size_bytes, requests=requests)
