"""Adapters between the Open Inference Protocol and the native routes, one per kind of model."""

from __future__ import annotations

import secrets
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np
import orjson
import safetensors.numpy

from models.memories import MemoryCard, decode_letters
from service.endpoints.common.schemas import Dynamics
from service.endpoints.open_inference.schemas import Datatype, Parameters, TensorMetadata
from service.endpoints.open_inference.tensors import Inference
from service.errors import make_problem, pointer
from service.imaging.encode import encode_png
from service.media_types import JSON, MULTIPART, SAFETENSORS
from service.payload import ResponsePayload
from service.registry.handles import (
    Classifier,
    ClassifierBase,
    Completer,
    ImageClassifier,
    ImageModel,
    Model,
    Scorer,
    VisualQuestionModel,
)
from service.settings import Settings

Arrays = dict[str, np.ndarray]
M = TypeVar("M", bound=Model[Any])
_OWN = frozenset({"binary_data_output"})  # parameters that are the protocol's


@dataclass(frozen=True)
class NativeRequest:
    """A body for a native route, and its content type."""

    body: bytes
    content_type: str


class ModelAdapter(ABC):
    """A model, or a memory to sample from; `route` is the path of the native route."""

    route: str
    sha256: str
    name: str
    version: str
    platform: str

    @property
    @abstractmethod
    def inputs(self) -> list[TensorMetadata]:
        """Metadata of the input tensors."""

    @property
    @abstractmethod
    def outputs(self) -> list[TensorMetadata]:
        """Metadata of the output tensors."""

    @abstractmethod
    def to_native(self, inference: Inference, settings: Settings) -> NativeRequest:
        """Convert a request for the native route, after checking the size of images.

        Raises:
            Problem: an input that does not fit the route.
        """

    @abstractmethod
    def from_native(self, answer: ResponsePayload) -> Arrays:
        """Extract the output tensors from the safetensors response of the native route."""


class CheckpointAdapter(ModelAdapter, Generic[M]):
    def __init__(self, model: M) -> None:
        self.model, self.route, self.sha256 = model, model.route, model.sha256
        self.name, self.version = model.name, model.manifest.version
        self.platform = f"basin_{model.manifest.architecture}"


class Scores(CheckpointAdapter[Scorer]):
    @property
    def inputs(self) -> list[TensorMetadata]:
        several = [_tensor("edge_type", "INT64", -1)] if len(self.model.relations) > 1 else []
        x = _tensor("x", "FP32", -1, len(self.model.features))
        return [x, *_edge_tensors(self.model.edge_features), *several]

    @property
    def outputs(self) -> list[TensorMetadata]:
        return [
            _tensor("row", "INT64", -1),
            _tensor("score", "FP32", -1),
            _tensor("probability", "FP64", -1),
            _tensor("label", "INT64", -1),
            _tensor("rank", "INT64", -1),
        ]

    def to_native(self, inference: Inference, settings: Settings) -> NativeRequest:
        return _of_tensors(inference, _enveloped(inference.parameters, model=self.name))

    def from_native(self, answer: ResponsePayload) -> Arrays:
        found = safetensors.numpy.load(answer.file)
        return {name.removeprefix("results."): array for name, array in found.items()}


class _Labels(CheckpointAdapter[M]):
    """Tensors of `results`, one row each; NaN and an empty label for failed inputs."""

    @property
    @abstractmethod
    def labelled(self) -> dict[str, Sequence[str]]:
        """Labels of each task, by the prefix of its tensor names."""

    @property
    def outputs(self) -> list[TensorMetadata]:
        found = []
        for start, labels in self.labelled.items():
            found += [
                _tensor(f"{start}label", "BYTES", -1),
                _tensor(f"{start}probabilities", "FP64", -1, len(labels)),
            ]
        return found

    def from_native(self, answer: ResponsePayload) -> Arrays:
        results = orjson.loads(answer.document)["results"]
        arrays = Arrays()
        for start, labels in self.labelled.items():
            told = [self.prediction(result, start) for result in results]
            arrays[f"{start}label"] = _strings(one and one[0] for one in told)
            none = dict.fromkeys(labels, np.nan)
            rows = [[(one[1] if one else none)[name] for name in labels] for one in told]
            arrays[f"{start}probabilities"] = np.array(rows, np.float64)
        return arrays | safetensors.numpy.load(answer.file)

    @abstractmethod
    def prediction(
        self, result: Mapping[str, Any], start: str
    ) -> tuple[str, Mapping[str, float]] | None:
        """Return its label and its probabilities, if there are any."""


