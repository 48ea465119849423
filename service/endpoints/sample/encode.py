"""Write the response of POST /sample."""

from __future__ import annotations

from typing import Any

import numpy as np
import orjson

from models.memories import decode_letters
from service.endpoints.common.memory_schemas import MemoryRef
from service.endpoints.sample.infer import Sampled
from service.endpoints.sample.parse import SampleInputs
from service.imaging.encode import encode_png, make_grid
from service.media_types import JSON, PNG
from service.payload import (
    ResponsePayload,
    dump_parts,
    make_image_payload,
    make_json_payload,
    make_tensors_payload,
    split_items,
    split_rows,
)


def encode_samples(task: SampleInputs, sampled: Sampled, form: str) -> ResponsePayload:
    """Return the response with samples, as JSON, tensors or one image of them all."""
    memory = task.memory
    rest: dict[str, Any] = {
        "inflection": sampled.inflection,
        "memory": MemoryRef.from_memory(memory, task.memory_id, task.shape).model_dump(),
        "dynamics": sampled.dynamics,
    }
    items = [batch.items for batch in sampled.batches]
    diagnostics = [batch.diagnostics for batch in sampled.batches]
    if form == JSON:
        batches = [
            {"samples": _dump_items(memory.codec.kind, part), "diagnostics": figures}
            for part, figures in zip(items, diagnostics, strict=True)
        ]
        return make_json_payload(({"spectrum": batches} if task.spectrum else batches[0]) | rest)
    figures = {"spectrum": diagnostics} if task.spectrum else {"diagnostics": diagnostics[0]}
    if form == PNG:
        # A row of a spectrum for each temperature, else a square.
        columns = len(items[0]) if len(items) > 1 else None
        return make_image_payload(
            encode_png(make_grid(np.concatenate(items), columns)), figures | rest
        )
    names = [f"samples_{i}" for i in range(len(items))] if task.spectrum else ["samples"]
    arrays = {name: np.ascontiguousarray(part) for name, part in zip(names, items, strict=True)}
    return make_tensors_payload(arrays, figures | rest)


def _dump_items(kind: str, items: np.ndarray) -> orjson.Fragment:
    is_text = kind == "sequences"
    return dump_parts(split_items(decode_letters(items)) if is_text else split_rows(items))
