"""Which backends the settings choose."""

from __future__ import annotations

from pathlib import Path

import pytest

from service.settings import Settings
from service.storage.backends import StorageBackends
from service.storage.cache import LocalCache
from service.storage.cache_redis import RedisCache
from service.storage.jobs.redis import RedisJobStore
from service.storage.jobs.sqlite import SqliteJobStore
from service.storage.limiter import LocalLimiter
from service.storage.limiter_redis import RedisLimiter
from service.storage.memories_redis import RedisMemoryStore

URL = "redis://127.0.0.1:1/0"  # nothing is connected to before it is used


@pytest.fixture
def make(tmp_path: Path):
    def backends(**changes: object) -> StorageBackends:
        stores = {
            "job_store": tmp_path / "jobs.db",
            "graph_store": tmp_path / "graphs.db",
            "memory_store": tmp_path / "memories",
        }
        settings = Settings.model_validate({**stores, **changes})
        return StorageBackends.from_settings(settings, lambda event, label, number: None)

    return backends


def test_without_redis_everything_is_local(make) -> None:
    backends = make()
    assert backends.redis is None
    assert isinstance(backends.cache, LocalCache)
    assert isinstance(backends.limiter, LocalLimiter)
    assert isinstance(backends.jobs, SqliteJobStore)
    assert not isinstance(backends.memories, RedisMemoryStore)


def test_with_redis_everything_is_shared(make) -> None:
    backends = make(redis_url=URL)
    assert backends.redis is not None
    assert isinstance(backends.cache, RedisCache)
    assert isinstance(backends.limiter, RedisLimiter)
    assert isinstance(backends.jobs, RedisJobStore)
    assert isinstance(backends.memories, RedisMemoryStore)


def test_no_bytes_are_no_cache(make) -> None:
    assert make(cache_bytes=0).cache is None
    assert make(cache_bytes=0, redis_url=URL).cache is None


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"queue_size": 31}, 16),  # half of the 32 that wait or run
        ({"queue_size": 0}, 1),
        ({"queue_size": 31, "redis_url": URL}, 4),
        ({"queue_size": 2, "redis_url": URL}, 2),
        ({"redis_url": URL, "run_jobs": False}, 0),
    ],
)
def test_jobs_take_at_most_half_of_the_queue(make, changes, expected: int) -> None:
    assert make(**changes).max_running_jobs == expected