class Classifies(_Labels[Classifier]):
    @property
    def inputs(self) -> list[TensorMetadata]:
        if self.model.reads_smiles:
            return [_tensor("smiles", "BYTES", -1)]
        x = _tensor("x", "FP32", -1, len(self.model.node_features))
        return [x, *_edge_tensors(self.model.edge_features), _tensor("ptr", "INT64", -1)]

    @property
    def outputs(self) -> list[TensorMetadata]:
        return [*super().outputs, _tensor("status", "BYTES", -1)]

    @property
    def labelled(self) -> dict[str, Sequence[str]]:
        return {f"{task.name}.": task.labels for task in self.model.tasks}

    def to_native(self, inference: Inference, settings: Settings) -> NativeRequest:
        fields = _enveloped(inference.parameters, model=self.name)
        if "smiles" not in inference.inputs:
            return _of_tensors(inference, fields)
        if len(inference.inputs) > 1:
            raise _refused(inference, "smiles", "`smiles` must be the only input.")
        smiles = _texts(inference, "smiles")
        return NativeRequest(orjson.dumps(fields | {"smiles": smiles}), JSON)

    def from_native(self, answer: ResponsePayload) -> Arrays:
        results = orjson.loads(answer.document)["results"]
        codes = (r["status"] if r["status"] == "ok" else r["error"]["code"] for r in results)
        return super().from_native(answer) | {"status": _strings(codes)}

    def prediction(
        self, result: Mapping[str, Any], start: str
    ) -> tuple[str, Mapping[str, float]] | None:
        if result["status"] != "ok":
            return None
        found = result["predictions"][start[:-1]]
        return found["label"], found["probabilities"]


class Completes(CheckpointAdapter[Completer]):
    @property
    def inputs(self) -> list[TensorMetadata]:
        return [_tensor("image", "UINT8", -1, -1, 3), _tensor("mask", "BOOL", -1, -1)]

    @property
    def outputs(self) -> list[TensorMetadata]:
        return [_tensor("completed", "UINT8", -1, -1, -1, 3)]

    def to_native(self, inference: Inference, settings: Settings) -> NativeRequest:
        files = []
        for name in inference.inputs:
            [image] = _image_tensors(inference, name, (2, 3) if name == "image" else (2,), settings)
            files.append((name, image))
        return _form(_enveloped(inference.parameters, model=self.name), files)

    def from_native(self, answer: ResponsePayload) -> Arrays:
        found = safetensors.numpy.load(answer.file)
        count = sum(name.startswith("image_") for name in found)
        images = [found.pop(f"image_{i}") for i in range(count)]
        several = np.stack(images)
        return {"completed": several[..., None] if several.ndim == 3 else several} | found


class _Looks(_Labels[M]):
    @property
    def labelled(self) -> dict[str, Sequence[str]]:
        assert isinstance(self.model, ClassifierBase)
        return {"": self.model.tasks[0].labels}

    @property
    def inputs(self) -> list[TensorMetadata]:
        assert isinstance(self.model, ImageModel)
        return [_tensor("image", "UINT8", -1, -1, -1, self.model.config.shape[0])]

    def to_native(self, inference: Inference, settings: Settings) -> NativeRequest:
        fields = _enveloped(inference.parameters, model=self.name)
        files = [("image", one) for one in _image_tensors(inference, "image", (4,), settings)]
        rest = inference.inputs.keys() - {"image"}
        return _form(fields | {name: _texts(inference, name) for name in rest}, files)

    def prediction(
        self, result: Mapping[str, Any], start: str
    ) -> tuple[str, Mapping[str, float]] | None:
        return result.get("label", result.get("answer")), result["probabilities"]


class Recognises(_Looks[ImageClassifier]):
    pass


class Answers(_Looks[VisualQuestionModel]):
    @property
    def inputs(self) -> list[TensorMetadata]:
        return [*super().inputs, _tensor("question", "BYTES", -1)]


class Samples(ModelAdapter):
    """A memory, which accepts the tensors of /sample and needs none."""

    route, platform = "/sample", "basin_memory"

    def __init__(self, name: str, card: MemoryCard) -> None:
        self.name, self._card, self.sha256 = name, card, card.sha256
        self.version = card.sha256[:12]

    @property
    def inputs(self) -> list[TensorMetadata]:
        return []

    @property
    def outputs(self) -> list[TensorMetadata]:
        card = self._card
        if card.kind == "sequences":
            return [_tensor("samples", "BYTES", -1)]
        return [_tensor("samples", "FP32", -1, *card.shape)]

    def to_native(self, inference: Inference, settings: Settings) -> NativeRequest:
        return _of_tensors(inference, _parsed(inference.parameters) | {"memory": self.name})

    def from_native(self, answer: ResponsePayload) -> Arrays:
        """Return `samples`, or `samples_0` and so on for several temperatures."""
        found = safetensors.numpy.load(answer.file)
        if self._card.kind == "sequences":
            return {name: _strings(decode_letters(array)) for name, array in found.items()}
        return {name: array.astype(np.float32, copy=False) for name, array in found.items()}


_KINDS: dict[type[Model[Any]], type[CheckpointAdapter[Any]]] = {
    Scorer: Scores,
    Classifier: Classifies,
    Completer: Completes,
    ImageClassifier: Recognises,
    VisualQuestionModel: Answers,
}


def of_model(model: Model[Any]) -> ModelAdapter:
    return _KINDS[type(model)](model)


def _tensor(name: str, datatype: Datatype, *shape: int) -> TensorMetadata:
    return TensorMetadata(name=name, datatype=datatype, shape=list(shape))


