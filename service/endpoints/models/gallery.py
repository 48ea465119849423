"""GET /models/{name}/memories"""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request, Response

from models.interpret.prototypes import list_galleries
from service.auth.keys import get_caller
from service.context import AppContext, get_context
from service.endpoints.common.api_docs import binary_response, problems
from service.endpoints.models.schemas import GalleryBody
from service.errors import make_problem
from service.http.negotiation import select_media_type
from service.imaging.encode import embed_json, encode_png, make_grid
from service.media_types import JSON, PNG
from service.observability.request_state import get_state
from service.registry.handles import Model
from service.validation.arrays import join_names

VIEWS = ("memories", "attention", "positions")

router = APIRouter(tags=["models"])


@router.get(
    "/models/{name}/memories",
    response_model=GalleryBody,
    summary="What a model has learned, as an image",
    responses=problems(404, 406, 422, 429, 500, 503) | binary_response(PNG),
)
async def show_memories(
    name: str,
    request: Request,
    context: Annotated[AppContext, Depends(get_context)],
    show: Annotated[
        str,
        Query(
            description="`memories` of the Hopfield network, `attention` (rows of its queries and "
            "keys), or `positions` (the cosine similarity of each to all, or the "
            "bias of each offset between two)",
            json_schema_extra={"enum": list(VIEWS)},
        ),
    ] = "memories",
) -> Response:
    """Return a PNG of tiles, or its description as JSON, by the Accept header; the PNG contains the
    description in its text chunk `basin`.

    Memories and attention of an image completer are decoded like tokens (Energy Transformer,
    figures 2, 5 and 6). Models that classify images or answer questions have no decoder: their
    attractors are shown as the patches with the nearest embedding, which is only a hint.
    """
    form = select_media_type(request, (PNG, JSON))
    if show not in VIEWS:
        rule = f"`show` must be one of {join_names(VIEWS)}."
        raise make_problem("invalid-request", "/show", "not_allowed", rule)
    model = context.registry.get(name)
    key = get_caller(request.scope).name
    with context.engine.admission.place(key):  # it takes a thread for as long as a small answer
        request_id = get_state(request.scope).request_id
        return await context.run_on_codec(_shown, model, show, form, request_id)


def _shown(model: Model[Any], show: str, form: str, request_id: str) -> Response:
    views = list_galleries(model.network)
    if show not in views:
        rule = (
            (f"This model has no such image. Its values of `show` are {join_names(list(views))}.")
            if views
            else "This model does not read images, so it has none to show."
        )
        raise make_problem("nothing-to-show", "/show", "nothing_to_show", rule)
    found = views[show]()
    *several, height, width, channels = found.tiles.shape
    tiles = found.tiles.reshape(-1, height, width, channels)
    told = GalleryBody(
        model=model.ref,
        show=show,
        axes=list(found.axes),
        shape=several,
        tile=(height, width, channels),
        tiles=len(tiles),
        columns=found.columns,
        scale=found.scale,
        minimum=float(tiles.min()),
        maximum=float(tiles.max()),
        request_id=request_id,
    )
    if form == JSON:
        return Response(told.model_dump_json(), media_type=JSON)
    pixels = tiles[..., 0] if channels == 1 else tiles
    image = embed_json(
        encode_png(make_grid(pixels, found.columns)), told.model_dump_json().encode()
    )
    return Response(image, media_type=PNG)
