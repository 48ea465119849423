"""A model, or a memory, within this process."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from basin_client import (
    AlertRule,
    ClassificationResult,
    CompletionResult,
    Convergence,
    Dynamics,
    ImageResult,
    InputError,
    ItemError,
    SampleResult,
    Scores,
    operations,
    transaction_operations,
)
from basin_client.images import ImageInput
from basin_client.request import Include

from basin.local.answer import MemoryAnswerer, ModelAnswerer
from models.base import Architecture
from models.manifest import CheckpointError, Manifest
from models.memories import MemoryFileError, load_memory
from models.paths import find_shipped
from service.registry.handles import Model as LoadedModel
from service.registry.handles import Scorer
from service.registry.loader import BackendUnavailableError, ModelLoader
from service.settings import Settings
from service.storage.memories import MemoryStore

_METHODS = {
    "/anomaly/score": "score(graph)",
    "/classify": "classify(molecules)",
    "/complete": "complete(image, mask)",
    "/images/classify": "classify_images(images)",
    "/images/answer": "answer_images(images, question)",
}
_ENERGY_PARTS: tuple[Include, ...] = ("trace", "components")
Question = str | Mapping[str, str] | Sequence[str | Mapping[str, str]]


class Model:
    """A checkpoint in this process; `basin.load` returns it.

    The methods take what those of `basin_client.Client` take, and return the same, equal to the bit
    to what a server answers on the same device with as many threads. A method that the model does
    not serve raises `InputError`, which names the one that it does.

    Attributes:
        name: of the model.
        network: the PyTorch module: its parameters, and its energies, block by block
            (`blocks_in_order()`).
        manifest: what the checkpoint says of itself: configuration, dynamics, training, metrics.
    """

    def __init__(self, loaded: LoadedModel[Any]) -> None:
        self._loaded = loaded
        self._answerer = ModelAnswerer(loaded)

    def __repr__(self) -> str:
        return f"<basin.Model {self.name}: {_METHODS[self._loaded.route]}>"

    @property
    def name(self) -> str:
        return self._loaded.name

    @property
    def network(self) -> Architecture:
        return self._loaded.network

    @property
    def manifest(self) -> Manifest:
        return self._loaded.manifest

    def score(
        self,
        graph: Any,
        targets: Sequence[Any] | None = None,
        *,
        features: Sequence[str] | None = None,
        drop: str | Sequence[str] = (),
        dynamics: Dynamics | None = None,
        include: Sequence[Include] = (),
        decision: AlertRule | None = None,
    ) -> Scores:
        """Score how suspicious each node of a graph is, as `Client.score` does."""
        self._require("/anomaly/score")
        request = operations.score(
            graph,
            targets,
            features=features,
            drop=drop,
            model=self.name,
            dynamics=dynamics,
            include=include,
            decision=decision,
        )
        return self._answerer.answer(request)

    def score_transactions(
        self,
        transactions: Any,
        targets: Sequence[Any] | None = None,
        *,
        id: str | None = None,
        drop: str | Sequence[str] = (),
        decimal: str = ".",
        unlabelled: str | None = None,
        dynamics: Dynamics | None = None,
        include: Sequence[Include] = (),
        decision: AlertRule | None = None,
    ) -> Scores:
        """Score transactions, or their accounts, as `Client.score_transactions` does."""
        self._require("/anomaly/score")
        request = transaction_operations.score_transactions(
            transactions,
            targets,
            id=id,
            drop=drop,
            decimal=decimal,
            unlabelled=unlabelled,
            model=self.name,
            dynamics=dynamics,
            include=include,
            decision=decision,
        )
        return self._answerer.answer(request)

    def classify(
        self,
        inputs: Any,
        *,
        dynamics: Dynamics | None = None,
        include: Sequence[Include] = (),
    ) -> ClassificationResult:
        """Classify molecules or graphs, as `Client.classify` does."""
        self._require("/classify")
        request = operations.classify(inputs, model=self.name, dynamics=dynamics, include=include)
        return self._answerer.answer(request)

    def complete(
        self,
        image: ImageInput,
        mask: ImageInput | None = None,
        *,
        mask_mode: Literal["white_fill", "black_fill", "alpha", "soft"] | None = None,
        region: Literal["image", "hole"] | None = None,
        num_samples: int = 1,
        dynamics: Dynamics | None = None,
        include: Sequence[Include] = (),
    ) -> CompletionResult:
        """Fill the part of an image that a mask marks, as `Client.complete` does."""
        self._require("/complete")
        request = operations.complete(
            image,
            mask,
            mask_mode=mask_mode,
            region=region,
            num_samples=num_samples,
            model=self.name,
            dynamics=dynamics,
            include=include,
        )
        return self._answerer.answer(request)

    def classify_images(
        self,
        images: ImageInput | Sequence[ImageInput],
        *,
        fit: Literal["stretch", "crop"] | None = None,
        dynamics: Dynamics | None = None,
        include: Sequence[Include] = (),
    ) -> list[ImageResult]:
        """Classify images, as `Client.classify_images` does."""
        self._require("/images/classify")
        request = operations.classify_images(
            images, fit=fit, model=self.name, dynamics=dynamics, include=include
        )
        return self._answerer.answer(request)

    def answer_images(
        self,
        images: ImageInput | Sequence[ImageInput],
        question: Question,
        *,
        fit: Literal["stretch", "crop"] | None = None,
        dynamics: Dynamics | None = None,
        include: Sequence[Include] = (),
    ) -> list[ImageResult]:
        """Answer questions about images, as `Client.answer_images` does."""
        self._require("/images/answer")
        request = operations.answer_images(
            images, question, fit=fit, model=self.name, dynamics=dynamics, include=include
        )
        return self._answerer.answer(request)

    def energy(
        self, *inputs: Any, dynamics: Dynamics | None = None, **options: Any
    ) -> list[Convergence]:
        """Return how the energy of each input converged, with its parts and the whole trace.

        Args:
            inputs, options: what the method of the model takes, such as a graph, SMILES, or an
                image and a mask.

        Returns:
            One `Convergence` for a scored graph, or for each completed image, molecule, image, or
            image and question, in order; inputs that cannot be read have none. It has
            `energy_initial` and `energy_final`, `trace` with an entry for each step of each block,
            and `raw["components"]` with the parts of the energy at both ends.
        """
        methods: dict[str, Callable[..., Any]] = {
            "/anomaly/score": self.score_transactions if self._reads_transactions else self.score,
            "/classify": self.classify,
            "/complete": self.complete,
            "/images/classify": self.classify_images,
            "/images/answer": self.answer_images,
        }
        options |= {"dynamics": dynamics, "include": _ENERGY_PARTS}
        return _list_convergence(methods[self._loaded.route](*inputs, **options))

    def trace(
        self, *inputs: Any, dynamics: Dynamics | None = None, **options: Any
    ) -> list[dict[str, np.ndarray]]:
        """Return the energy at each step of each input, to be drawn.

        Args:
            inputs, options: as for `energy`.

        Returns:
            For each input arrays (T,) by name: `block`, `step`, `energy`, each part of the energy,
            and `storage`, the function V, where the motion is controlled.
        """
        return [
            {name: np.array([entry[name] for entry in each.trace]) for name in each.trace[0]}
            for each in self.energy(*inputs, dynamics=dynamics, **options)
            if each.trace
        ]

    @property
    def _reads_transactions(self) -> bool:
        return isinstance(self._loaded, Scorer) and self._loaded.recipe is not None

    def _require(self, route: str) -> None:
        if self._loaded.route != route:
            raise InputError(
                f"{self.name} does not serve this: call its method {_METHODS[self._loaded.route]}."
            )


class Memory:
    """Patterns in this process, to sample from; `basin.load` returns it for the name of a memory.

    Attributes:
        name: of the memory.
    """

    def __init__(self, name: str, store: MemoryStore) -> None:
        self.name = name
        self._store = store
        self._answerer = MemoryAnswerer(store)

    def __repr__(self) -> str:
        return f"<basin.Memory {self.name}: sample(beta=..., steps=...)>"

    def sample(self, **params: Any) -> SampleResult:
        """Draw Langevin samples, as `Client.sample` does.

        Args:
            params: fields of `POST /sample`, such as `beta`, `steps`, `chains` and `seed`.
        """
        return self._answerer.answer(operations.sample(self.name, **params))


def load_model(name: str | Path, device: str, threads: int | None) -> Model | Memory:
    """As `basin.load`."""
    checkpoints, memories = find_shipped("checkpoints"), find_shipped("memories")
    path = Path(name)
    if not path.exists() and path.parent == Path():
        path = checkpoints / name
        if (memories / f"{name}.safetensors").is_file():
            return _open_memory(memories / f"{name}.safetensors")
    if path.suffix == ".safetensors" and path.is_file():
        return _open_memory(path)
    if not path.is_dir():
        names = sorted(p.name for p in checkpoints.iterdir() if p.is_dir())
        names += sorted(p.stem for p in memories.glob("*.safetensors"))
        raise InputError(
            f"{name}: no checkpoint or memory. Give a folder of a checkpoint, a file of a memory, "
            f"or one of {', '.join(names)}."
        )
    settings = Settings.model_construct(device=device, threads=threads)
    if threads is not None:
        torch.set_num_threads(threads)
    try:
        return Model(ModelLoader.from_settings(settings).load(path))
    except (CheckpointError, BackendUnavailableError, ValueError) as error:
        raise InputError(str(error)) from error


def _open_memory(file: Path) -> Memory:
    """
    Raises:
        InputError: the file is damaged.
    """
    store = MemoryStore(file.parent, file.parent, 0, 0)
    try:
        load_memory(file.read_bytes())
    except (MemoryFileError, OSError) as error:
        raise InputError(f"{file}: {error}. Get the file again.") from error
    return Memory(file.stem, store)


def _list_convergence(result: Any) -> list[Convergence]:
    """The convergence of each item of any result."""
    if isinstance(result, Scores):
        return [result.convergence]
    if isinstance(result, CompletionResult):
        return [Convergence.from_dict(each) for each in result.convergence]
    items = [item for item in result if not isinstance(item, ItemError)]
    return [item.convergence for item in items]