def _edge_tensors(features: Sequence[object]) -> list[TensorMetadata]:
    attr = [_tensor("edge_attr", "FP32", -1, len(features))] if features else []
    return [_tensor("edge_index", "INT64", 2, -1), *attr]


def _parsed(parameters: Parameters) -> dict[str, Any]:
    """Parse the parameters, of which objects and lists are JSON text."""
    found = dict[str, Any]()
    for name, value in parameters.items():
        if name in _OWN:
            continue
        if isinstance(value, str) and value[:1] in ("{", "["):
            try:
                value = orjson.loads(value)
            except ValueError:
                at = pointer("parameters", name)
                detail = "Must be JSON, or text that does not start with `{` or `[`."
                raise make_problem("invalid-request", at, "wrong_type", detail) from None
        found[name] = value
    return found


def _enveloped(parameters: Parameters, **rest: Any) -> dict[str, Any]:
    """Parse the parameters, with those of the dynamics in `dynamics`."""
    found = _parsed(parameters)
    knobs = {name: found.pop(name) for name in Dynamics.model_fields if name in found}
    if knobs and "dynamics" in found:
        rule = "Send the parameters of the dynamics either one by one or as `dynamics`, not both."
        raise make_problem("invalid-request", "/parameters/dynamics", "conflict", rule)
    if isinstance(words := found.get("include"), str):
        found["include"] = [word.strip() for word in words.split(",")]
    return found | ({"dynamics": knobs} if knobs else {}) | rest


def _of_tensors(inference: Inference, fields: dict[str, Any]) -> NativeRequest:
    for name, array in inference.inputs.items():
        if array.dtype == object:
            raise _refused(inference, name, "Must hold numbers, not BYTES.")
    metadata = {"request": orjson.dumps(fields).decode()}
    return NativeRequest(safetensors.numpy.save(inference.inputs, metadata), SAFETENSORS)


def _texts(inference: Inference, name: str) -> list[str]:
    array = inference.inputs[name]
    if array.dtype != object:
        raise _refused(inference, name, "Must have the datatype BYTES.")
    return array.reshape(-1).tolist()


def _image_tensors(
    inference: Inference, name: str, dims: tuple[int, ...], settings: Settings
) -> list[bytes]:
    """Encode each image as PNG; a tensor of four dimensions is a batch."""
    array = inference.inputs.get(name)
    if array is None:
        detail = f"The input `{name}` is required."
        raise make_problem("invalid-request", "/inputs", "missing", detail)
    if array.dtype == np.bool_:
        array = array.astype(np.uint8) * 255
    if array.dtype != np.uint8:
        raise _refused(inference, name, "Must have the datatype UINT8 or BOOL.")
    if array.ndim not in dims or not array.size or (array.ndim > 2 and array.shape[-1] > 4):
        shape = f"{' or '.join(map(str, dims))} dimensions, the last with at most 4 channels"
        raise _refused(inference, name, f"Must have {shape}.")
    batch = array if array.ndim == 4 else array[None]
    num_pixels = batch.shape[1] * batch.shape[2]
    if len(batch) > settings.max_images or num_pixels > settings.max_pixels:
        rule = (
            f"{len(batch)} images of {num_pixels} pixels were sent; at most {settings.max_images} "
            f"(BASIN_MAX_IMAGES) of {settings.max_pixels} pixels (BASIN_MAX_PIXELS) are allowed."
        )
        raise make_problem("invalid-request", _place(inference, name), "too_large", rule)
    if name == "mask":
        batch = (batch != 0).astype(np.uint8) * 255
    squeezed = batch[..., 0] if batch.ndim == 4 and batch.shape[3] == 1 else batch
    return [encode_png(image) for image in squeezed]


def _form(fields: Mapping[str, Any], files: Iterable[tuple[str, bytes]]) -> NativeRequest:
    """Build a multipart/form-data body, in which images need no base64."""
    boundary = secrets.token_hex(16).encode()
    named = [
        (name, value.encode() if isinstance(value, str) else orjson.dumps(value))
        for name, value in fields.items()
    ]
    lines = []
    for name, content in (*named, *files):
        told = f'content-disposition: form-data; name="{_plain(name)}"'.encode()
        lines += [b"--" + boundary, told, b"", content]
    body = b"\r\n".join((*lines, b"--" + boundary + b"--", b""))
    return NativeRequest(body, f"{MULTIPART}; boundary={boundary.decode()}")


def _plain(name: str) -> str:
    """Return the name, or `unknown` if it could break the header; the route refuses that."""
    return name if name.isidentifier() and name.isascii() else "unknown"


def _strings(texts: Iterable[str | None]) -> np.ndarray:
    return np.array([text or "" for text in texts], object)


def _refused(inference: Inference, name: str, rule: str) -> Exception:
    return make_problem("invalid-request", _place(inference, name), "wrong_type", rule)


def _place(inference: Inference, name: str) -> str:
    return pointer("inputs", list(inference.inputs).index(name))
