"""Fixtures of the tests of storage."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.memory_peers import Peer, file_of
from tests.support.redis_server import RedisServer


@pytest.fixture
def peer(tmp_path: Path) -> Callable[..., Peer]:
    """The server of this name on a Redis; again, it is the same one started anew."""
    ships = tmp_path / "ships"
    ships.mkdir()
    (ships / "shipped.safetensors").write_bytes(file_of(99))

    def start(redis: RedisServer, name: str, max_count: int = 9) -> Peer:
        return Peer(redis, tmp_path / name, max_count)

    return start
