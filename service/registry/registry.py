"""The models that are served."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar, final

import structlog

from models.checkpoint import CheckpointError
from service.errors import Problem, make_problem
from service.registry.handles import Model
from service.registry.loader import ModelLoader
from service.validation.arrays import join_names

M = TypeVar("M", bound=Model[Any])


@dataclass
class _Served:
    """What all views of a registry share."""

    models: dict[str, Model[Any]] = field(default_factory=dict)
    loaded: bool = False
    stamp: bytes = b""
    changes: int = 0
    leaving: bool = False
    changing: threading.Lock = field(default_factory=threading.Lock)
    replacing: threading.Lock = field(default_factory=threading.Lock)


@final
class Registry:
    """Models by name: none until `load` has run.

    A request holds on to the model it began with; what is loaded or dropped meanwhile is for those
    that come after.

    Args:
        machine: on what models run.
        names: of the models that may be seen, all if None; whoever names another is refused,
            whether there is one or not.
    """

    def __init__(
        self,
        machine: ModelLoader = ModelLoader(),  # noqa: B008, it is frozen
        names: frozenset[str] | None = None,
        shared: _Served | None = None,
    ) -> None:
        self._machine, self._names, self._shared = machine, names, shared or _Served()

    def scoped(self, names: frozenset[str] | None) -> Registry:
        """This registry, as who may use these models alone sees it, or all of it."""
        return Registry(self._machine, names, self._shared)

    @property
    def fingerprint(self) -> bytes:
        """Tells one set of models from any other, by their hashes."""
        return self._shared.stamp

    @property
    def generation(self) -> int:
        """How often it has been another set of models."""
        return self._shared.changes

    def load(self, folder: Path) -> None:
        """Load every checkpoint in `folder`; one that cannot be trusted is logged and left out."""
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
            except Exception:  # one that cannot run must not keep the others from service
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
            log.error("no model to serve", folder=str(folder))

    def replace(self, path: Path, name: str) -> Model[Any]:
        """Serve the checkpoint at `path`, once it has run, in place of the one of its name.

        Raises:
            CheckpointError: it cannot be trusted, does not run, or is of another name.
            Problem: it may not be seen.
        """
        self._require_seen(name)
        with self._shared.replacing:  # the last that asks has the last word
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
        """Serve it no longer.

        Raises:
            Problem: there is none of this name, or it may not be seen.
        """
        model = self.get(name)
        with self._shared.changing:
            self._publish({n: m for n, m in self._shared.models.items() if n != name})
        structlog.get_logger().info("model dropped", model=name, sha256=model.sha256)
        return model

    def _publish(self, models: dict[str, Model[Any]]) -> None:
        # Another runtime rounds in another way.
        every = sorted((model.name, model.sha256, model.runtime) for model in models.values())
        shared = self._shared
        shared.models, shared.stamp = models, hashlib.sha256(repr(every).encode()).digest()
        shared.changes += 1

    @property
    def loading_finished(self) -> bool:
        """Have the first models been loaded, or is it sure that there will be none?"""
        return self._shared.loaded

    def stop_loading(self) -> None:
        """Load no more: the process ends."""
        self._shared.leaving = True

    def mark_failed(self) -> None:
        """There will be no models."""
        self._shared.loaded = True

    def require_loaded(self) -> None:
        """Refuse with 503 while the first models are loading."""
        if not self.loading_finished:
            detail = "The server is still loading its models. Retry after 1 s."
            raise Problem("not-ready", detail, headers={"retry-after": "1"})

    def require_ready(self) -> None:
        """Refuse with 503 where there is nothing to serve, now or at all."""
        self.require_loaded()
        if not self._shared.models:
            raise Problem(
                "not-ready",
                "The server found no checkpoint that it can load (BASIN_CHECKPOINTS). The "
                "server log has the reasons.",
            )

    def list_models(self) -> list[Model[Any]]:
        """Those there are so far."""
        return [model for name, model in self._shared.models.items() if self._sees(name)]

    def list_models_of_kind(self, kind: type[M]) -> list[M]:
        """Those of one kind that there are so far."""
        return [model for model in self.list_models() if isinstance(model, kind)]

    def __iter__(self) -> Iterator[Model[Any]]:
        self.require_ready()
        return iter(self.list_models())

    def get(self, name: str) -> Model[Any]:
        """
        Raises:
            Problem: there is none, or it may not be seen.
        """
        self.require_ready()
        self._require_seen(name)
        try:
            return self._shared.models[name]
        except KeyError:
            detail = "No such model. GET /models lists the models of this server."
            raise make_problem("unknown-model", "/model", "unknown_model", detail) from None

    def get_of_kind(self, kind: type[M], name: str) -> M:
        """The model of this name, which must be of the kind that the route at hand needs.

        Raises:
            Problem: there is none, it may not be seen, or it serves another route; it tells which
                ones do this one.
        """
        self.require_ready()
        self._require_seen(name)
        model = self._shared.models.get(name)
        if isinstance(model, kind):
            return model
        names = [one.name for one in self.list_models_of_kind(kind)]
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
