"""Choose the storage backends: local to this server, or in Redis."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from service.settings import Settings
from service.storage.cache import LocalCache, ResponseCache
from service.storage.cache_redis import RedisCache
from service.storage.graphs import GraphLimits, GraphStore, SqliteGraphLog
from service.storage.graphs.redis import RedisGraphLog
from service.storage.jobs.base import JobLimits, JobStore
from service.storage.jobs.redis import RedisJobStore
from service.storage.jobs.sqlite import SqliteJobStore
from service.storage.limiter import Limiter, LocalLimiter
from service.storage.limiter_redis import RedisLimiter
from service.storage.memories import MemoryStore
from service.storage.memories_redis import RedisMemoryStore
from service.storage.redis_client import RedisClient
from service.version import VERSION

_DEFAULTS = {name for name in Settings.model_fields if name.startswith(("default_", "max_"))}
_MAX_RUNNING_JOBS = 4  # of one server with Redis; other servers can take the rest


@dataclass(frozen=True)
class StorageBackends:
    """All backends; `cache` is None if it is turned off, `redis` without BASIN_REDIS_URL."""

    cache: ResponseCache | None
    limiter: Limiter
    memories: MemoryStore
    graphs: GraphStore
    jobs: JobStore
    max_running_jobs: int
    redis: RedisClient | None

    @classmethod
    def from_settings(
        cls,
        settings: Settings,
        on_failure: Callable[[str], object],
        on_damage: Callable[[str], object] = lambda part: None,
    ) -> StorageBackends:
        """Create the backends.

        Args:
            on_failure: is called with the part of the server for which Redis failed.
            on_damage: is called with the part that read a damaged value from Redis.
        """
        places = (settings.queue_size + 1 + 1) // 2  # jobs take at most half of the queue
        own = LocalCache(settings.cache_bytes) if settings.cache_bytes else None
        limits = JobLimits(settings.max_jobs, settings.max_job_bytes, settings.keep_jobs_s)
        memories = (
            *(settings.memories, settings.memory_store),
            *(settings.max_memories, settings.max_memory_bytes),
        )
        room = settings.max_stored_graphs, settings.max_stored_nodes, settings.max_stored_edges
        graphs = GraphLimits(*room), settings.graph_memory_bytes
        if settings.redis_url is None:
            jobs = SqliteJobStore(settings.job_store, limits)
            own_graphs = GraphStore(SqliteGraphLog(settings.graph_store), *graphs)
            return cls(own, LocalLimiter(), MemoryStore(*memories), own_graphs, jobs, places, None)
        url = settings.redis_url.get_secret_value()
        link = RedisClient(url, settings.redis_timeout_s, on_failure, on_damage)
        return cls(
            RedisCache(link, own, _served(settings)) if own else None,
            RedisLimiter(link),
            RedisMemoryStore(*memories, link),
            GraphStore(RedisGraphLog(link), *graphs),
            RedisJobStore(link, limits, settings.job_lease_s),
            min(places, _MAX_RUNNING_JOBS) if settings.run_jobs else 0,
            link,
        )


def _served(settings: Settings) -> bytes:
    """Return what responses depend on besides models, memories and request."""
    defaults = settings.model_dump_json(include=_DEFAULTS)
    return f"{VERSION}\n{defaults}".encode()
