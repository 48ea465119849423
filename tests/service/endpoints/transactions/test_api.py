"""Transactions that are stored and scored in one request."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from models.manifest import Decision
from service.endpoints.graphs.schemas import GraphBody
from tests.support.live_transactions import (
    MODEL,
    THRESHOLD,
    add,
    list_alerts,
    score_at_once,
)
from training.datasets.payments import simulate_payments


def test_scores_and_alerts_are_those_of_all_rows_at_once(client, rows) -> None:
    expected = score_at_once(client, rows)
    scores = dict[str, float]()
    add(client, rows[:300])
    scores = {r["node_id"]: r["probability"] for r in add(client, rows[:300])["results"]}
    for row in rows[300:340]:
        body = add(client, [row])
        assert body["added"] == 1
        [result] = body["results"]
        assert result["threshold"] == THRESHOLD
        scores[result["node_id"]] = result["probability"]
    for begin in range(340, 1000, 220):
        results = add(client, rows[begin : begin + 220])["results"]
        scores |= {result["node_id"]: result["probability"] for result in results}
    assert scores == pytest.approx(expected, abs=1e-5)
    alerts = list_alerts(client)
    ids = [alert["node_id"] for alert in alerts]
    assert len(ids) > 10
    assert ids == [row["id"] for row in rows if expected[row["id"]] >= THRESHOLD]
    by_id = {row["id"]: row for row in rows}
    for alert in alerts:
        sent = by_id[alert["node_id"]]
        assert alert["transaction"] | {"time": 0, "late_by": 0} == sent | {"time": 0, "late_by": 0}
        assert alert["probability"] == pytest.approx(expected[alert["node_id"]], abs=1e-5)
    graph = GraphBody.model_validate_json(client.get("/graphs/g").content)
    assert graph.model == MODEL
    assert graph.num_nodes == 1000


def test_a_row_that_is_sent_again_changes_nothing(client, rows) -> None:
    first = add(client, rows[:50])
    alerts = list_alerts(client)
    again = add(client, rows[:50])
    assert (first["added"], again["added"]) == (50, 0)
    assert again["results"] == first["results"]
    assert list_alerts(client) == alerts
    mixed = add(client, rows[45:55])
    assert mixed["added"] == 5
    assert mixed["graph"]["revision"] == again["graph"]["revision"] + 1
    changed = client.post(
        "/graphs/g/transactions", json={"transactions": [rows[3] | {"amount": 1.0}]}
    )
    assert changed.status_code == 422
    [error] = changed.json()["errors"]
    assert (error["pointer"], error["code"]) == ("/transactions/0/id", "conflict")


def test_late_rows_count_as_of_the_newest_or_are_refused(client) -> None:
    def row(name: str, time: str) -> dict[str, Any]:
        return {"id": name, "time": time, "source": "a", "target": "b", "amount": 5.0}

    add(client, [row("x", "2026-03-01T12:00:00Z")])
    [late] = add(client, [row("y", "2026-03-01T11:30:00Z")])["results"]
    assert late["late_by"] == 1800
    for time_, code in (
        ("2026-03-01T10:59:59Z", "out_of_order"),
        ("2126-03-01T12:00:00Z", "out_of_range"),
    ):
        body = {"transactions": [row("v", "2026-03-01T12:00:01Z"), row("z", time_)]}
        response = client.post("/graphs/g/transactions", json=body)
        assert response.status_code == 422
        [error] = response.json()["errors"]
        assert (error["pointer"], error["code"]) == ("/transactions/1/time", code)
    assert client.get("/graphs/g").json()["num_nodes"] == 2  # nothing of a refused request


def test_rows_may_be_stored_alone(client, rows) -> None:
    body = {"transactions": rows[:300]}
    stored = client.post("/graphs/g/transactions?score=false", json=body).json()
    assert (stored["added"], stored["num_nodes"]) == (300, 300)
    assert list_alerts(client) == []
    [result] = add(client, [rows[300]])["results"]
    expected = score_at_once(client, rows[:301])
    assert result["probability"] == pytest.approx(expected[rows[300]["id"]], abs=1e-5)


def test_stored_transactions_are_scored_and_explained_by_id(client, rows) -> None:
    add(client, rows[:300])
    body = {"model": MODEL, "graph_id": "g", "targets": ["p250"], "include": ["explanation"]}
    response = client.post("/anomaly/score", json=body)
    [result] = response.json()["results"]
    assert result["probability"] == pytest.approx(score_at_once(client, rows[:300])["p250"], 1e-4)
    assert result["explanation"]["features"]["supports"]
    both = add(client, [rows[250]], include=["explanation"])
    assert both["results"] == [result | {"late_by": 0.0, "rank": 1}]


@pytest.mark.parametrize(
    ("fields", "pointer", "words"),
    [
        ({"transactions": []}, "/transactions", "is empty"),
        ({}, "/transactions", "Must be a list"),
        ({"transactions": [{"time": 0, "source": "a", "target": "b", "amount": 1}]},
         "/transactions/0/id", "needs an `id`"),
        ({"transactions": [{"id": "k" * 65, "time": 0, "source": "a", "target": "b", "amount": 1}]},
         "/transactions/0/id", "at most 64"),
        ({"transactions": [{"id": "k", "time": 0, "source": "a", "target": "b", "amount": 1e13}]},
         "/transactions/0/amount", "is beyond"),
        ({"transactions": [{"id": "k", "time": 0, "source": "a", "target": "b"}]},
         "/transactions/0/amount", "missing"),
        ({"transactions": [{"id": "k", "x": 0}]}, "/transactions/0/x", ""),
        ({"transactions": [{"id": "k"}], "dynamics": {"steps": 3}}, "/dynamics", ""),
        ({"transactions": [{"id": "k"}], "include": ["uncertainty?"]}, "/include/0", ""),
    ],
)  # fmt: skip
def test_what_cannot_be_stored_is_refused(client, fields, pointer, words) -> None:
    response = client.post("/graphs/g/transactions", json=fields)
    assert response.status_code == 422, response.text
    error = response.json()["errors"][0]
    assert error["pointer"] == pointer
    assert words in error["detail"]
    assert client.get("/graphs/g").json()["num_nodes"] == 0


def test_what_cannot_be_scored_is_not_stored(client, rows) -> None:
    many = [rows[0] | {"id": number} for number in range(4000)]
    for body, pointer in (
        ({"transactions": rows[:1], "include": ["uncertainty"]}, "/include"),
        ({"transactions": many}, "/transactions"),
    ):
        response = client.post("/graphs/g/transactions", json=body)
        assert response.status_code == 422
        assert response.json()["errors"][0]["pointer"] == pointer
        assert client.get("/graphs/g").json()["num_nodes"] == 0
    stored = client.post("/graphs/g/transactions?score=false", json={"transactions": many})
    assert stored.json()["added"] == 4000


def test_months_in_one_request_are_scored(client) -> None:
    """Though most are older than the newest by more than the graph keeps."""
    frame = simulate_payments(3000, seed=11).drop(columns=["is_fraud", "typology"])
    rows = frame.to_dict("records")
    results = add(client, rows)["results"]
    scores = {result["node_id"]: result["probability"] for result in results}
    assert scores == pytest.approx(score_at_once(client, rows), abs=1e-5)
    raised = [row["id"] for row in rows if scores[row["id"]] >= THRESHOLD]
    assert [alert["node_id"] for alert in list_alerts(client)] == raised
    later = rows[-1] | {"id": "later"}
    add(client, [later])  # the old ones are forgotten now
    assert client.get("/graphs/g").json()["num_nodes"] < 2000
    again = client.post("/graphs/g/transactions", json={"transactions": rows[:1]})
    assert again.json()["errors"][0]["code"] == "out_of_order"


def test_parameters_that_cannot_be_read_are_refused(client, rows) -> None:
    for method, path, at in (
        ("GET", "alerts?limit=0", "/limit"),
        ("GET", "alerts?limit=many", "/limit"),
        ("POST", "transactions?score=perhaps", "/score"),
    ):
        response = client.request(method, f"/graphs/g/{path}", json={"transactions": rows[:1]})
        assert response.status_code == 422
        assert response.headers["content-type"] == "application/problem+json"
        [error] = response.json()["errors"]
        assert error["pointer"] == at


def test_a_daily_budget_is_the_threshold_that_gave_so_many_alerts_a_day(client, rows) -> None:
    decision = client.get(f"/models/{MODEL}").json()["decision"]
    daily = Decision.model_validate(decision).daily
    assert daily is not None
    add(client, rows[:50])
    response = client.put("/graphs/h", json={"model": MODEL, "daily_budget": 20})
    assert response.status_code == 201
    stored = client.get("/graphs/h").json()
    body = {"model": MODEL, "transactions": rows[:50], "decision": {"daily_budget": 20}}
    results = client.post("/anomaly/score", json=body).json()["results"]
    assert {result["threshold"] for result in results} == {stored["threshold"]}
    assert stored["threshold"] == daily.find_threshold(20)
    # What the model was shipped with is its budget of 1 %.
    assert daily.find_threshold(0.01 * daily.inputs) == pytest.approx(
        decision["threshold"], abs=0.05
    )
    both = client.put("/graphs/h", json={"model": MODEL, "daily_budget": 20, "threshold": 0.5})
    assert both.json()["errors"][0]["pointer"] == "/daily_budget"
    client.delete("/graphs/h")


def test_kinds_of_graphs_do_not_mix(client, rows) -> None:
    def detail(response: httpx.Response) -> str:
        assert response.status_code == 422, response.text
        return response.json()["errors"][0]["detail"]

    assert "POST /graphs/{id}/transactions" in detail(client.patch("/graphs/g", json={"nodes": []}))
    short = client.put("/graphs/h", json={"model": MODEL, "keep": 60})
    assert "over that time rows change a score" in detail(short)
    with_nodes = client.put("/graphs/h", json={"model": MODEL, "nodes": [], "edges": []})
    assert "`model` alone" in detail(with_nodes)
    body = {"model": MODEL, "graph_id": "g", "targets": ["p0"], "neighborhood": {"hops": 1}}
    assert "recipe" in detail(client.post("/anomaly/score", json=body))
    body = {"model": MODEL, "graph_id": "g", "targets": ["none"]}
    assert "No transaction" in detail(client.post("/anomaly/score", json=body))
    for path in ("transactions", "alerts"):
        unknown = client.request(
            "POST" if path == "transactions" else "GET",
            f"/graphs/none/{path}",
            json={"transactions": rows[:1]},
        )
        assert unknown.status_code == 404


def test_what_a_deadline_left_is_scored_when_it_is_sent_again(client, rows) -> None:
    expected = score_at_once(client, rows[:200])
    statuses = set[int]()
    for row in rows[:200]:
        for deadline in ("?timeout_ms=2", ""):
            response = client.post(
                f"/graphs/g/transactions{deadline}", json={"transactions": [row]}
            )
            statuses.add(response.status_code)
    assert statuses == {200, 504}
    raised = [row["id"] for row in rows[:200] if expected[row["id"]] >= THRESHOLD]
    assert [alert["node_id"] for alert in list_alerts(client)] == raised
