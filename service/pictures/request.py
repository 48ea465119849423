"""A body of POST /complete: what is to be completed, and how."""

from __future__ import annotations

import binascii
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from service.complete_schemas import CompleteKnobs, CompleteRequest
from service.errors import Fault, Problem, pointer, refuse
from service.parsing.envelope import invalid, read_envelope, validated
from service.parsing.large import LARGE
from service.parsing.request import JSON
from service.parsing.syntax import read_object
from service.pictures.headers import Encoded, examine
from service.pictures.masks import MaskMode
from service.pictures.multipart import MULTIPART, read_parts
from service.pictures.picture import told_at
from service.schemas import Dynamics
from service.settings import Settings

_KNOWN = CompleteRequest.model_fields
_FILES = ("image", "mask")
_AS_TEXT = ("model", "mask_mode")  # other fields of a form hold JSON
_MAX_FIELD = 1 << 16
_DATA_URI = re.compile(
    r"data:[\w.+-]{0,64}/?[\w.+-]{0,64}(?:;[\w-]{1,32}=[\w.-]{1,64}){0,4};base64,"
)


@dataclass(frozen=True)
class PictureRequest:
    """A picture and its mask, examined but not decoded, and what was asked of them."""

    image: Encoded
    mask: Encoded | None
    mask_mode: MaskMode
    num_samples: int
    model: str | None
    dynamics: Dynamics
    include: frozenset[str]


def read_request(body: bytes, content_type: str, settings: Settings) -> PictureRequest:
    """
    Args:
        content_type: the header, of JSON or `MULTIPART`, with its parameters.

    Raises:
        Problem: the first stage that fails tells all it found: syntax, envelope, knobs, files.
    """
    fields, files = _open(body, content_type)
    envelope = read_envelope(fields, _KNOWN, settings)
    knobs = validated(CompleteKnobs, fields)
    _require_files(files, knobs.mask_mode)
    image, mask = (_examined(name, files.get(name), settings.max_pixels) for name in _FILES)
    assert image is not None
    if mask is not None and mask.shape != image.shape:
        height, width = image.shape
        rule = f"must be of the image's size, {width} x {height} pixels"
        raise refuse("invalid-image", "/mask", "wrong_shape", rule)
    return PictureRequest(
        image,
        mask,
        knobs.mask_mode,
        knobs.num_samples,
        envelope.model,
        envelope.dynamics,
        frozenset(envelope.include),
    )


def _open(body: bytes, content_type: str) -> tuple[dict[str, Any], dict[str, bytes | str]]:
    """The fields of a body, and its files: as bytes, or as the text that stands for them."""
    if content_type.partition(";")[0].strip().lower() == JSON:
        if len(body) > LARGE:
            detail = f"JSON may have up to {LARGE} bytes here; send pictures as {MULTIPART}"
            raise Problem("body-too-large", detail)
        fields = read_object(body, "invalid-json")
        given = {name: fields[name] for name in _FILES if fields.get(name) is not None}
        if wrong := [name for name in given if type(given[name]) is not str]:
            rule = "must be a picture in base64"
            raise invalid(Fault(pointer(name), "wrong_type", rule) for name in wrong)
        return fields, given
    parts = read_parts(body, content_type, _KNOWN)
    files = {name: parts[name] for name in _FILES if name in parts}
    fields = {name: _field(name, part) for name, part in parts.items() if name not in files}
    return fields, dict(files)


def _field(name: str, part: bytes) -> Any:
    """A field of a form, which is text where it can only be that and JSON elsewhere."""
    if len(part) > _MAX_FIELD:
        raise refuse("invalid-request", pointer(name), "too_long", f"up to {_MAX_FIELD} bytes")
    try:
        return part.decode() if name in _AS_TEXT else orjson.loads(part)
    except ValueError:
        rule = "must be UTF-8" if name in _AS_TEXT else "must be JSON"
        raise refuse("invalid-request", pointer(name), "wrong_type", rule) from None


def _require_files(files: Mapping[str, object], mode: MaskMode) -> None:
    if "image" not in files:
        raise refuse("invalid-request", "/image", "missing", "there is no picture to complete")
    if "mask" not in files and mode != "alpha":
        rule = "only mask_mode alpha can do without, where the image has transparency"
        raise refuse("invalid-request", "/mask", "missing", rule)


def _examined(name: str, file: bytes | str | None, max_pixels: int) -> Encoded | None:
    if file is None:
        return None
    where = pointer(name)
    data = _decoded(file, where) if isinstance(file, str) else file
    with told_at(where):
        return examine(data, max_pixels)


def _decoded(text: str, where: str) -> bytes:
    """base64 (RFC 4648) with its padding. Lines may be broken, as many encoders do."""
    if uri := _DATA_URI.match(text):
        text = text[uri.end() :]
    elif text.startswith("data:"):
        rule = "must be a data URI in base64: data:image/png;base64,..."
        raise refuse("invalid-request", where, "not_base64", rule)
    try:
        return binascii.a2b_base64(text.encode("ascii").translate(None, b"\r\n"), strict_mode=True)
    except ValueError:  # binascii's errors are; what they say may quote
        rule = "must be base64 of the standard alphabet, padded"
        raise refuse("invalid-request", where, "not_base64", rule) from None
