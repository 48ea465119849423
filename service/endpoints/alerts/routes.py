"""GET /graphs/{id}/alerts: a page of alerts, or a stream of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Annotated, Any

import orjson
from fastapi import APIRouter, Depends, Header, Query, Request, Response
from fastapi.responses import StreamingResponse

from service.auth.keys import get_caller
from service.context import JSON_COST_FACTOR, AppContext, get_context
from service.endpoints.alerts.schemas import AlertList
from service.endpoints.common.api_docs import problems
from service.errors import Problem, make_problem
from service.http.negotiation import select_media_type
from service.http.sse import EVENTS, KEEPALIVE_COMMENT, SILENCE_S, event
from service.media_types import JSON
from service.storage.graphs import GraphStore, count_missed

router = APIRouter(tags=["graphs"])
_PAGE = 100
_MAX_DIGITS = 18  # what SQLite takes as an integer
_POLL_S = 1.0  # where other servers may record alerts too


@router.get(
    "/graphs/{id}/alerts",
    response_model=AlertList,
    summary="The alerts of a graph",
    responses=problems(404, 406, 422, 429, 500, 503)
    | {200: {"content": {EVENTS: {"schema": {"type": "string"}}}}},
)
async def list_alerts(
    id: str,
    request: Request,
    context: Annotated[AppContext, Depends(get_context)],
    after: Annotated[
        str | None,
        Query(
            max_length=64,
            description="`event_id` of an alert: those that follow it. By default "
            "all that are kept, the last 100,000",
        ),
    ] = None,
    limit: Annotated[int, Query(ge=1, le=1000, description="of a page in JSON")] = _PAGE,
    last_event_id: Annotated[str | None, Header(max_length=64)] = None,
) -> Response:
    """A page in JSON, or under `Accept: text/event-stream` a stream that goes on: `alert` for each
    alert, once, in the order in which they were raised.

    A stream that ends is continued by the header `Last-Event-ID`, as browsers send it. Where alerts
    in between are no longer kept, `missed` tells how many. If the graph is replaced, alerts begin
    anew.
    """
    graph = await context.graphs.get_metadata(id)
    if graph.model is None and graph.watch is None:
        detail = (
            "This graph raises no alerts. Store it anew with PUT /graphs/{id} and `alerts`: then "
            "its nodes are scored after each change."
        )
        raise make_problem("invalid-request", "/id", "not_allowed", detail)
    position = last_event_id or after
    number = _parse_position(position, graph.tag)
    if select_media_type(request, (JSON, EVENTS)) == EVENTS:
        key = get_caller(request.scope).name
        context.alert_streams.require_capacity(key)
        stream = _stream(context, id, graph.tag, number, key)
        return StreamingResponse(stream, media_type=EVENTS, headers={"cache-control": "no-store"})
    entries = await context.graphs.alerts.read(id, graph.tag, number, limit)
    weight = JSON_COST_FACTOR * sum(len(alert) for _, alert in entries)
    body = await context.offload_if_large(weight, _encode_page, graph.tag, number, entries)
    return Response(body, media_type=JSON)


def _encode_page(tag: str, number: int, entries: Sequence[tuple[int, bytes]]) -> bytes:
    """Return a page of alerts; `number` is that of the alert before them."""
    alerts = [name_alert(tag, *entry) for entry in entries]
    last = alerts[-1]["event_id"] if alerts else f"{tag}.{number}"
    return orjson.dumps({"alerts": alerts, "last_event_id": last})


def _parse_position(position: str | None, tag: str) -> int:
    """Return the number of the last alert that the client has; 0 if that is of another graph."""
    if not position:
        return 0
    of_graph, _, number = position.partition(".")
    if not (number.isascii() and number.isdecimal() and len(number) <= _MAX_DIGITS):
        rule = "Must be the `event_id` of an alert."
        raise make_problem("invalid-request", "/after", "not_allowed", rule)
    return int(number) if of_graph == tag else 0


async def _stream(
    context: AppContext, id: str, tag: str, number: int, key: str
) -> AsyncIterator[bytes]:
    graphs, streams = context.graphs, context.alert_streams
    with streams.open(key) as closing:
        raised = graphs.alerts.watch(id)
        yield KEEPALIVE_COMMENT  # the client gets the headers now
        silent_s = 0.0
        while not closing.is_set():
            raised.clear()
            try:
                entries = await graphs.alerts.read(id, tag, number, _PAGE)
            except Problem:
                return  # the client connects again, and is answered then
            for entry in entries:
                if number and (missed := count_missed(number, entry[0])):
                    yield event("missed", orjson.dumps({"missed": missed}))
                number = entry[0]
                alert = name_alert(tag, *entry)
                yield f"id: {alert['event_id']}\n".encode() + event("alert", orjson.dumps(alert))
                silent_s = 0.0
            if entries:
                continue
            wait_s = _POLL_S if graphs.is_shared else SILENCE_S
            await _wait_for_any(raised, closing, seconds=wait_s)
            silent_s += wait_s
            if (is_silent := silent_s >= SILENCE_S) or raised.is_set():
                # Alerts were raised, perhaps by the graph that took the place of this one.
                if not await _is_current(graphs, id, tag):
                    return
                if is_silent:
                    silent_s = 0.0
                    yield KEEPALIVE_COMMENT


async def _is_current(graphs: GraphStore, id: str, tag: str) -> bool:
    try:
        return (await graphs.get_metadata(id)).tag == tag
    except Problem:
        return False


async def _wait_for_any(*events: asyncio.Event, seconds: float) -> None:
    waits = [asyncio.ensure_future(each.wait()) for each in events]
    try:
        await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()


def name_alert(tag: str, number: int, alert: bytes) -> dict[str, Any]:
    """Return a stored alert as a client gets it."""
    return orjson.loads(alert) | {"event_id": f"{tag}.{number}"}
