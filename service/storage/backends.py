"""Choose the storage backends: local to this server, or in Redis."""

from __future__ import annotations

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
from service.storage.redis_client import Count, RedisClient
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
    def from_settings(cls, settings: Settings, count: Count) -> StorageBackends:
        """Create the backends; `count` is called with what happens to Redis."""
        link = make_redis_client(settings, count)
        jobs = make_job_store(settings, link)
        places = (settings.queue_size + 1 + 1) // 2  # jobs take at most half of the queue
        own = LocalCache(settings.cache_bytes) if settings.cache_bytes else None
        memories = (
            *(settings.memories, settings.memory_store),
            *(settings.max_memories, settings.max_memory_bytes),
        )
        room = settings.max_stored_graphs, settings.max_stored_nodes, settings.max_stored_edges
        graphs = GraphLimits(*room), settings.graph_memory_bytes
        if link is None:
            own_graphs = GraphStore(SqliteGraphLog(settings.graph_store), *graphs)
            return cls(own, LocalLimiter(), MemoryStore(*memories), own_graphs, jobs, places, None)
        return cls(
            RedisCache(link, own, _served(settings)) if own else None,
            RedisLimiter(link),
            RedisMemoryStore(*memories, link),
            GraphStore(RedisGraphLog(link), *graphs),
            jobs,
            min(places, _MAX_RUNNING_JOBS) if settings.run_jobs else 0,
            link,
        )


def make_redis_client(settings: Settings, count: Count) -> RedisClient | None:
    """Return the client of Redis, if the settings name one; `count` is called with what happens to
    Redis."""
    if settings.redis_url is None:
        return None
    return RedisClient(settings.redis_url.get_secret_value(), settings.redis_timeout_s, count)


def make_job_store(settings: Settings, link: RedisClient | None) -> JobStore:
    """Return the job store, in the Redis of `link` or in a file; it is not open yet."""
    limits = JobLimits(settings.max_jobs, settings.max_job_bytes, settings.keep_jobs_s)
    if link is None:
        return SqliteJobStore(settings.job_store, limits)
    return RedisJobStore(link, limits, settings.job_lease_s)


def _served(settings: Settings) -> bytes:
    """Return what responses depend on besides models, memories and request."""
    defaults = settings.model_dump_json(include=_DEFAULTS)
    return f"{VERSION}\n{defaults}".encode()
