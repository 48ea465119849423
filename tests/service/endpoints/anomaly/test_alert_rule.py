"""Label 1 by a budget, a share, a threshold or costs, chosen by the request."""

from __future__ import annotations

from typing import Any

import httpx
import numpy as np
import pytest
from basin_client import Client, Graph

from service.endpoints.common.alert_rule import AlertRule
from tests.support.server import Server


@pytest.fixture
def graph(sample) -> dict[str, Any]:
    made = sample(3, nodes=40)
    return {"x": made.x.tolist(), "edge_index": made.edge_index.tolist()}


def post(client: httpx.Client, graph: dict[str, Any], decision: Any, **rest: Any) -> httpx.Response:
    body = {"model": "et-small", "graph": graph, "decision": decision, **rest}
    return client.post("/anomaly/score", json=body)


@pytest.mark.parametrize(
    ("decision", "alerts"), [({"budget": 7}, 7), ({"share": 0.25}, 10), ({"budget": 0}, 0)]
)
def test_a_budget_is_spent_on_the_highest_ranks(client, graph, decision, alerts: int) -> None:
    results = post(client, graph, decision).json()["results"]
    labelled = [result for result in results if result["label"] == 1]
    assert sorted(result["rank"] for result in labelled) == list(range(1, alerts + 1))
    assert all(result["probability"] >= result["threshold"] for result in labelled)


def test_a_budget_counts_targets_alone(client, graph) -> None:
    results = post(client, graph, {"budget": 2}, targets=[3, 5, 8, 13]).json()["results"]
    assert sum(result["label"] for result in results) == 2


@pytest.mark.parametrize("decision", [{"threshold": 0.3}, {"cost_ratio": 0.3}])
def test_a_threshold_of_the_request_replaces_the_models(client, graph, decision) -> None:
    for result in post(client, graph, decision).json()["results"]:
        assert result["threshold"] == 0.3
        assert result["label"] == (result["probability"] >= 0.3)


@pytest.mark.parametrize(
    ("decision", "words"),
    [
        ({}, "Give one of budget"),
        ({"budget": 3, "share": 0.1}, "has 2 rules"),
        ({"budget": -1}, "greater than or equal to 0"),
        ({"daily_budget": 0}, "greater than 0"),
        ({"daily_budget": 50}, "how many of its inputs have which probability in a day"),
        ({"share": 1.5}, "less than or equal to 1"),
        ({"top": 5}, "Unknown field"),
        ([5], "Must be an object"),
    ],
)
def test_other_decisions_are_refused(client, graph, decision, words: str) -> None:
    response = post(client, graph, decision)
    assert response.status_code == 422
    assert words in response.text


def test_equal_probabilities_never_exceed_a_budget() -> None:
    equal = np.array([0.9, 0.9, 0.5, 0.5, 0.5, 0.1])
    for budget, alerts in ((0, 0), (1, 0), (2, 2), (3, 2), (4, 2), (5, 5), (6, 6), (9, 6)):
        threshold = AlertRule(budget=budget).find_threshold(equal)
        assert (equal >= threshold).sum() == alerts


def test_the_client_sends_it(server: Server, sample) -> None:
    made = sample(3, nodes=40)
    with Client(server.url) as client:
        scores = client.score(
            Graph(made.x, made.edge_index), model="et-small", decision={"budget": 4}
        )
    assert scores.label.sum() == 4
    assert scores.threshold == pytest.approx(scores.probability[scores.label == 1].min())


def test_an_explanation_says_what_moved_a_score_to_the_label_of_the_request(client, graph) -> None:
    def explain(threshold: float) -> dict[str, Any]:
        decision = {"threshold": threshold}
        response = post(client, graph, decision, targets=[3], include=["explanation"])
        [result] = response.json()["results"]
        assert result["label"] == (threshold == 0)
        return result["explanation"]["features"]

    alert, none = explain(0.0), explain(1.0)
    names = [[cause["feature"] for cause in alert[kind]] for kind in ("supports", "opposes")]
    assert any(names)
    assert names == [[c["feature"] for c in none[kind]] for kind in ("opposes", "supports")]
