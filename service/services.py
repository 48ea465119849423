"""What the routes share."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import cast

import structlog
from starlette.requests import Request

from models.molecules import Limits
from service.body import Bodies
from service.engine import Engine
from service.jobs import Jobs
from service.memories import MemoryStore
from service.metrics import Metrics
from service.molecules.parser import MoleculeParser
from service.parsing.large import LargeBodies
from service.pictures.reader import PictureReader
from service.registry import Registry
from service.served import Classifier
from service.settings import Settings


@dataclass(frozen=True)
class Services:
    """The parts of one app. `codec` is where bodies are parsed and answers encoded, `large` where
    bodies are parsed that would keep everyone waiting."""

    settings: Settings
    registry: Registry
    engine: Engine
    metrics: Metrics
    bodies: Bodies
    memories: MemoryStore
    jobs: Jobs
    molecules: MoleculeParser
    large: LargeBodies = field(default_factory=LargeBodies)
    pictures: PictureReader = field(default_factory=PictureReader)
    codec: ThreadPoolExecutor = field(
        default_factory=lambda: ThreadPoolExecutor(2, thread_name_prefix="codec")
    )

    @classmethod
    def create(cls, settings: Settings) -> Services:
        engine = Engine(
            settings.queue_size,
            settings.threads,
            settings.scheduling == "steps",
            settings.deadline_s,
            settings.job_deadline_s,
        )
        bodies = Bodies(settings.max_body_bytes, settings.max_buffered_bytes)
        memories = MemoryStore(
            settings.memories,
            settings.memory_store,
            settings.max_memories,
            settings.max_memory_bytes,
        )
        metrics = Metrics(engine)
        jobs = Jobs(
            (settings.queue_size + 1 + 1) // 2,
            settings.max_job_bytes,
            settings.keep_jobs_s,
            metrics.count_job,
        )
        molecules = MoleculeParser(
            Limits(settings.max_smiles_length, settings.max_atoms),
            workers=settings.smiles_processes,
            max_calls=max(settings.queue_size // 2, 1),
            seconds=settings.smiles_timeout_s,
            batch_seconds=settings.smiles_budget_s,
        )
        return cls(settings, Registry(), engine, metrics, bodies, memories, jobs, molecules)

    def load(self) -> None:
        """Load the models; takes seconds, so not on the event loop."""
        self.memories.clean()
        try:
            self.registry.load(self.settings.checkpoints)
        except OSError as error:  # the folder cannot be read: say so, and never be ready
            structlog.get_logger().error("no model to serve", reason=str(error))
            self.registry.give_up()
        for model in self.registry.loaded():
            self.metrics.serve(model.ref)
        if any(model.reads_smiles for model in self.registry.every(Classifier)):
            self.molecules.start()

    def close(self) -> None:
        self.molecules.close()
        self.engine.close()
        self.pictures.close()
        self.codec.shutdown(cancel_futures=True)


def services(request: Request) -> Services:
    """The services of the app that serves `request`; a FastAPI dependency."""
    return cast(Services, request.app.state.services)
