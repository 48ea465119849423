"""Stores of graphs, in SQLite and in Redis."""

from __future__ import annotations

import pytest

from tests.support.graph_stores import ROOM, in_redis, in_sqlite


@pytest.fixture(params=["sqlite", "redis"])
def opened(request, tmp_path):
    """Opens a store, the same one each time."""
    if request.param == "sqlite":
        return lambda room=ROOM, memory=1 << 30: in_sqlite(tmp_path / "g.sqlite", room, memory)
    server = request.getfixturevalue("redis_server")()
    return lambda room=ROOM, memory=1 << 30: in_redis(server, room, memory)
