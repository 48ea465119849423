"""GET /, GET /docs and GET /assets/{path}"""

from __future__ import annotations

import asyncio
from typing import Annotated

from fastapi import APIRouter, Depends, Request, Response
from pydantic import BaseModel, Field

from service.context import AppContext, get_context
from service.endpoints.common.api_docs import problems
from service.endpoints.page.assets import load_assets
from service.errors import Problem
from service.http.negotiation import select_media_type
from service.media_types import HTML, JSON

router = APIRouter(tags=["page"])
_LINKS = {
    "docs": "/docs",
    "openapi": "/openapi.json",
    "models": "/models",
    "ready": "/health/ready",
    "metrics": "/metrics",
}
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


class Index(BaseModel):
    """What this server is."""

    name: str
    version: str
    links: dict[str, str] = Field(description="paths to go on with")


@router.get(
    "/",
    summary="What this server is, and a page to try it",
    response_model=Index,
    responses={
        200: {"content": {HTML: {"schema": {"type": "string"}}}},
        **problems(406, 500),
    },
)
async def show_index(
    request: Request, context: Annotated[AppContext, Depends(get_context)]
) -> Response:
    """The page where `Accept` prefers HTML, as browsers do; JSON else."""
    has_page = context.settings.ui
    if has_page and select_media_type(request, (JSON, HTML)) == HTML:
        return await _respond_with_asset(request, "index.html")
    index = Index(name=request.app.title, version=request.app.version, links=_LINKS)
    return Response(index.model_dump_json(), media_type=JSON, headers={"vary": "accept"})


@router.get("/docs", include_in_schema=False)
async def show_docs(request: Request) -> Response:
    return await _respond_with_asset(request, "docs.html")


@router.get("/assets/{path:path}", include_in_schema=False)
async def get_asset(path: str, request: Request) -> Response:
    return await _respond_with_asset(request, path)


async def _respond_with_asset(request: Request, path: str) -> Response:
    """
    Raises:
        Problem: there is no such file.
    """
    assets = await asyncio.to_thread(load_assets)  # the first time it takes a tenth of a second
    if (asset := assets.get(path)) is None:
        raise Problem("not-found", "The page has no such file. GET / is the page.")
    headers = {
        "cache-control": "no-cache",  # asked for again with the tag, which costs no body
        "content-security-policy": _POLICY,
        "etag": asset.etag,
        "vary": "accept, accept-encoding",
    }
    if asset.etag in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    content = asset.content
    if "gzip" in request.headers.get("accept-encoding", ""):
        content, headers["content-encoding"] = asset.compressed, "gzip"
    return Response(content, media_type=asset.media_type, headers=headers)
