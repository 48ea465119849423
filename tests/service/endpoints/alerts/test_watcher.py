"""What cannot be scored now, or at all, and what goes on beside it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from shutil import copytree
from typing import Any

import orjson
import pytest

from service.context import AppContext
from service.endpoints.alerts.nodes import NodeWatcher
from service.endpoints.graphs.parse import parse_graph, parse_update
from service.endpoints.graphs.schemas import GraphUpdate
from service.media_types import JSON
from service.settings import Settings
from service.storage.graphs import description
from tests.support.watched_graphs import MODEL, MirroredGraph


@asynccontextmanager
async def watching(checkpoints: Path, folder: Path, **settings: Any) -> AsyncIterator[AppContext]:
    given = {"checkpoints": checkpoints, "graph_store": folder / "g.sqlite", "threads": 1}
    context = AppContext.from_settings(Settings(**given | settings))
    await asyncio.to_thread(context.load)
    watcher = asyncio.create_task(NodeWatcher(context).run())
    try:
        yield context
    finally:
        watcher.cancel()
        with suppress(asyncio.CancelledError):
            await watcher
        await asyncio.to_thread(context.graphs.close)
        await asyncio.to_thread(context.close)


async def put(context: AppContext, body: dict[str, Any]) -> None:
    def parse() -> Any:
        return parse_graph(orjson.dumps(body), JSON, context.registry, context.settings)

    await context.graphs.put("g", *await context.graphs.build(parse))


async def change(context: AppContext, body: dict[str, Any]) -> None:
    schema = (await context.graphs.get_nodes_and_edges("g")).schema
    update = parse_update(orjson.dumps(body), schema, GraphUpdate.model_fields)
    await context.graphs.update("g", schema, update)


async def list_alerts(context: AppContext) -> list[dict[str, Any]]:
    head = await context.graphs.get_metadata("g")
    return [
        orjson.loads(alert) for _, alert in await context.graphs.alerts.read("g", head.tag, 0, 1000)
    ]


async def is_scored(context: AppContext) -> bool:
    head = await context.graphs.get_metadata("g")
    return await context.graphs.alerts.find_scored_revision("g", head) == head.revision


async def wait(is_true: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(120):
        while not await is_true():
            await asyncio.sleep(0.02)


def test_a_change_is_scored_once_means_include_it(
    checkpoints: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mirror = MirroredGraph(checkpoints, seed=11)
    hub = min(mirror.edges)[0]

    async def work() -> None:
        async with watching(checkpoints, tmp_path) as context:
            await put(context, mirror.to_body())
            await wait(lambda: is_scored(context))
            expected = mirror.raise_alerts()
            # Whatever depends on a change is too much from now on, and computed after a pause.
            monkeypatch.setattr(description, "MAX_EDGES", -1)
            monkeypatch.setattr(description, "PAUSE_FACTOR", 1e9)
            await change(context, mirror.touch(hub))  # which is computed, and begins the pause
            await wait(lambda: is_scored(context))
            expected |= mirror.raise_alerts()
            before = await list_alerts(context)
            await change(context, mirror.touch(hub))
            await asyncio.sleep(2.5)
            assert not await is_scored(context)
            assert await list_alerts(context) == before
            graph = await context.graphs.get_nodes_and_edges("g")
            for each in graph._descriptions.values():
                each._due = 0.0  # the pause ends
            await wait(lambda: is_scored(context))
            later = {alert["node_id"] for alert in (await list_alerts(context))[len(before) :]}
            assert later == mirror.raise_alerts().keys()
            assert len(before) >= len(expected)

    asyncio.run(work())


def test_a_node_with_too_much_around_it_is_left_out(
    checkpoints: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mirror = MirroredGraph(checkpoints, seed=12)
    hub, *others = mirror.nodes
    mirror.edges = {(hub, other, "pays") for other in others[:6]}
    body = mirror.to_body(threshold=0.0, max_neighbors=100)

    async def work() -> None:
        async with watching(checkpoints, tmp_path, max_neighborhood_nodes=4) as context:
            await put(context, body)
            await wait(lambda: is_scored(context))
            raised = {alert["node_id"] for alert in await list_alerts(context)}
            assert raised == set(others)

    asyncio.run(work())
    assert "nodes refused" in capsys.readouterr().out


def test_a_graph_whose_model_is_gone_waits_for_it(
    checkpoints: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mirror = MirroredGraph(checkpoints, seed=13)
    other = tmp_path / "checkpoints"
    copytree(checkpoints / "et-small", other / "et-small")

    async def work() -> None:
        async with watching(checkpoints, tmp_path) as context:
            await put(context, mirror.to_body())
            await wait(lambda: is_scored(context))
        async with watching(other, tmp_path) as context:
            await change(context, mirror.change())
            failing = context.metrics.failing_graphs
            await wait(lambda: asyncio.sleep(0, failing._value.get() == 1))
            assert not await is_scored(context)
        async with watching(checkpoints, tmp_path) as context:
            await wait(lambda: is_scored(context))

    asyncio.run(work())
    output = capsys.readouterr().out
    assert output.count("nodes not scored") == 1
    assert MODEL in output
