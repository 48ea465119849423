"""Write the response of POST /classify."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from service.endpoints.classify.explanation import Explained
from service.endpoints.classify.infer import Classified, error_of, require_any
from service.endpoints.classify.parse import ClassifyInputs, Item
from service.endpoints.common.convergence import aggregate
from service.endpoints.common.reasons import reasons_to_tensors
from service.media_types import JSON
from service.payload import (
    ResponsePayload,
    dump_parts,
    make_json_payload,
    make_tensors_payload,
    split_items,
)


@dataclass(frozen=True)
class Drawing:
    """A molecule to draw, with the effect of each atom, for the explanation of one task."""

    smiles: str
    effects: list[float]
    explanation: dict[str, Any]


def list_drawings(
    smiles: Sequence[str], items: Sequence[Item], explained: Sequence[Explained]
) -> Iterator[Drawing]:
    """Yield what is to be drawn of the molecules that could be read."""
    texts = [text for text, item in zip(smiles, items, strict=True) if item.graph is not None]
    for text, of_graph in zip(texts, explained, strict=False):
        tasks = zip(of_graph.by_task.values(), of_graph.effect_TN, strict=True)
        for explanation, effect_N in tasks:
            if len(effect_N):
                yield Drawing(text, effect_N.tolist(), explanation)


def encode_classification(
    inputs: ClassifyInputs,
    items: Sequence[Item],
    results: Sequence[dict[str, Any]],
    classified: Classified,
    media_type: str,
) -> ResponsePayload:
    """Return the response, as JSON or as tensors.

    Raises:
        Problem: none of the inputs has a result.
    """
    require_any(inputs, [error_of(result) for result in results])
    rows = [result["convergence"] for result in results if "convergence" in result]
    document = {
        "results": results,
        "model": inputs.model.ref_dict,
        "dynamics": classified.dynamics,
        "convergence": aggregate(rows),
    }
    if media_type == JSON:
        return make_json_payload(document | {"results": dump_parts(split_items(results))})
    arrays = reasons_to_tensors(classified.reasons)
    if arrays:
        arrays["index"] = np.flatnonzero([item.graph is not None for item in items])
    return make_tensors_payload(arrays, document)
