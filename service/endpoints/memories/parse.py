"""A body of PUT /memories/{id}."""

from __future__ import annotations

import numpy as np

from models.memories import Memory
from service.endpoints.sample.memory_body import (
    DESCRIPTION,
    PATTERNS,
    memory_of_json,
    memory_of_tensor,
)
from service.endpoints.sample.schemas import StoredDescription
from service.errors import unknown_fields
from service.media_types import JSON
from service.validation.arrays import fail_at, reraise_as
from service.validation.json_body import read_object
from service.validation.safetensors_body import read_safetensors
from service.validation.schema_errors import invalid, validated


def parse_store(body: bytes, media_type: str) -> tuple[Memory, np.ndarray, StoredDescription]:
    """The memory, its items and what is said of it.

    Raises:
        Problem: there is no memory in the body.
    """
    if media_type == JSON:
        fields, tensors = read_object(body, "invalid-json"), {}
        known = ("patterns", "sequences", *DESCRIPTION)
    else:
        with reraise_as("invalid-memory"):
            tensors, metadata = read_safetensors(body, PATTERNS)
            if "patterns" not in tensors:
                raise fail_at("/patterns", "missing", "this tensor is needed")
        fields = read_object(metadata.get("request", "{}").encode(), "invalid-safetensors")
        known = DESCRIPTION
    if faults := unknown_fields(fields, (*StoredDescription.model_fields, *known)):
        raise invalid(faults)
    described = validated(StoredDescription, fields)
    spec = {name: value for name, value in fields.items() if name in known}
    if tensors:
        return *memory_of_tensor(tensors, spec), described
    return *memory_of_json(spec), described
