"""Registry of the loaded models."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar, final

import structlog

from models.manifest import CheckpointError
from service.errors import Problem, make_problem
from service.registry.handles import Model
from service.registry.loader import ModelLoader
from service.validation.arrays import join_names

M = TypeVar("M", bound=Model[Any])


@dataclass
class _Served:
    """State that all scoped registries share."""

    models: dict[str, Model[Any]] = field(default_factory=dict)
    loaded: bool = False
    stamp: bytes = b""
    changes: int = 0
    leaving: bool = False
    changing: threading.Lock = field(default_factory=threading.Lock)
    replacing: threading.Lock = field(default_factory=threading.Lock)


@final
class Registry:
    """Models by name; empty until `load` has run.

    A request keeps the model with which it started; loading and dropping affect later requests.

    Args:
        machine: loads models for the device and backend.
        names: of the visible models; None for all. Any other name is refused, whether it exists
            or not.
    """

    def __init__(
        self,
        machine: ModelLoader = ModelLoader(),  # noqa: B008, it is frozen
        names: frozenset[str] | None = None,
        shared: _Served | None = None,
    ) -> None:
        self._machine, self._names, self._shared = machine, names, shared or _Served()

    @classmethod
    def from_models(cls, models: Iterable[Model[Any]]) -> Registry:
        """Return a registry of models that are loaded already."""
        registry = cls()
        registry._publish({model.name: model for model in models})
        registry._shared.loaded = True
        return registry

    def scoped(self, names: frozenset[str] | None) -> Registry:
        """Return a view of this registry with only these models visible; None for all."""
        return Registry(self._machine, names, self._shared)

    @property
    def fingerprint(self) -> bytes:
        """Hash of the names, checkpoints and runtimes of all loaded models."""
        return self._shared.stamp

    @property
    def generation(self) -> int:
        """Number of changes of the set of loaded models."""
        return self._shared.changes

    def load(self, folder: Path) -> None:
        """Load every checkpoint in `folder`; log and skip those that are invalid."""
        log = structlog.get_logger()
        folders = sorted(p for p in folder.iterdir() if p.is_dir()) if folder.is_dir() else []
        models: dict[str, Model[Any]] = {}
        for path in folders:
            if self._shared.leaving:
                return
            try:
                model = self._machine.load(path)
            except CheckpointError as error:
                log.error("checkpoint refused", reason=str(error))
                continue
            except Exception:  # a failing model must not prevent loading the others
                log.exception("checkpoint refused", reason=f"{path}: the model fails when it runs")
                continue
            if model.name in models:
                log.error(
                    "checkpoint refused",
                    reason=f"{path}: another checkpoint has the same model name, {model.name}",
                )
                continue
            models[model.name] = model
            log.info("model ready", model=model.name, sha256=model.sha256)
        with self._shared.changing:
            self._publish(models)
        self._shared.loaded = True
        if not models:
            log.error(
                "no model to serve",
                folder=str(folder),
                advice="BASIN_CHECKPOINTS is a folder with a subfolder for each checkpoint. With "
                "BASIN_WAIT_FOR_MODELS=true the server waits until an admin route loads one.",
            )

    def replace(self, path: Path, name: str) -> Model[Any]:
        """Load and test the checkpoint at `path`, then replace the model of the same name.

        Raises:
            CheckpointError: the checkpoint is invalid, fails to run, or has another name.
            Problem: the name is not visible.
        """
        self._require_seen(name)
        with self._shared.replacing:  # the last call wins
            try:
                model = self._machine.load(path)
            except CheckpointError:
                raise
            except Exception as error:
                structlog.get_logger().exception(
                    "checkpoint refused", reason=f"{path}: the model fails when it runs"
                )
                raise CheckpointError(
                    f"{path.name}: the model fails when it runs. The server log has the details."
                ) from error
            if model.name != name:
                raise CheckpointError(
                    f"{path.name}: the manifest names the model {model.name}. Folder and model "
                    "must have the same name."
                )
            with self._shared.changing:
                self._publish(self._shared.models | {name: model})
        structlog.get_logger().info("model ready", model=name, sha256=model.sha256)
        return model

    def drop(self, name: str) -> Model[Any]:
        """Drop a model.

        Raises:
            Problem: no such model, or it is not visible.
        """
        model = self.get(name)
        with self._shared.changing:
            self._publish({n: m for n, m in self._shared.models.items() if n != name})
        structlog.get_logger().info("model dropped", model=name, sha256=model.sha256)
        return model

    def _publish(self, models: dict[str, Model[Any]]) -> None:
        # The runtime is part of the hash, because runtimes round differently.
        entries = sorted((model.name, model.sha256, model.runtime) for model in models.values())
        shared = self._shared
        shared.models, shared.stamp = models, hashlib.sha256(repr(entries).encode()).digest()
        shared.changes += 1

    @property
    def loading_finished(self) -> bool:
        """Whether loading at start-up has finished or failed."""
        return self._shared.loaded

    def stop_loading(self) -> None:
        """Stop loading, because the process shuts down."""
        self._shared.leaving = True

    def mark_failed(self) -> None:
        """Mark loading as finished, without models."""
        self._shared.loaded = True

    def require_loaded(self) -> None:
        """Raise `not-ready` (503) while models are loading at start-up."""
        if not self.loading_finished:
            detail = "The server is still loading its models. Retry after 1 s."
            raise Problem("not-ready", detail, headers={"retry-after": "1"})

    def require_ready(self) -> None:
        """Raise `not-ready` (503) while loading, or if no model is loaded."""
        self.require_loaded()
        if not self._shared.models:
            raise Problem(
                "not-ready",
                "The server found no checkpoint that it can load (BASIN_CHECKPOINTS). The "
                "server log has the reasons.",
            )

    def list_models(self) -> list[Model[Any]]:
        """Return the visible models loaded so far."""
        return [model for name, model in self._shared.models.items() if self._sees(name)]

    def list_models_of_kind(self, kind: type[M]) -> list[M]:
        """Return the visible models of one kind loaded so far."""
        return [model for model in self.list_models() if isinstance(model, kind)]

    def __iter__(self) -> Iterator[Model[Any]]:
        self.require_ready()
        return iter(self.list_models())

    def get(self, name: str) -> Model[Any]:
        """Return a model.

        Raises:
            Problem: no such model, or it is not visible.
        """
        self.require_ready()
        self._require_seen(name)
        try:
            return self._shared.models[name]
        except KeyError:
            detail = "No such model. GET /models lists the models of this server."
            raise make_problem("unknown-model", "/model", "unknown_model", detail) from None

    def get_of_kind(self, kind: type[M], name: str) -> M:
        """Return a model of the kind that the route needs.

        Raises:
            Problem: no such model, it is not visible, or it serves another route.
        """
        self.require_ready()
        self._require_seen(name)
        model = self._shared.models.get(name)
        if isinstance(model, kind):
            return model
        names = [each.name for each in self.list_models_of_kind(kind)]
        rule = (
            f"This model does not serve POST {kind.route}. Models that do: "
            f"{join_names(names) or 'none'}."
        )
        if model is None:
            raise make_problem("unknown-model", "/model", "unknown_model", rule)
        raise make_problem("wrong-model", "/model", "wrong_task", rule)

    def _sees(self, name: str) -> bool:
        return self._names is None or name in self._names

    def _require_seen(self, name: str) -> None:
        if not self._sees(name):
            rule = (
                "This API key does not allow this model. GET /models lists the models that it "
                "allows."
            )
            raise make_problem("forbidden", "/model", "out_of_scope", rule)
