"""What a process needs before it listens."""

from __future__ import annotations

import asyncio
import resource
import socket

import httpx
import pytest
import uvicorn
from fastapi import FastAPI
from structlog.testing import capture_logs

from service.http import server
from service.http.server import (
    SecondaryPort,
    prepare_process,
    settings_or_exit,
    warn_of_unknown_settings,
)
from service.settings import Settings


def test_invalid_settings_end_the_process_without_their_values(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("BASIN_QUEUE_SIZE", "s3cret")
    with pytest.raises(SystemExit) as exit_:
        settings_or_exit()
    assert "BASIN_QUEUE_SIZE" in str(exit_.value)
    assert "s3cret" not in str(exit_.value)


def test_connections_fit_into_the_open_file_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = [(256, 512)]
    monkeypatch.setattr(server.gc, "set_threshold", lambda *_: None)
    monkeypatch.setattr(server.resource, "getrlimit", lambda _: limits[-1])
    monkeypatch.setattr(server.resource, "setrlimit", lambda _, both: limits.append(both))
    settings = Settings(max_connections=1000)
    assert prepare_process(settings).max_connections == 512 - 128
    assert limits[-1] == (512, 512)  # raised as far as it goes


def test_a_limit_that_suffices_changes_no_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server.gc, "set_threshold", lambda *_: None)
    monkeypatch.setattr(
        server.resource, "getrlimit", lambda _: (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
    )
    monkeypatch.setattr(server.resource, "setrlimit", lambda *_: None)
    settings = Settings(max_connections=1000)
    assert prepare_process(settings).max_connections == 1000


def test_a_misspelt_setting_is_logged_with_the_nearest_one() -> None:
    with capture_logs() as logs:
        warn_of_unknown_settings(["BASIN_PRT", "BASIN_PORT", "BASIN_URL", "PORT", "BASIN_ZZZZZZ"])
    assert [(log["name"], log["nearest"]) for log in logs] == [
        ("BASIN_PRT", "BASIN_PORT"),
        ("BASIN_ZZZZZZ", None),
    ]


def test_a_port_that_has_ended_can_be_served_again() -> None:
    async def play() -> None:
        app = FastAPI()

        @app.get("/")
        def answer() -> str:
            return "yes"

        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            number = free.getsockname()[1]
        config = uvicorn.Config(app, "127.0.0.1", number, log_config=None)
        port = SecondaryPort(config)
        assert port.address == ("127.0.0.1", number)
        async with httpx.AsyncClient() as client:
            for _ in range(2):
                running = asyncio.create_task(port.run())
                await asyncio.sleep(0)
                while not port._server.started:
                    await asyncio.sleep(0.01)
                answered = await client.get(f"http://127.0.0.1:{number}/")
                assert answered.json() == "yes"
                port._server.should_exit = True  # by itself
                await running
            running = asyncio.create_task(port.run())
            await asyncio.sleep(0)
            while not port._server.started:
                await asyncio.sleep(0.01)
            port.stop()
            await running
            assert port.is_stopping

    asyncio.run(asyncio.wait_for(play(), 30))
