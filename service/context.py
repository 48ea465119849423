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
from service.auth.key_store import Keyring
from service.auth.keys import Key
from service.auth.usage_limits import Tolls
from service.engine import Engine
from service.http.body import Bodies
from service.http.idempotency import Keys
from service.http.throttle import Pace
from service.imaging.decoder_pool import PictureReader
from service.jobs import Jobs
from service.observability.malloc import spare_what_is_there
from service.observability.metrics import Metrics
from service.registry.handles import Classifier
from service.registry.loader import Machine
from service.registry.registry import Registry
from service.settings import Settings
from service.storage.backends import Kept
from service.storage.cache import AnswerCache
from service.storage.graphs import GraphStore
from service.storage.memories import MemoryStore
from service.storage.redis_client import Link
from service.workers.large_json import LargeBodies
from service.workers.smiles_pool import MoleculeParser

if TYPE_CHECKING:
    from service.observability.tracing import Traces

T = TypeVar("T")
BRIEF = 1 << 17  # bytes that are handled in less time than it takes to hand them over
JSON_WEIGHS = 8  # to parse a byte of it takes as long as so many of tensors


@dataclass(frozen=True)
class Services:
    """The parts of one app. `cache` is None where none is wanted, `keyring` where no keys are asked
    for; `codec` is where bodies are parsed and answers encoded, `large` where bodies are parsed
    that would keep everyone waiting."""

    settings: Settings
    registry: Registry
    engine: Engine
    metrics: Metrics
    bodies: Bodies
    memories: MemoryStore
    graphs: GraphStore
    jobs: Jobs
    molecules: MoleculeParser
    cache: AnswerCache | None
    keys: Keys
    keyring: Keyring | None
    tolls: Tolls
    link: Link | None  # to Redis
    traces: Traces | None
    large: LargeBodies = field(default_factory=LargeBodies)
    pictures: PictureReader = field(default_factory=PictureReader)
    pace: Pace = field(default_factory=Pace)
    codec: ThreadPoolExecutor = field(
        default_factory=lambda: ThreadPoolExecutor(2, thread_name_prefix="codec")
    )

    @classmethod
    def create(cls, settings: Settings) -> Services:
        """
        Raises:
            MachineError: the settings ask for what this machine has not.
            KeysError: there is a file of keys that cannot be read.
        """
        machine = Machine.of(settings)
        engine = Engine(
            settings.queue_size,
            settings.threads,
            settings.scheduling == "steps",
            settings.max_per_model,
        )
        bodies = Bodies(settings.max_body_bytes, settings.max_buffered_bytes)
        metrics = Metrics(engine)
        kept = Kept.where(settings, lambda part: metrics.redis_failures.labels(part).inc())
        traces = _traces() if settings.tracing else None
        jobs = Jobs(
            *(kept.jobs, kept.jobs_at_a_time, settings.max_jobs, metrics.count_job),
            None if traces is None else traces.job,
        )
        metrics.watch(jobs, kept.graphs, kept.cache, kept.link)
        molecules = MoleculeParser(
            Limits(settings.max_smiles_length, settings.max_atoms),
            workers=settings.smiles_processes,
            max_calls=max(settings.queue_size // 2, 1),
            seconds=settings.smiles_timeout_s,
            batch_seconds=settings.smiles_budget_s,
        )
        keys = Keys(settings.keep_jobs_s)
        keyring = Keyring(settings.keys, metrics.key_faults.inc) if settings.keys else None
        return cls(
            *(settings, Registry(machine), engine, metrics, bodies),
            *(kept.memories, kept.graphs, jobs),
            *(molecules, kept.cache, keys, keyring, Tolls(kept.limiter, metrics)),
            *(kept.link, traces),
        )

    def of(self, caller: Key) -> Services:
        """These services as `caller` may use them."""
        registry = self.registry.within(caller.model_names)
        name = caller.name
        memories, graphs = self.memories.within(name), self.graphs.within(name)
        return replace(self, registry=registry, memories=memories, graphs=graphs)

    async def models_stamp(self) -> bytes:
        """Tells the models that there are."""
        return self.registry.stamp

    async def memories_stamp(self) -> bytes:
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
            self.registry.give_up()
        except Exception:
            log.exception("loading failed")
            self.registry.give_up()
        spare_what_is_there()

    def _load(self) -> None:
        self.graphs.start()
        self.memories.clean()
        self.registry.load(self.settings.checkpoints)
        self.metrics.serve(self.registry.loaded())
        if any(model.reads_smiles for model in self.registry.every(Classifier)):
            self.molecules.start()

    async def aside(self, size: int, work: Callable[..., T], *args: Any) -> T:
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


async def services(
    request: Request,
) -> Services:  # a thread for it would cost a third of a millisecond
    """The services of the app that serves `request`, for its caller; a FastAPI dependency."""
    whole = cast(Services, request.app.state.services)
    caller: Key = request.state.caller
    return whole.of(caller) if caller.name else whole


def _traces() -> Traces:
    from service.observability.tracing import Traces  # an extra

    return Traces()
