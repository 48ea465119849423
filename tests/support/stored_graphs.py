"""Requests that store graphs and score them, with their responses checked."""

from __future__ import annotations

from service.endpoints.anomaly.schemas import ScoreResponse
from service.endpoints.graphs.schemas import GraphBody

SAFETENSORS = {"content-type": "application/vnd.safetensors"}


def put_graph(client, graph, id="g"):
    """Store a graph, as JSON or as a file of tensors."""
    if isinstance(graph, bytes):
        return client.put(f"/graphs/{id}", content=graph, headers=SAFETENSORS)
    return client.put(f"/graphs/{id}", json=graph)


def read_graph(answer, status=200):
    """Return the graph of a response, which has this status."""
    assert answer.status_code == status, answer.text
    return GraphBody.model_validate_json(answer.content, strict=True)


def post_score(client, targets, **rest):
    """Score nodes of the stored graph `g`."""
    body = {"graph_id": "g", "targets": targets, **rest}
    return client.post("/anomaly/score", json=body)


def read_scores(client, targets, **rest):
    """Score nodes of the stored graph `g`; return the checked response."""
    answer = post_score(client, targets, **rest)
    assert answer.status_code == 200, answer.text
    ScoreResponse.model_validate_json(answer.content, strict=True)
    return answer.json()
