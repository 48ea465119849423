"""Write the response of POST /complete."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np

from service.endpoints.common.reasons import reasons_to_dict, reasons_to_tensors
from service.endpoints.complete.infer import WHOLE, Completed, CompleteInputs
from service.endpoints.complete.schemas import Box
from service.imaging.encode import encode_base64_png, encode_png, encode_sheet
from service.media_types import PNG, SAFETENSORS
from service.payload import (
    ResponsePayload,
    make_image_payload,
    make_json_payload,
    make_tensors_payload,
)
from service.registry.handles import Completer


def encode_completions(
    task: CompleteInputs, completed: Completed, media_type: str
) -> ResponsePayload:
    """Return the response with the completed images, as JSON, tensors or one image of them all."""
    completions = completed.completions
    images = [completion.image for completion in completions]
    entries: list[dict[str, Any]] = [{"convergence": c.convergence} for c in completions]
    reasons = [c.reasons for c in completions if c.reasons is not None]
    document: dict[str, Any] = {
        "images": entries,
        **task.model.origin,
        "dynamics": completed.dynamics,
    }
    if task.box != WHOLE:
        rows, columns = task.box
        height, width = images[0].pixels.shape[:2]
        box = Box(left=columns.start, top=rows.start, width=width, height=height)
        document["box"] = box.model_dump()
    errors = [c.expected_error for c in completions if c.expected_error is not None]
    if media_type == SAFETENSORS:
        arrays = {f"image_{i}": np.array(image.to_array()) for i, image in enumerate(images)}
        arrays |= {f"uncertainty_{i}": np.array(error) for i, error in enumerate(errors)}
        return make_tensors_payload(arrays | reasons_to_tensors(reasons), document)
    for entry, row in zip(entries, reasons, strict=False):
        entry["reasons"] = reasons_to_dict(row, tiles=isinstance(task.model, Completer))
    for entry, error in zip(entries, errors, strict=False):
        grey = np.rint(255 * error).astype(np.uint8)
        entry["b64_uncertainty_png"] = base64.b64encode(encode_png(grey)).decode()
    if media_type == PNG:
        return make_image_payload(encode_sheet(images), document)
    pairs = zip(images, entries, strict=True)
    document["images"] = [{"b64_png": encode_base64_png(image), **entry} for image, entry in pairs]
    return make_json_payload(document)
