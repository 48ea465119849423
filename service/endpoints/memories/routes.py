"""GET /memories and PUT, GET and DELETE /memories/{id}"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from io import BufferedReader
from typing import Annotated

from fastapi import APIRouter, Depends, Request, Response
from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from models.memories import MemoryCard, dump_memory
from service.context import AppContext, get_context
from service.endpoints.common.api_docs import (
    binary_response,
    json_or_tensors_body,
    list_tensors,
    problems,
)
from service.endpoints.common.memory_body import PATTERNS
from service.endpoints.memories.parse import parse_store
from service.endpoints.memories.schemas import MemoryBody, MemoryList, StoreMemory, StoreSequences
from service.http.body import require_media_type, require_small
from service.http.cancellation import run_until_deadline_or_disconnect
from service.http.negotiation import select_media_type
from service.media_types import JSON, SAFETENSORS
from service.storage.memories import MemoryStore

router = APIRouter(tags=["memories"])
_PART = 1 << 16  # bytes of a file that are read at a time
_BODY = json_or_tensors_body(
    f"JSON, or a safetensors file with the tensor {list_tensors(PATTERNS)} and the rest as JSON "
    "text in the entry `request` of its `__metadata__`.",
    StoreMemory,
    StoreSequences,
)


@router.get(
    "/memories",
    response_model=MemoryList,
    summary="The memories that are kept",
    responses=problems(500, 503),
)
async def list_memories(context: Annotated[AppContext, Depends(get_context)]) -> Response:
    def encode() -> str:
        cards = context.memories.list_cards()
        memories = [_body(name, card) for name, card in cards.items()]
        return MemoryList(memories=memories).model_dump_json()

    return Response(await asyncio.to_thread(encode), media_type=JSON)  # there may be thousands


@router.put(
    "/memories/{id}",
    summary="Store a memory, or replace one",
    response_model=MemoryBody,
    responses=problems(400, 408, 409, 413, 415, 422, 429, 500, 503, 504, 507)
    | {201: {"description": "Stored; there was none", "model": MemoryBody}},
    openapi_extra=_BODY,
)
async def store_memory(
    id: str, request: Request, context: Annotated[AppContext, Depends(get_context)]
) -> Response:
    """The answer is 201 where there was none of this id, and 200 where one was replaced."""
    media_type = require_media_type(request, (JSON, SAFETENSORS), f"{JSON} and {SAFETENSORS}")
    await asyncio.to_thread(context.memories.require_writable_id, id)
    settings = context.settings

    async def parsed() -> tuple[MemoryCard, bytes]:
        return await context.run_on_codec(_file, body, media_type)

    async with context.body_reader.read(request, settings.body_timeout_s) as body:
        require_small(body, media_type)
        card, raw = await run_until_deadline_or_disconnect(
            parsed(), request.receive, settings.deadline_s
        )
        new = await asyncio.to_thread(context.memories.put, id, raw)  # brief, so never cut off
    text = _body(id, card).model_dump_json()
    return Response(text, 201 if new else 200, media_type=JSON)


@router.get(
    "/memories/{id}",
    summary="What a memory is, or the memory itself",
    response_model=MemoryBody,
    responses=problems(404, 406, 500, 503) | binary_response(SAFETENSORS),
)
async def describe_memory(
    id: str, request: Request, context: Annotated[AppContext, Depends(get_context)]
) -> Response:
    """Its card as JSON, or the file with its items under `Accept: application/vnd.safetensors`."""
    form = select_media_type(request, (JSON, SAFETENSORS))
    if form == SAFETENSORS:
        return _Opened(await asyncio.to_thread(context.memories.open, id), SAFETENSORS)
    card = await asyncio.to_thread(_read_intact_card, context.memories, id)
    return Response(_body(id, card).model_dump_json(), media_type=JSON)


def _read_intact_card(memories: MemoryStore, id: str) -> MemoryCard:
    with memories.open(id) as file:
        return memories.read_card(file)


@router.delete(
    "/memories/{id}",
    summary="Forget a memory",
    status_code=204,
    responses=problems(404, 409, 422, 500, 503),
)
async def forget_memory(id: str, context: Annotated[AppContext, Depends(get_context)]) -> Response:
    await asyncio.to_thread(context.memories.delete, id)
    return Response(status_code=204)


class _Opened(StreamingResponse):
    """Streams an open file, which stays the same when the file is replaced meanwhile.

    A FileResponse would send the length of one file and the content of the next.
    """

    def __init__(self, file: BufferedReader, media_type: str) -> None:
        length = {"content-length": str(os.fstat(file.fileno()).st_size)}
        super().__init__(_parts(file), headers=length, media_type=media_type)
        self._file = file

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._file:
            await super().__call__(scope, receive, send)


def _parts(file: BufferedReader) -> Iterator[bytes]:
    while part := file.read(_PART):
        yield part


def _file(body: bytes, media_type: str) -> tuple[MemoryCard, bytes]:
    """The memory that a body holds, as it is stored."""
    memory, items, described = parse_store(body, media_type)
    card = MemoryCard.from_memory(memory, items, described.licence, described.note)
    return card, dump_memory(items, card)


def _body(name: str, card: MemoryCard) -> MemoryBody:
    return MemoryBody(id=name, **card.model_dump())
