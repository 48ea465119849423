"""Answer the client's requests within this process.

Bodies are parsed, computed and encoded by the functions that the server's routes use, so that
results, explanations and errors are those of a server, to the bit. There is no queue, cache or
deadline, and no limit but those of the formats.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import httpx
from basin_client import ProblemError, Request
from basin_client.schema import GraphSchema
from basin_client.transport import to_httpx

from models.base import RUN_ALONE
from models.inputs.images import ImageInput
from models.inputs.inpainting.plan import Tiling
from models.inputs.molecules import Molecule, MoleculeError, parse_smiles
from models.interpret.molecule_svg import draw_molecule
from service.endpoints.anomaly.encode import encode_scores
from service.endpoints.anomaly.infer import pack_if_large, score
from service.endpoints.anomaly.parse import ScoreInputs, TransactionScoreInputs, parse_score
from service.endpoints.classify.encode import encode_classification, list_drawings
from service.endpoints.classify.infer import classify, graph_results, require_any
from service.endpoints.classify.parse import parse_classify
from service.endpoints.complete.decoding import decode_request
from service.endpoints.complete.encode import encode_completions
from service.endpoints.complete.infer import complete_image
from service.endpoints.complete.parse import read_request
from service.endpoints.complete.plan import find_completer, make_inputs, plan_completion
from service.endpoints.images.crop import decode_and_fit, fitted
from service.endpoints.images.encode import encode_images
from service.endpoints.images.infer import recognise
from service.endpoints.images.parse import read_look
from service.endpoints.models.describe import describe_model
from service.endpoints.sample.encode import encode_samples
from service.endpoints.sample.infer import sample
from service.endpoints.sample.parse import parse_sample
from service.errors import Problem
from service.media_types import JSON, SAFETENSORS
from service.observability.progress import Progress
from service.payload import ResponsePayload
from service.registry.handles import (
    Classifier,
    Completer,
    ImageClassifier,
    Model,
    Scorer,
    VisualQuestionModel,
)
from service.registry.registry import Registry
from service.settings import Settings
from service.storage.memories import MemoryStore
from service.workers.smiles_pool import scale_effects

T = TypeVar("T")
_FORMAT_LIMITS = ("max_pixels", "max_atoms", "max_smiles_length")


def lift_limits() -> Settings:
    """Return settings without limits of a server; those of the formats stay."""
    names = {name for name in Settings.model_fields if name.startswith("max_")}
    limits: dict[str, Any] = dict.fromkeys(names.difference(_FORMAT_LIMITS), sys.maxsize)
    return Settings.model_construct(**limits)


class ModelAnswerer:
    """Answers requests to one model."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self._registry = Registry.from_models([model])
        self._settings = lift_limits()

    def answer(self, request: Request[T]) -> T:
        """Return what the client would return.

        Raises:
            ProblemError: the request is not one that the model can answer.
        """
        if request.bind is not None:
            detail = describe_model(self._model, self._settings).model_dump(mode="json")
            request = request.bound_to(GraphSchema.from_model(detail))
        return answer(request, self._routes[request.path])

    @property
    def _routes(self) -> dict[str, Callable[[bytes, str, str], ResponsePayload]]:
        return {
            Scorer.route: self._score,
            Classifier.route: self._classify,
            Completer.route: self._complete,
            ImageClassifier.route: partial(self._look, ImageClassifier),
            VisualQuestionModel.route: partial(self._look, VisualQuestionModel),
        }

    def _score(self, body: bytes, content_type: str, accept: str) -> ResponsePayload:
        inputs = parse_score(body, content_type, self._registry, self._settings)
        if isinstance(inputs, TransactionScoreInputs):
            inputs = inputs.build(self._settings)
        assert isinstance(inputs, ScoreInputs)
        scored = score(inputs, pack_if_large(inputs), RUN_ALONE, _max_tensor_bytes(accept))
        return encode_scores(inputs, scored, accept)

    def _classify(self, body: bytes, content_type: str, accept: str) -> ResponsePayload:
        inputs = parse_classify(body, content_type, self._registry, self._settings)
        molecules = [_try_parse(text) for text in inputs.smiles or ()]
        items = inputs.items(molecules, self._settings.max_smiles_length)
        require_any(inputs, [item.error for item in items])
        graphs = [item.graph for item in items if item.graph is not None]
        room = _max_tensor_bytes(accept)
        classified = classify(inputs.model, graphs, inputs.params, RUN_ALONE, inputs.include, room)
        if inputs.smiles is not None:
            for drawing in list_drawings(inputs.smiles, items, classified.explained):
                effects = scale_effects(drawing.effects)
                drawing.explanation["svg"] = draw_molecule(drawing.smiles, effects)
        results = graph_results(inputs, items, classified)
        return encode_classification(inputs, items, results, classified, accept)

    def _complete(self, body: bytes, content_type: str, accept: str) -> ResponsePayload:
        upload = read_request(body, content_type, self._settings)
        model = find_completer(upload, self._registry, self._model.name)
        opened = decode_request(upload)
        tiling = Tiling.from_size(model.config.size)
        plan = plan_completion(upload, opened, tiling, self._settings.max_windows)
        inputs = make_inputs(upload, opened, model, plan)
        return encode_completions(inputs, complete_image(inputs, Progress(), RUN_ALONE), accept)

    def _look(
        self,
        kind: type[ImageClassifier] | type[VisualQuestionModel],
        body: bytes,
        content_type: str,
        accept: str,
    ) -> ResponsePayload:
        inputs = read_look(body, content_type, kind, self._registry, self._settings)
        model = inputs.model
        fit = partial(fitted, shape=model.config.shape, blank_C=model.mean_color, fit=inputs.fit)
        images = [decode_and_fit(file, where, fit) for where, file in inputs.images]
        rows = [
            ImageInput(images[place], None if question is None else question.encode())
            for place, question in inputs.rows
        ]
        params, include = inputs.params, inputs.include
        recognised = recognise(model, rows, params, include, Progress(), RUN_ALONE)
        return encode_images(inputs, recognised, accept)


