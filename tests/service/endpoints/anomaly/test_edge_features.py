"""Scores with features of edges: the same from every shape of request, and in any company."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from models import checkpoint
from models.base import DynamicsParams
from models.inputs.graph import Graph
from models.tasks.node_scorer import NodeScorer
from service.endpoints.anomaly.schemas import ArrayScoreRequest, RowScoreRequest
from tests.support.checkpoints import Sample, make_sample
from tests.support.server import Server

MODEL = "et-edges"
SAFETENSORS = {"content-type": "application/vnd.safetensors"}
Score = Callable[[Graph], np.ndarray]


@pytest.fixture(scope="module")
def directly(checkpoints: Path) -> Score:
    """Scores of all nodes, without a server."""
    network = checkpoint.load_checkpoint(checkpoints / MODEL).network
    assert isinstance(network, NodeScorer)
    return lambda graph: network.infer(network.pack([graph]), [DynamicsParams()]).logits.numpy()


@pytest.fixture
def one() -> Sample:
    return make_sample(3, 2, edge_features=2)


def score(client: httpx.Client, body: dict[str, Any] | bytes) -> np.ndarray:
    sent = {"content": body, "headers": SAFETENSORS} if isinstance(body, bytes) else {"json": body}
    response = client.post("/anomaly/score", **sent)
    assert response.status_code == 200, response.text
    return np.array([result["score"] for result in response.json()["results"]])


def turned(one: Sample) -> Sample:
    """Its columns in another order."""
    assert one.edge_attr is not None
    return replace(one, edge_attr=np.ascontiguousarray(one.edge_attr[:, ::-1]))


def named_arrays(one: Sample) -> dict[str, Any]:
    body = turned(one).arrays(model=MODEL)
    body["graph"]["edge_feature_names"] = ["hour", "amount"]
    return body


def turned_rows(one: Sample) -> dict[str, Any]:
    body = one.rows(model=MODEL)
    return body | {"edges": [dict(reversed(edge.items())) for edge in body["edges"]]}


def double(one: Sample) -> bytes:
    assert one.edge_attr is not None
    return replace(one, edge_attr=one.edge_attr.astype(np.float64)).tensors(model=MODEL)


SHAPES: dict[str, Callable[[Sample], dict[str, Any] | bytes]] = {
    "arrays": lambda one: one.arrays(model=MODEL),
    "arrays with names": named_arrays,
    "rows": lambda one: one.rows(model=MODEL),
    "rows with fields in another order": turned_rows,
    "tensors": lambda one: one.tensors(model=MODEL),
    "tensors of float64": double,
    "tensors with names": lambda one: turned(one).tensors(
        model=MODEL, edge_feature_names=["hour", "amount"]
    ),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_every_shape_is_scored_as_the_network_does(
    client: httpx.Client, directly: Score, one: Sample, shape: str
) -> None:
    scores = score(client, SHAPES[shape](one))
    np.testing.assert_allclose(scores, directly(one.graph()), rtol=1e-5, atol=1e-6)
    others = directly(turned(one).graph())
    assert np.abs(scores - others).max() > 1e-2


def test_without_edges_there_need_be_no_features(
    client: httpx.Client, directly: Score, one: Sample
) -> None:
    none = np.zeros((2, 0), np.int64)
    alone = Sample(one.x, none, none[0], one.node_ids, np.zeros((0, 2), np.float32))
    expected = directly(alone.graph())
    bare = replace(alone, edge_attr=None)
    for body in (
        *(shape(alone) for shape in SHAPES.values()),
        *(bare.arrays(model=MODEL), bare.tensors(model=MODEL)),
    ):
        np.testing.assert_allclose(score(client, body), expected, rtol=1e-5, atol=1e-6)


def test_requests_that_differ_in_features_of_edges_alone_share_a_batch_and_no_score(
    server: Server, directly: Score, one: Sample
) -> None:
    assert one.edge_attr is not None
    samples = [replace(one, edge_attr=one.edge_attr * factor) for factor in range(12)]
    expected = [directly(sample.graph()) for sample in samples]
    assert np.abs(expected[0] - expected[1]).max() > 1e-2
    bodies = [sample.arrays(model=MODEL) for sample in samples]
    with server.client() as client, ThreadPoolExecutor(12) as pool:
        for _ in range(3):
            together = list(pool.map(lambda body: score(client, body), bodies))
            np.testing.assert_allclose(together, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("neighbours", [6, 40])
def test_an_explanation_takes_edges_away_with_their_features(
    client: httpx.Client, directly: Score, neighbours: int
) -> None:
    rng = np.random.default_rng(5)
    ring = np.arange(neighbours + 1)
    star = np.stack([np.zeros(neighbours, np.int64), ring[1:]])
    edge_index = np.concatenate([star, np.stack([ring, np.roll(ring, 1)])], 1)
    edges = edge_index.shape[1]
    graph = Graph(
        rng.standard_normal((neighbours + 1, 5)).astype(np.float32),
        edge_index,
        rng.integers(0, 2, edges),
        rng.standard_normal((edges, 2)).astype(np.float32),
    )
    arrays = {
        name: getattr(graph, name).tolist()
        for name in ("x", "edge_index", "edge_type", "edge_attr")
    }
    body = {"model": MODEL, "graph": arrays, "targets": [0], "include": ["explanation"]}
    answer = client.post("/anomaly/score", json=body)
    assert answer.status_code == 200, answer.text
    explained = answer.json()["results"][0]["explanation"]["neighbours"]
    assert (explained["parts"], explained["tried"]) == (neighbours, min(neighbours, 32))
    whole = directly(graph)[0]
    causes = [*explained["supports"], *explained["opposes"]]
    assert causes
    for cause in causes:
        stay = ~((edge_index == 0).any(0) & (edge_index == cause["node_id"]).any(0))
        assert graph.edge_type is not None
        assert graph.edge_attr is not None
        rest = (edge_index[:, stay], graph.edge_type[stay], graph.edge_attr[stay])
        effect = whole - directly(Graph(graph.x, *rest))[0]
        assert cause["effect"] == pytest.approx(effect, abs=1e-4)


def test_the_schemas_have_them(one: Sample) -> None:
    ArrayScoreRequest.model_validate(one.arrays(model=MODEL))
    ArrayScoreRequest.model_validate_json(json.dumps(named_arrays(one)))
    RowScoreRequest.model_validate(one.rows(model=MODEL))
