"""The memories of servers that share a Redis, and what may happen to it."""

from __future__ import annotations

import asyncio
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from models.memories import Memory, MemoryCard, dump_memory, load_memory
from service.errors import Problem
from service.observability.redis_metrics import RedisEvent
from service.storage.memories_redis import RedisMemoryStore
from service.storage.redis_client import RedisClient
from tests.support.redis_server import RedisServer


def file_of(seed: int) -> bytes:
    items = np.random.default_rng(seed).standard_normal((20, 6)).astype(np.float32)
    return dump_memory(items, MemoryCard.from_memory(Memory.from_items("vectors", items), items))


def card_of(seed: int) -> MemoryCard:
    return load_memory(file_of(seed))[0]


def open_memory_store(link: RedisClient, folder: Path, max_count: int) -> RedisMemoryStore:
    """Open the memories of the server with this folder; those that ship lie beside it."""
    ships = folder.parent / "ships"
    store = RedisMemoryStore(ships, folder / "own", max_count, 1 << 20, link)
    store.prepare()
    return store


class Peer:
    """The memories of one server, on a Redis that it knows."""

    def __init__(self, redis: RedisServer, folder: Path, max_count: int = 9) -> None:
        self.folder, self.redis = folder, redis
        self.events = Counter[tuple[str, str]]()
        self.link = RedisClient(redis.url, 0.5, self.count)
        self.store = open_memory_store(self.link, folder, max_count)
        self.probe()

    def count(self, event: RedisEvent, label: str, number: int) -> None:
        self.events[event, label] += number

    def probe(self) -> None:
        """Do what a server does every second."""

        async def probe() -> None:
            await self.link.probe()
            await self.link._prober.aclose()  # its connections end with this loop

        asyncio.run(probe())

    def cards(self) -> dict[str, MemoryCard]:
        return self.store.list_cards()

    def copy(self, field: str) -> Path:
        return self.folder / "own-of-redis" / f"{field}.safetensors"

    def problem(self, act: Callable[[], object]) -> str:
        with pytest.raises(Problem) as error:
            act()
        return error.value.kind


def take_snapshot(redis: RedisServer, folder: Path) -> Path:
    redis.stop()
    shutil.copytree(redis.folder / "appendonlydir", folder)
    redis.start()
    return folder


def flip(path: Path, place: int = -1) -> None:
    raw = bytearray(path.read_bytes())
    raw[place] ^= 1
    path.write_bytes(raw)
