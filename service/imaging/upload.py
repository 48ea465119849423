"""Parse bodies with images: files in multipart/form-data, or base64 in JSON."""

from __future__ import annotations

import binascii
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from models.inputs.image_files.header import EncodedImage, inspect_header
from service.errors import Problem, make_problem, pointer
from service.imaging.errors import image_errors_at
from service.media_types import JSON, MULTIPART
from service.validation.json_body import parse_json_object
from service.validation.multipart import parse_multipart
from service.workers.large_json import LARGE_BODY_BYTES

_MAX_FIELD = 1 << 16
_DATA_URI = re.compile(
    r"data:[\w.+-]{0,64}/?[\w.+-]{0,64}(?:;[\w-]{1,32}=[\w.-]{1,64}){0,4};base64,"
)


@dataclass(frozen=True)
class UploadSpec:
    """Names of the fields of a body, the maximum number of images by field, and the fields that are
    text in a form (the others are JSON)."""

    fields: Collection[str]
    max_files: Mapping[str, int]
    text_fields: Collection[str]


@dataclass(frozen=True)
class UploadedFile:
    """An image as bytes or base64 text, and the JSON pointer to it."""

    data: bytes | str
    pointer: str


def parse_upload(
    body: bytes, content_type: str, shape: UploadSpec
) -> tuple[dict[str, Any], dict[str, list[UploadedFile]]]:
    """Return the fields of a body without images, and the images by field, at least one each.

    Args:
        content_type: the header, of JSON or `MULTIPART`, with its parameters.

    Raises:
        Problem: the body cannot be parsed, or has too many images.
    """
    if content_type.partition(";")[0].strip().lower() != JSON:
        max_counts = dict.fromkeys(shape.fields, 1) | dict(shape.max_files)
        parts = parse_multipart(body, content_type, max_counts)
        files = {
            name: _numbered(name, parts.pop(name)) for name in shape.max_files if name in parts
        }
        return {name: _field(name, part, shape) for name, [part] in parts.items()}, files
    if len(body) > LARGE_BODY_BYTES:
        detail = (
            f"The JSON body has {len(body)} bytes; at most {LARGE_BODY_BYTES} are allowed on "
            f"this route. Send images as {MULTIPART}."
        )
        raise Problem("body-too-large", detail)
    fields = parse_json_object(body, "invalid-json")
    given = {name: fields.pop(name) for name in shape.max_files if fields.get(name) is not None}
    return fields, {
        name: _in_json(name, value, shape.max_files[name]) for name, value in given.items()
    }


def inspect_file(file: UploadedFile, max_pixels: int) -> EncodedImage:
    """Decode base64 if necessary, and inspect the header.

    Raises:
        Problem: invalid base64, or an image that cannot be read.
    """
    data = _decoded(file.data, file.pointer) if isinstance(file.data, str) else file.data
    with image_errors_at(file.pointer):
        return inspect_header(data, max_pixels)


def _numbered(name: str, files: list[bytes]) -> list[UploadedFile]:
    several = len(files) > 1
    return [
        UploadedFile(f, pointer(name, i) if several else pointer(name)) for i, f in enumerate(files)
    ]


def _in_json(name: str, value: object, max_files: int) -> list[UploadedFile]:
    rule = f"Must be a base64 image{' or a list of base64 images' * (max_files > 1)}."

    if type(value) is str:
        return [UploadedFile(value, pointer(name))]
    if type(value) is not list or max_files == 1:
        raise make_problem("invalid-request", pointer(name), "wrong_type", rule)
    if not value:
        raise make_problem(
            "invalid-request", pointer(name), "empty", "The list is empty. Send at least one image."
        )
    if len(value) > max_files:
        detail = (
            f"{len(value)} images were sent; at most {max_files} (BASIN_MAX_IMAGES) are "
            "allowed. Send several requests."
        )
        raise make_problem("invalid-request", pointer(name), "too_many", detail)
    for i, each in enumerate(value):
        if type(each) is not str:
            raise make_problem("invalid-request", pointer(name, i), "wrong_type", rule)
    return [UploadedFile(each, pointer(name, i)) for i, each in enumerate(value)]


def _field(name: str, part: bytes, shape: UploadSpec) -> Any:
    """Parse a field of a form: text or JSON, by `shape.text_fields`."""
    if len(part) > _MAX_FIELD:
        detail = f"The field has {len(part)} bytes; at most {_MAX_FIELD} are allowed."
        raise make_problem("invalid-request", pointer(name), "too_long", detail)
    try:
        return part.decode() if name in shape.text_fields else orjson.loads(part)
    except ValueError:
        rule = "Must be UTF-8 text." if name in shape.text_fields else "Must be JSON."
        raise make_problem("invalid-request", pointer(name), "wrong_type", rule) from None


def _decoded(text: str, where: str) -> bytes:
    """Decode padded base64 (RFC 4648), with or without line breaks."""
    if uri := _DATA_URI.match(text):
        text = text[uri.end() :]
    elif text.startswith("data:"):
        rule = "Must be base64, or a base64 data URI such as `data:image/png;base64,...`."
        raise make_problem("invalid-request", where, "not_base64", rule)
    try:
        return binascii.a2b_base64(text.encode("ascii").translate(None, b"\r\n"), strict_mode=True)
    except ValueError:  # the message of binascii may quote the input
        rule = "Must be base64 with the standard alphabet and padding."
        raise make_problem("invalid-request", where, "not_base64", rule) from None
