"""GET /models and GET /models/{name}"""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends

from service.context import AppContext, get_context
from service.endpoints.common.api_docs import problems
from service.endpoints.models.describe import ModelDetail, describe_model, summarize_model
from service.endpoints.models.schemas import ModelList

router = APIRouter(tags=["models"])


@router.get("/models", summary="The models that are served", responses=problems(500, 503))
async def list_models(context: Annotated[AppContext, Depends(get_context)]) -> ModelList:
    settings = context.settings
    return ModelList(models=[summarize_model(model, settings) for model in context.registry])


@router.get(
    "/models/{name}",
    summary="Knobs, features, metrics and limits of a model",
    responses=problems(404, 500, 503),
)
async def get_model(name: str, context: Annotated[AppContext, Depends(get_context)]) -> ModelDetail:
    return describe_model(context.registry.get(name), context.settings)
