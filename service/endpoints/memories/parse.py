"""Parse bodies of PUT /memories/{id}."""

from __future__ import annotations

import numpy as np

from models.memories import Memory
from service.endpoints.common.memory_body import (
    DESCRIPTION,
    PATTERNS,
    memory_of_json,
    memory_of_tensor,
)
from service.endpoints.memories.schemas import StoredDescription
from service.errors import unknown_fields
from service.media_types import JSON
from service.validation.arrays import make_graph_problem_at, reraise_as
from service.validation.json_body import parse_json_object
from service.validation.safetensors_body import parse_safetensors
from service.validation.schema_errors import make_request_problem, validate_fields


def parse_store(body: bytes, media_type: str) -> tuple[Memory, np.ndarray, StoredDescription]:
    """Return the memory, its items and its description.

    Raises:
        Problem: the body contains no valid memory.
    """
    if media_type == JSON:
        fields, tensors = parse_json_object(body, "invalid-json"), {}
        known = ("patterns", "sequences", *DESCRIPTION)
    else:
        with reraise_as("invalid-memory"):
            tensors, metadata = parse_safetensors(body, PATTERNS)
            if "patterns" not in tensors:
                raise make_graph_problem_at("/patterns", "missing", "This tensor is required.")
        fields = parse_json_object(metadata.get("request", "{}").encode(), "invalid-safetensors")
        known = DESCRIPTION
    if faults := unknown_fields(fields, (*StoredDescription.model_fields, *known)):
        raise make_request_problem(faults)
    described = validate_fields(StoredDescription, fields)
    spec = {name: value for name, value in fields.items() if name in known}
    if tensors:
        return *memory_of_tensor(tensors, spec), described
    return *memory_of_json(spec), described
