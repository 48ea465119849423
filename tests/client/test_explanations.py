"""Explanations: one shape, however they come."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import numpy as np
import pytest
from basin_client import Client, Deletion, Explanation, ExplanationPart, Graph, Prediction

from tests.support.checkpoints import FEATURES, make_sample
from tests.support.server import Server

SAMPLE = make_sample(5)
GRAPH = Graph(SAMPLE.x, SAMPLE.edge_index, node_ids=SAMPLE.node_ids)
TARGETS = ["n3", "n0", "n9"]  # in no order of suspicion


@pytest.fixture
def client(server: Server) -> Iterator[Client]:
    with Client(server.url) as client:
        yield client


def test_of_nodes_they_are_equal_from_tensors_and_from_json(client: Client, server: Server) -> None:
    scores = client.score(GRAPH, TARGETS, model="et-small", include=["explanation"])
    body = SAMPLE.arrays(model="et-small", targets=TARGETS, include=["explanation"])
    response = httpx.post(f"{server.url}/anomaly/score", json=body, timeout=60)
    in_json = [Explanation.from_dict(each["explanation"]) for each in response.json()["results"]]
    assert scores.explanations == in_json
    for row, explanation in enumerate(in_json):
        assert explanation.target == scores.node_ids[row] == TARGETS[row]
        assert explanation.label == scores.label[row]
        assert explanation.value == pytest.approx(float(scores.score[row]))
        assert explanation.probability == pytest.approx(float(scores.probability[row]))
        assert (explanation.method, explanation.unit) == ("occlusion", "score")
        assert explanation.svg is None
        assert explanation.deletions.keys() == {"neighbour", "feature", "memory"}
        sides = {(part.effect > 0) == part.supports for part in explanation.parts}
        assert sides == {bool(explanation.label)}
        names = {part.name for part in explanation.parts if part.kind == "feature"}
        assert names <= set(FEATURES)
        assert {part.name for part in explanation.parts if part.kind == "neighbour"} <= set(
            SAMPLE.node_ids
        )


def test_stored_graphs_and_rows_without_ids_are_explained(client: Client) -> None:
    client.store_graph("explained", GRAPH, model="et-small")
    stored = client.score_nodes("explained", TARGETS, model="et-small", include=["explanation"])
    assert [e.target for e in stored.explanations if e is not None] == TARGETS
    unnamed = Graph(SAMPLE.x, SAMPLE.edge_index)
    scores = client.score(unnamed, [4, 2], model="et-small", include=["explanation"])
    assert [e.target for e in scores.explanations if e is not None] == [4, 2]


def test_of_classes_there_is_one_for_each_task(client: Client) -> None:
    [result] = client.classify("Cc1ccc(cc1)[N+](=O)[O-]", include=["explanation"]).results
    assert isinstance(result, Prediction)
    assert result.explanations.keys() == result.labels.keys()
    for task, explanation in result.explanations.items():
        assert explanation == Explanation.from_dict(result.raw["explanation"][task])
        assert (explanation.target, explanation.unit) == (task, "log_odds")
        assert explanation.label == result.labels[task]
        assert explanation.probability == result.probabilities[task][result.labels[task]]
        assert explanation.svg is not None
        assert explanation.svg.rstrip().endswith("</svg>")
        frame = explanation.to_pandas()
        assert list(frame.columns) == ["kind", "name", "effect", "supports", "value", "instead"]
        assert set(frame["kind"]) <= {"node", "memory"}
        assert (frame["effect"].abs().diff().dropna() <= 0).all()
        assert ((frame["effect"] > 0) == frame["supports"]).all()


def test_without_include_there_are_none(client: Client) -> None:
    assert client.score(GRAPH, TARGETS, model="et-small").explanations == [None] * 3
    [result] = client.classify("CCO").results
    assert isinstance(result, Prediction)
    assert result.explanations == {}


def test_whether_the_energy_rose_is_in_the_convergence(client: Client) -> None:
    many = make_sample(5, 2)
    graph = Graph(many.x, many.edge_index, many.edge_type, node_ids=many.node_ids)
    flags = [
        client.score(graph, model="cdat-small", dynamics=dynamics).convergence.energy_rose
        for dynamics in ({"step_size": 0.05}, {"step_size": 20.0}, {"noise": 0.1}, {"steps": 0})
    ]
    assert flags == [False, True, None, None]


def test_parts_of_every_kind() -> None:
    causes = {"parts": 3, "tried": 3, "opposes": [], "deletion": None}
    removed = {"removed": 1, "moved": 0.5, "random": None, "draws": 8}
    payload = {
        **{"method": "occlusion", "target": 7, "label": 0, "unit": "score", "value": -1.5},
        **{"probability": 0.2, "nodes": None, "svg": None},
        "neighbours": {**causes, "supports": [{"node_id": "a", "effect": -0.5}]},
        "features": {
            **causes,
            "supports": [{"feature": "f", "value": 2.0, "instead": 1.0, "effect": -0.25}],
            "opposes": [{"feature": "g", "value": 0.0, "instead": 1.0, "effect": 1.0}],
            "deletion": removed,
        },
        "memories": {**causes, "supports": [{"block": 0, "memory": 5, "effect": -0.1}]},
    }
    explanation = Explanation.from_dict(payload)
    assert explanation.parts == [
        ExplanationPart("feature", "g", 1.0, supports=False, value=0.0, instead=1.0),
        ExplanationPart("neighbour", "a", -0.5, supports=True),
        ExplanationPart("feature", "f", -0.25, supports=True, value=2.0, instead=1.0),
        ExplanationPart("memory", (0, 5), -0.1, supports=True),
    ]
    assert explanation.deletions == {
        **{"neighbour": None, "memory": None},
        "feature": Deletion(removed=1, moved=0.5, random=None, draws=8),
    }
    np.testing.assert_array_equal(explanation.to_pandas()["effect"], [1.0, -0.5, -0.25, -0.1])
