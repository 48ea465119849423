"""What a process needs before it listens."""

from __future__ import annotations

import resource

import pytest
from structlog.testing import capture_logs

from service.http import server
from service.http.server import prepare_process, settings_or_exit, warn_of_unknown_settings
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
