"""Write the response of POST /anomaly/score."""

from __future__ import annotations

from typing import Any

from models.inputs.graph import UNKNOWN
from service.endpoints.anomaly.infer import Scored, iterate_results, named, table
from service.endpoints.anomaly.parse import ScoreInputs
from service.endpoints.common.reasons import reasons_to_tensors
from service.media_types import SAFETENSORS
from service.payload import (
    ResponsePayload,
    dump_parts,
    make_json_payload,
    make_tensors_payload,
    split_items,
)


def encode_scores(task: ScoreInputs, scored: Scored, form: str) -> ResponsePayload:
    """Return the response to a score, as JSON or as tensors."""
    document: dict[str, Any] = {} if task.subgraph is None else {"graph": task.subgraph}
    document |= {
        "model": task.model.ref_dict,
        "dynamics": scored.dynamics,
        "convergence": scored.convergence,
    }
    if (labels := task.graph.labels) is not None:
        document["labels_known"] = int((labels != UNKNOWN).sum())
    if form == SAFETENSORS:
        columns, threshold = table(task, scored.logits_N)
        arrays = {f"results.{name}": column for name, column in columns.items()}
        document["threshold"] = threshold
        if scored.explanations:  # of every target
            document["explanations"] = [scored.explanations[row] for row in columns["row"].tolist()]
        return make_tensors_payload(arrays | reasons_to_tensors(scored.reasons), document)
    listed: dict[str, Any] = {"results": dump_parts(split_items(iterate_results(task, scored)))}
    if scored.reasons:
        listed["reasons"] = named(task, scored.reasons[0])
    return make_json_payload(listed | document)
