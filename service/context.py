"""What the routes share: the objects of one application."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeVar, cast

import structlog
from starlette.requests import Request

from models.inputs.molecules import MoleculeLimits
from service.auth.key_store import ApiKeyStore
from service.auth.keys import ApiKey, get_caller
from service.auth.usage_limits import UsageLimits
from service.engine.engine import Engine
from service.http.body import BodyReader
from service.http.idempotency import IdempotencyKeys
from service.http.sse import OpenStreams
from service.http.throttle import RefusalThrottle
from service.imaging.decoder_pool import ImageDecoder
from service.jobs.runner import JobRunner
from service.observability.logs import LogCollector
from service.observability.malloc import freeze_gc_heap
from service.observability.metrics import LoadedModel, Metrics
from service.observability.resources import ResourceCollector
from service.registry.handles import Classifier
from service.registry.loader import ModelLoader
from service.registry.registry import Registry
from service.settings import Settings
from service.shares import FairSemaphore, Shares
from service.storage.backends import StorageBackends
from service.storage.cache import ResponseCache
from service.storage.graphs import GraphStore
from service.storage.graphs.dynamic_graph import warm_up as warm_up_graphs
from service.storage.memories import MemoryStore
from service.storage.redis_client import RedisClient
from service.supervisor import Supervisor
from service.workers.fair_threads import FairThreads
from service.workers.large_json import LargeJsonParser
from service.workers.smiles_pool import SmilesParserPool

if TYPE_CHECKING:
    from service.observability.tracing import TraceExporter

T = TypeVar("T")
INLINE_BYTES = 1 << 17  # handled in less time than handing them to another thread takes
JSON_COST_FACTOR = 8  # parsing a byte of JSON takes as long as copying this many
_SMALL_REQUESTS_BESIDE_OTHERS = 8
"""Small requests of one API key that are parsed, computed and written at a time while another key
sends some. With more, a turn of the event loop takes as long as all that are ready in it, and each
request of the other key waits for several turns."""
_BESIDE_S = 1.0
"""For as long after a request of another key."""


@dataclass(frozen=True)
class AppContext:
    """Every long-lived object of one application, built once and passed by dependency.

    Attributes:
        cache: None where responses are not cached.
        api_keys: None where no keys are required.
        redis: None where no Redis is configured.
        traces: None where tracing is off.
        large_json: parses bodies that would block the event loop, in a child process.
        small_requests: places of small requests from the time that their body is read.
        codec: threads that parse bodies and encode responses.
        client: name of the API key that it is scoped to.
        supervisor: runs what lasts as long as the server.
    """

    settings: Settings
    registry: Registry
    engine: Engine
    metrics: Metrics
    body_reader: BodyReader
    memories: MemoryStore
    graphs: GraphStore
    jobs: JobRunner
    smiles_pool: SmilesParserPool
    cache: ResponseCache | None
    idempotency_keys: IdempotencyKeys
    api_keys: ApiKeyStore | None
    usage_limits: UsageLimits
    open_requests: Shares
    redis: RedisClient | None  # to Redis
    traces: TraceExporter | None
    supervisor: Supervisor
    large_json: LargeJsonParser = field(default_factory=LargeJsonParser)
    image_decoder: ImageDecoder = field(default_factory=ImageDecoder)
    throttle: RefusalThrottle = field(default_factory=RefusalThrottle)
    alert_streams: OpenStreams = field(default_factory=lambda: OpenStreams(100))
    small_requests: FairSemaphore = field(
        default_factory=lambda: FairSemaphore(math.inf, _SMALL_REQUESTS_BESIDE_OTHERS, _BESIDE_S)
    )
    codec: FairThreads = field(default_factory=lambda: FairThreads(2, "codec"))
    client: str = ""

    @classmethod
    def from_settings(cls, settings: Settings) -> AppContext:
        """Build all parts; nothing is loaded and no thread of a store runs yet.

        Raises:
            MachineError: the settings ask for a device or backend that this machine lacks.
            ApiKeyFileError: the file of API keys cannot be read.
        """
        metrics = Metrics()
        supervisor = Supervisor(metrics.registry)
        storage = StorageBackends.from_settings(settings, metrics.redis.count)
        traces = _make_trace_exporter() if settings.tracing else None
        loader = ModelLoader.from_settings(settings)
        context = cls(
            settings=settings,
            registry=Registry(loader),
            engine=Engine(
                settings.queue_size,
                settings.threads,
                settings.scheduling == "steps",
                settings.max_per_model,
                metrics.observe_step,
                supervisor,
                has_large_lane=loader.device == "cpu" and settings.scheduling == "steps",
            ),
            metrics=metrics,
            body_reader=BodyReader(settings.max_body_bytes, settings.max_buffered_bytes),
            memories=storage.memories,
            graphs=storage.graphs,
            jobs=JobRunner(
                storage.jobs,
                storage.max_running_jobs,
                settings.max_jobs,
                metrics.count_job,
                None if traces is None else traces.export_job,
            ),
            smiles_pool=SmilesParserPool(
                MoleculeLimits(settings.max_smiles_length, settings.max_atoms),
                num_workers=settings.smiles_processes,
                max_calls=max(settings.queue_size // 2, 1),
                seconds=settings.smiles_timeout_s,
                batch_seconds=settings.smiles_budget_s,
            ),
            cache=storage.cache,
            idempotency_keys=IdempotencyKeys(settings.keep_jobs_s),
            api_keys=ApiKeyStore(settings.keys, metrics.key_faults.inc) if settings.keys else None,
            usage_limits=UsageLimits(storage.limiter, metrics),
            open_requests=Shares(max(settings.max_connections // 2, 1)),
            redis=storage.redis,
            traces=traces,
            supervisor=supervisor,
            alert_streams=OpenStreams(settings.max_alert_streams),
        )
        context._register_gauges()
        return context

    def _register_gauges(self) -> None:
        """Add the metrics that are read from other parts at each scrape."""
        gauge, engine, cache, redis = self.metrics.gauge, self.engine, self.cache, self.redis
        gauge(
            "basin_queue_depth",
            "Requests that wait for compute or run.",
            lambda: engine.admission.count,
        )
        gauge(
            "basin_queue_limit",
            "Maximum number of queued and running requests.",
            lambda: engine.admission.capacity,
        )
        gauge(
            "basin_backlog_seconds",
            "Estimated seconds of compute for all that waits or runs, from what similar requests "
            "took.",
            lambda: engine.backlog_s,
        )
        gauge(
            "basin_graph_bytes",
            "Approximate memory of stored graphs.",
            lambda: self.graphs.cached_bytes,
        )
        gauge("basin_jobs_unfinished", "Jobs that wait or run.", lambda: self.jobs.unfinished_count)
        gauge(
            "basin_jobs_dead",
            "Jobs that failed by a fault of the servers or of their store and wait for the "
            "operator.",
            lambda: self.jobs.dead_count,
        )
        gauge(
            "basin_cache_bytes",
            "Bytes of the responses in the cache.",
            lambda: 0 if cache is None else cache.size_bytes,
        )
        if redis is not None:
            gauge(
                "basin_redis_up",
                "1 while Redis answers, 0 while this server does without it; absent where none is "
                "configured.",
                lambda: redis.is_available,
            )
        settings, keys = self.settings, self.api_keys
        certificate = None
        if settings.tls_certificate is not None and settings.tls_key is not None:
            certificate = settings.tls_certificate, settings.tls_key
        self.metrics.registry.register(LogCollector())
        self.metrics.registry.register(
            ResourceCollector(
                {
                    "jobs": settings.job_store,
                    "graphs": settings.graph_store,
                    "memories": settings.memory_store,
                },
                dict if keys is None else keys.list_expiries,
                certificate,
            )
        )

    def scoped_to(self, caller: ApiKey) -> AppContext:
        """This context as `caller` may use it: only its own models, memories and graphs."""
        registry = self.registry.scoped(caller.model_names)
        name = caller.name
        memories, graphs = self.memories.scoped_to(name), self.graphs.scoped_to(name)
        return replace(self, registry=registry, memories=memories, graphs=graphs, client=name)

    def require_ready(self) -> None:
        """
        Raises:
            Problem: `not-ready`: no models, or a background task is down.
        """
        self.registry.require_ready()
        self.supervisor.require_running()

    async def memories_fingerprint(self) -> bytes:
        """Digest of the memories that the caller can sample."""
        return await asyncio.to_thread(self.memories.fingerprint)

    def publish_models(self) -> None:
        """Update the metrics with the loaded models."""
        models = self.registry.scoped(None).list_models()
        self.metrics.set_models(
            [LoadedModel(m.name, m.manifest.version, m.sha256, m.size_bytes) for m in models]
        )

    def load(self) -> None:
        """Load the models. Takes seconds, so call it off the event loop.

        A failure is logged; the server then stays up without models, and not ready.
        """
        log = structlog.get_logger()
        try:
            self._load()
        except OSError as error:  # a folder cannot be read
            log.error("no model to serve", reason=str(error))
            self.registry.mark_failed()
        except Exception:
            log.exception("loading failed")
            self.registry.mark_failed()
        freeze_gc_heap()

    def _load(self) -> None:
        self.graphs.start(self.supervisor)
        warm_up_graphs()
        self.memories.prepare()
        self.registry.load(self.settings.checkpoints)
        self.publish_models()
        if any(model.reads_smiles for model in self.registry.list_models_of_kind(Classifier)):
            self.smiles_pool.start()

    async def offload_if_large(self, weight: int, work: Callable[..., T], *args: Any) -> T:
        """Run `work(*args)` here, or on a codec thread where it would block the event loop.

        Args:
            weight: bytes that `work` copies; a byte of JSON counts `JSON_COST_FACTOR` times.
        """
        if weight <= INLINE_BYTES:
            return work(*args)
        return await self.run_on_codec(work, *args)

    async def run_on_codec(self, work: Callable[..., T], *args: Any) -> T:
        """Run `work(*args)` on a codec thread, in turn with the work of other keys."""
        return await self.codec.run(self.client, work, *args)

    def close(self) -> None:
        self.smiles_pool.close()
        self.engine.close()
        self.image_decoder.close()
        self.codec.close()
        if self.traces is not None:
            self.traces.close()


async def get_context(
    request: Request,
) -> AppContext:  # a thread for it would cost a third of a millisecond
    """The context of the app that serves `request`, scoped to its caller. A FastAPI dependency."""
    whole = cast(AppContext, request.app.state.context)
    caller = get_caller(request.scope)
    return whole.scoped_to(caller) if caller.name else whole


def _make_trace_exporter() -> TraceExporter:
    from service.observability.tracing import TraceExporter  # an extra

    return TraceExporter()
