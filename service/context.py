"""What the routes share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeVar, cast

import structlog
from starlette.requests import Request

from models.inputs.molecules import Limits
from service.auth.key_store import ApiKeyStore
from service.auth.keys import ApiKey
from service.auth.usage_limits import UsageLimits
from service.engine.engine import Engine
from service.http.body import BodyReader
from service.http.idempotency import IdempotencyKeys
from service.http.throttle import RefusalThrottle
from service.imaging.decoder_pool import ImageDecoder
from service.jobs.runner import JobRunner
from service.observability.malloc import freeze_gc_heap
from service.observability.metrics import Metrics
from service.registry.handles import Classifier
from service.registry.loader import ModelLoader
from service.registry.registry import Registry
from service.settings import Settings
from service.storage.backends import StorageBackends
from service.storage.cache import AnswerCache
from service.storage.graphs import GraphStore
from service.storage.memories import MemoryStore
from service.storage.redis_client import RedisClient
from service.workers.large_json import LargeJsonParser
from service.workers.smiles_pool import SmilesParserPool

if TYPE_CHECKING:
    from service.observability.tracing import Traces

T = TypeVar("T")
BRIEF = 1 << 17  # bytes that are handled in less time than it takes to hand them over
JSON_WEIGHS = 8  # to parse a byte of it takes as long as so many of tensors


@dataclass(frozen=True)
class AppContext:
    """The parts of one app. `cache` is None where none is wanted, `keyring` where no keys are asked
    for; `codec` is where bodies are parsed and answers encoded, `large` where bodies are parsed
    that would keep everyone waiting."""

    settings: Settings
    registry: Registry
    engine: Engine
    metrics: Metrics
    bodies: BodyReader
    memories: MemoryStore
    graphs: GraphStore
    jobs: JobRunner
    molecules: SmilesParserPool
    cache: AnswerCache | None
    keys: IdempotencyKeys
    keyring: ApiKeyStore | None
    tolls: UsageLimits
    link: RedisClient | None  # to Redis
    traces: Traces | None
    large: LargeJsonParser = field(default_factory=LargeJsonParser)
    pictures: ImageDecoder = field(default_factory=ImageDecoder)
    pace: RefusalThrottle = field(default_factory=RefusalThrottle)
    codec: ThreadPoolExecutor = field(
        default_factory=lambda: ThreadPoolExecutor(2, thread_name_prefix="codec")
    )

    @classmethod
    def create(cls, settings: Settings) -> AppContext:
        """
        Raises:
            MachineError: the settings ask for what this machine has not.
            KeysError: there is a file of keys that cannot be read.
        """
        machine = ModelLoader.of(settings)
        engine = Engine(
            settings.queue_size,
            settings.threads,
            settings.scheduling == "steps",
            settings.max_per_model,
        )
        bodies = BodyReader(settings.max_body_bytes, settings.max_buffered_bytes)
        metrics = Metrics(engine)
        kept = StorageBackends.from_settings(
            settings, lambda part: metrics.redis_failures.labels(part).inc()
        )
        traces = _traces() if settings.tracing else None
        jobs = JobRunner(
            *(kept.jobs, kept.jobs_at_a_time, settings.max_jobs, metrics.count_job),
            None if traces is None else traces.job,
        )
        metrics.watch(jobs, kept.graphs, kept.cache, kept.link)
        molecules = SmilesParserPool(
            Limits(settings.max_smiles_length, settings.max_atoms),
            workers=settings.smiles_processes,
            max_calls=max(settings.queue_size // 2, 1),
            seconds=settings.smiles_timeout_s,
            batch_seconds=settings.smiles_budget_s,
        )
        keys = IdempotencyKeys(settings.keep_jobs_s)
        keyring = ApiKeyStore(settings.keys, metrics.key_faults.inc) if settings.keys else None
        return cls(
            *(settings, Registry(machine), engine, metrics, bodies),
            *(kept.memories, kept.graphs, jobs),
            *(molecules, kept.cache, keys, keyring, UsageLimits(kept.limiter, metrics)),
            *(kept.link, traces),
        )

    def scoped_to(self, caller: ApiKey) -> AppContext:
        """This context as `caller` may use it: only its own models, memories and graphs."""
        registry = self.registry.scoped(caller.model_names)
        name = caller.name
        memories, graphs = self.memories.within(name), self.graphs.within(name)
        return replace(self, registry=registry, memories=memories, graphs=graphs)

    async def models_fingerprint(self) -> bytes:
        """Tells the models that there are."""
        return self.registry.fingerprint

    async def memories_fingerprint(self) -> bytes:
        """Tells the memories that there are."""
        return await asyncio.to_thread(self.memories.stamp)

    def load(self) -> None:
        """Load the models; takes seconds, so not on the event loop. Whatever fails is told by the
        log, and nothing more is loaded."""
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
        self.graphs.start()
        self.memories.clean()
        self.registry.load(self.settings.checkpoints)
        self.metrics.serve(self.registry.loaded())
        if any(model.reads_smiles for model in self.registry.every(Classifier)):
            self.molecules.start()

    async def offload_if_large(self, size: int, work: Callable[..., T], *args: Any) -> T:
        """`work(*args)`, on another thread where `size` bytes would hold up the event loop.
        Those of JSON count `JSON_WEIGHS` times."""
        if size <= BRIEF:
            return work(*args)
        return await asyncio.get_running_loop().run_in_executor(self.codec, work, *args)

    def close(self) -> None:
        self.molecules.close()
        self.engine.close()
        self.pictures.close()
        self.codec.shutdown(cancel_futures=True)
        if self.traces is not None:
            self.traces.close()


async def get_context(
    request: Request,
) -> AppContext:  # a thread for it would cost a third of a millisecond
    """The context of the app that serves `request`, scoped to its caller. A FastAPI dependency."""
    whole = cast(AppContext, request.app.state.context)
    caller: ApiKey = request.state.caller
    return whole.scoped_to(caller) if caller.name else whole


def _traces() -> Traces:
    from service.observability.tracing import Traces  # an extra

    return Traces()
