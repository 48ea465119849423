"""Parse bodies of POST /complete."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from models.inputs.image_files.header import EncodedImage
from service.endpoints.common.envelope import read_envelope
from service.endpoints.common.schemas import Dynamics
from service.endpoints.complete.masks import MaskMode
from service.endpoints.complete.schemas import CompleteKnobs, CompleteRequest
from service.errors import make_problem
from service.imaging.upload import UploadSpec, inspect_file, parse_upload
from service.settings import Settings
from service.validation.schema_errors import validate_fields

_KNOWN = tuple(field.alias or name for name, field in CompleteRequest.model_fields.items())
_BODY = UploadSpec(
    _KNOWN,
    max_files={"image": 1, "mask": 1},
    text_fields=("model", "memory", "mask_mode", "return"),
)


@dataclass(frozen=True)
class CompletionRequest:
    """A parsed request: image and mask, inspected but not decoded, and the parameters."""

    image: EncodedImage
    mask: EncodedImage | None
    mask_mode: MaskMode
    num_samples: int
    region: Literal["image", "hole"]
    model: str | None
    memory: str | None
    dynamics: Dynamics
    include: frozenset[str]


def read_request(body: bytes, content_type: str, settings: Settings) -> CompletionRequest:
    """
    Args:
        content_type: the header, of JSON or `MULTIPART`, with its parameters.

    Raises:
        Problem: all errors of the first stage that fails: syntax, envelope, params, files.
    """
    fields, files = parse_upload(body, content_type, _BODY)
    envelope = read_envelope(fields, _KNOWN, settings)
    params = validate_fields(CompleteKnobs, fields)
    if envelope.model is not None and params.memory is not None:
        rule = (
            "Both `model` and `memory` were sent; an image is completed by one of them. Leave out "
            "the other."
        )
        raise make_problem("invalid-request", "/memory", "conflict", rule)
    _require_files(files, params.mask_mode)
    image, mask = (
        inspect_file(files[name][0], settings.max_pixels) if name in files else None
        for name in _BODY.max_files
    )
    assert image is not None
    if mask is not None and mask.shape != image.shape:
        height, width = image.shape
        rule = f"The mask must have the size of the image, {width} x {height} pixels."
        raise make_problem("invalid-image", "/mask", "wrong_shape", rule)
    return CompletionRequest(
        image,
        mask,
        params.mask_mode,
        params.num_samples,
        params.region,
        envelope.model,
        params.memory,
        envelope.dynamics,
        frozenset(envelope.include),
    )


def _require_files(files: Mapping[str, object], mode: MaskMode) -> None:
    if "image" not in files:
        raise make_problem(
            "invalid-request", "/image", "missing", "No image was sent. Send the image to complete."
        )
    if "mask" not in files and mode != "alpha":
        rule = (
            "No mask was sent. Send one, or an image with an alpha channel and `mask_mode` `alpha`."
        )
        raise make_problem("invalid-request", "/mask", "missing", rule)
