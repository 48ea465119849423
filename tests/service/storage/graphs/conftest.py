"""Stores of graphs, in SQLite and in Redis."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.support.graph_stores import ROOM, in_redis, in_sqlite
from tests.support.redis_server import RedisServer


@pytest.fixture(params=["sqlite", "redis"])
def opened(request, tmp_path):
    """Opens a store, the same one each time."""
    if request.param == "sqlite":
        return lambda room=ROOM, memory=1 << 30: in_sqlite(tmp_path / "g.sqlite", room, memory)
    server = request.getfixturevalue("redis_server")()
    return lambda room=ROOM, memory=1 << 30: in_redis(server, room, memory)


@pytest.fixture
def saved(redis_server: Callable[..., RedisServer]) -> RedisServer:
    """A Redis that has on disk what was saved, and no more."""
    return redis_server("--appendonly", "no")
