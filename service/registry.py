"""The models that are served."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

import structlog

from models import checkpoint
from models.checkpoint import CheckpointError
from service.errors import Problem, refuse
from service.parsing.arrays import listing
from service.served import Model, served

M = TypeVar("M", bound=Model[Any])


class Registry:
    """Models by name: none until `load` has run."""

    def __init__(self) -> None:
        self._models: dict[str, Model[Any]] = {}
        self._loaded = False
        self._stamp = b""

    @property
    def stamp(self) -> bytes:
        """Tells one set of models from any other, by their hashes."""
        return self._stamp

    def load(self, folder: Path) -> None:
        """Load every checkpoint in `folder`; one that cannot be trusted is logged and left out."""
        log = structlog.get_logger()
        folders = sorted(p for p in folder.iterdir() if p.is_dir()) if folder.is_dir() else []
        models: dict[str, Model[Any]] = {}
        for path in folders:
            try:
                model = served(checkpoint.load(path))
                model.warm_up()
            except CheckpointError as error:
                log.error("checkpoint refused", reason=str(error))
                continue
            except Exception:  # one that cannot run must not keep the others from service
                log.exception("checkpoint refused", reason=f"{path}: it does not run")
                continue
            if model.name in models:
                log.error("checkpoint refused", reason=f"{path}: there is another {model.name}")
                continue
            models[model.name] = model
            log.info("model ready", model=model.name, sha256=model.sha256)
        every = sorted((model.name, model.sha256) for model in models.values())
        self._stamp = hashlib.sha256(repr(every).encode()).digest()
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

    def loaded(self) -> list[Model[Any]]:
        """Those there are so far."""
        return list(self._models.values())

    def every(self, kind: type[M]) -> list[M]:
        """Those of one kind that there are so far."""
        return [model for model in self.loaded() if isinstance(model, kind)]

    def __iter__(self) -> Iterator[Model[Any]]:
        self.require_ready()
        return iter(self.loaded())

    def get(self, name: str) -> Model[Any]:
        self.require_ready()
        try:
            return self._models[name]
        except KeyError:
            raise refuse(
                "unknown-model", "/model", "unknown_model", "GET /models lists those served"
            ) from None

    def serving(self, kind: type[M], name: str) -> M:
        """The model of this name, which must be of the kind that the route at hand needs.

        Raises:
            Problem: there is none, or it serves another route; it tells which ones do this one.
        """
        self.require_ready()
        model = self._models.get(name)
        if isinstance(model, kind):
            return model
        names = [one.name for one in self.every(kind)]
        rule = f"POST {kind.route} is served by {listing(names) if names else 'no model here'}"
        if model is None:
            raise refuse("unknown-model", "/model", "unknown_model", rule)
        raise refuse("wrong-model", "/model", "wrong_task", rule)
