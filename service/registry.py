"""The models that are served."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import numpy as np
import structlog

from models import checkpoint
from models.checkpoint import Checkpoint, CheckpointError, Manifest
from models.contract import Knobs
from models.graph import Graph
from models.node_scorer import NodeScorer
from service.errors import Problem, refuse
from service.schemas import ModelRef


@dataclass(frozen=True)
class Model:
    """A checkpoint in service."""

    checkpoint: Checkpoint

    @property
    def manifest(self) -> Manifest:
        return self.checkpoint.manifest

    @property
    def network(self) -> NodeScorer:
        return cast(NodeScorer, self.checkpoint.network)

    @property
    def features(self) -> tuple[str, ...]:
        return self.network.config.features

    @property
    def relations(self) -> tuple[str, ...]:
        return self.network.config.relations

    @property
    def ref(self) -> ModelRef:
        manifest = self.manifest
        return ModelRef(name=manifest.name, version=manifest.version, sha256=self.checkpoint.sha256)

    def warm_up(self) -> None:
        """Score two nodes, so that no client waits for kernels to load."""
        edges = np.array([[0], [1]])
        x = np.zeros((2, len(self.features)), np.float32)
        graph = Graph(x, edges, np.zeros(1, np.int64))
        self.network.infer(self.network.pack([graph]), [Knobs()])


class Registry:
    """Models by name: none until `load` has run."""

    def __init__(self) -> None:
        self._models: dict[str, Model] = {}
        self._loaded = False

    def load(self, folder: Path) -> None:
        """Load every checkpoint in `folder`; one that cannot be trusted is logged and left out."""
        log = structlog.get_logger()
        folders = sorted(p for p in folder.iterdir() if p.is_dir()) if folder.is_dir() else []
        models: dict[str, Model] = {}
        for path in folders:
            try:
                model = Model(checkpoint.load(path))
                model.warm_up()
            except CheckpointError as error:
                log.error("checkpoint refused", reason=str(error))
                continue
            except Exception:  # one that cannot run must not keep the others from service
                log.exception("checkpoint refused", reason=f"{path}: it does not run")
                continue
            name = model.manifest.name
            if name in models:
                log.error("checkpoint refused", reason=f"{path}: there is another {name}")
                continue
            models[name] = model
            log.info("model ready", model=name, sha256=model.checkpoint.sha256)
        self._models, self._loaded = models, True
        if not models:
            log.error("no model to serve", folder=str(folder))

    def give_up(self) -> None:
        """There will be no models."""
        self._loaded = True

    def require_ready(self) -> None:
        """Refuse with 503 where there is nothing to serve, now or at all."""
        if not self._loaded:
            raise Problem("not-ready", "models are loading", headers={"retry-after": "1"})
        if not self._models:
            raise Problem("not-ready", "this server found no checkpoint it could load")

    def loaded(self) -> list[Model]:
        """Those there are so far."""
        return list(self._models.values())

    def __iter__(self) -> Iterator[Model]:
        self.require_ready()
        return iter(self.loaded())

    def get(self, name: str) -> Model:
        self.require_ready()
        try:
            return self._models[name]
        except KeyError:
            raise refuse(
                "unknown-model", "/model", "unknown_model", "GET /models lists those served"
            ) from None
