"""Write the responses of POST /images/classify and /images/answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from models.inputs.questions import Question
from models.interpret.prototypes import list_galleries
from service.endpoints.common.convergence import aggregate
from service.endpoints.common.reasons import reasons_to_dict, reasons_to_tensors
from service.endpoints.images.infer import Recognised
from service.endpoints.images.parse import ImageInputs
from service.media_types import SAFETENSORS
from service.payload import ResponsePayload, make_json_payload, make_tensors_payload


def encode_images(task: ImageInputs, recognised: Recognised, form: str) -> ResponsePayload:
    """Return the response about images, as JSON or as tensors."""
    labels, model = task.model.tasks[0].labels, task.model
    convergences = recognised.convergences
    results = [
        _result(number, question, labels, p_C)
        | {"image": _shown(task, index), "convergence": convergence}
        for number, ((index, question), p_C, convergence) in enumerate(
            zip(task.rows, recognised.probabilities_RC, convergences, strict=True)
        )
    ]
    document = {
        "model": model.ref_dict,
        "dynamics": recognised.dynamics,
        "convergence": aggregate(convergences),
    }
    if form == SAFETENSORS:
        return make_tensors_payload(
            reasons_to_tensors(recognised.reasons), {"results": results} | document
        )
    tiles = "memories" in list_galleries(model.network)
    for result, reasons in zip(results, recognised.reasons, strict=False):
        result["reasons"] = reasons_to_dict(reasons, tiles=tiles)
    return make_json_payload({"results": results} | document)


def _result(
    index: int, question: Question | None, labels: Sequence[str], p_C: np.ndarray
) -> dict[str, Any]:
    best = int(p_C.argmax())
    result: dict[str, Any] = {"index": index}
    if question is not None:
        parts = {name: part for name, part in asdict(question).items() if part is not None}
        result["question"] = {"text": question.text, **parts}
    return result | {
        "label" if question is None else "answer": labels[best],
        "probability": float(p_C[best]),
        "probabilities": dict(zip(labels, p_C.tolist(), strict=True)),
    }


def _shown(task: ImageInputs, index: int) -> dict[str, Any]:
    height, width = task.images[index][1].shape
    _, *size = task.model.config.shape
    return {"width": width, "height": height, "fit": task.fit, "size": size[::-1]}
