"""Stores of jobs, in SQLite and in Redis."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from service.storage.jobs.base import JobStore
from service.storage.jobs.redis import RedisJobStore
from service.storage.jobs.sqlite import SqliteJobStore
from service.storage.redis_client import RedisClient
from tests.support.job_stores import LIMITS

OpenFile = Callable[..., SqliteJobStore]


@pytest.fixture
def open_file(tmp_path: Path) -> Iterator[OpenFile]:
    """Opens stores on one file, with limits that may differ from `LIMITS`, and closes them."""
    stores: list[SqliteJobStore] = []

    def open_one(**limits: float) -> SqliteJobStore:
        store = SqliteJobStore(tmp_path / "var" / "jobs.sqlite", replace(LIMITS, **limits))
        stores.append(store)
        store.open()
        return store

    yield open_one
    for store in stores:
        store.close()


@pytest.fixture(params=["sqlite", "redis"])
def open_store(request: pytest.FixtureRequest) -> Iterator[Callable[..., JobStore]]:
    """Opens stores of one kind, one after the other, as `open_file` does."""
    if request.param == "sqlite":
        yield request.getfixturevalue("open_file")
        return
    link = RedisClient(request.getfixturevalue("redis_server")().url, 5.0)

    def open_one(**limits: float) -> RedisJobStore:
        store = RedisJobStore(link, replace(LIMITS, **limits))
        store.open()
        return store

    yield open_one
    link.blocking_client.close()