class MemoryAnswerer:
    """Answers `POST /sample` from the memories of a store."""

    def __init__(self, memories: MemoryStore) -> None:
        self._memories = memories
        self._settings = lift_limits()

    def answer(self, request: Request[T]) -> T:
        """As `ModelAnswerer.answer`."""
        return answer(request, self._sample)

    def _sample(self, body: bytes, content_type: str, accept: str) -> ResponsePayload:
        inputs = parse_sample(body, content_type, self._memories, self._settings)
        return encode_samples(inputs, sample(inputs, Progress(), RUN_ALONE), accept)


def answer(request: Request[T], compute: Callable[[bytes, str, str], ResponsePayload]) -> T:
    """Have a request computed from its body, content type and accepted type; parse the response.

    Raises:
        ProblemError: the request was refused, as a server would have.
    """
    parts: dict[str, Any] = to_httpx(request) | {"url": "http://localhost"}
    sent = httpx.Request(**parts)
    accept = request.headers.get("accept", JSON)
    try:
        payload = compute(sent.read(), sent.headers["content-type"], accept)
    except Problem as problem:
        raise ProblemError(problem.status, problem.to_document("local")) from None
    headers = {"content-type": payload.media_type}
    return request.parse(httpx.Response(200, headers=headers, content=payload.render({}, "local")))


def _max_tensor_bytes(accept: str) -> int | None:
    """Return no limit where reasons are sent as tensors, else None: the strongest, as JSON."""
    return sys.maxsize if accept == SAFETENSORS else None


def _try_parse(smiles: str) -> Molecule | MoleculeError:
    try:
        return parse_smiles(smiles)
    except MoleculeError as error:
        return error
