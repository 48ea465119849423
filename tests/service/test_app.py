"""The app by itself: what it does where it cannot load, and where it has no place."""

from __future__ import annotations

import asyncio
import threading
import zlib
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI, Response

from service.app import create_app
from service.registry.registry import Registry
from service.settings import Settings
from service.storage.memories import MemoryStore
from tests.service.endpoints.anomaly.test_bad_input import check


def _app(folder: Path) -> FastAPI:
    settings = Settings(
        checkpoints=folder, memory_store=folder / "memories", job_store=folder / "jobs.sqlite"
    )
    return create_app(settings)


def test_what_fails_at_the_start_is_told_and_the_end_is_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(self: MemoryStore) -> None:
        raise RuntimeError("broken")

    monkeypatch.setattr(MemoryStore, "prepare", broken)
    app = _app(tmp_path)

    async def play() -> None:
        async with app.router.lifespan_context(app):
            while not app.state.context.registry.loading_finished:
                await asyncio.sleep(0.01)

    asyncio.run(asyncio.wait_for(play(), 30))
    assert "loading failed" in capsys.readouterr().out
    with pytest.raises(RuntimeError, match="shutdown"):
        asyncio.run(app.state.context.run_on_codec(int))


def test_pictures_of_a_model_take_a_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    app = _app(tmp_path)
    engine = app.state.context.engine
    monkeypatch.setattr(Registry, "get", lambda self, name: None)

    async def ask() -> httpx.Response:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            return await client.get("/models/any/memories")

    with ExitStack() as held:
        for _ in range(engine.admission.capacity):
            held.enter_context(engine.admission.place())
        check(asyncio.run(ask()), 429, "queue-full")
    app.state.context.close()


def test_large_responses_are_compressed_beside_the_event_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app, threads, compressobj = _app(tmp_path), list[str](), zlib.compressobj
    for name, size in (("small", 1 << 15), ("large", 1 << 20)):
        app.add_api_route(f"/{name}", lambda size=size: Response(b"a" * size), response_model=None)

    def spy(level: int, method: int, wbits: int) -> object:
        threads.append(threading.current_thread().name)
        return compressobj(level, method, wbits)

    monkeypatch.setattr(zlib, "compressobj", spy)

    async def ask(path: str) -> httpx.Response:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            return await client.get(path)

    for path in ("/small", "/large"):
        answer = asyncio.run(ask(path))
        assert answer.headers["content-encoding"] == "gzip"
        assert set(answer.content) == set(b"a")
    assert threads[0] == "MainThread"
    assert threads[1] != "MainThread"
    app.state.context.close()
