"""Transactions that are stored and scored in one request, and the alerts that they raise."""

from __future__ import annotations

import io
import json
import threading
import time
from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np
import pandas as pd
import pytest
from basin_client import Client, InputError
from basin_client.alerts import AlertWatch
from typer.testing import CliRunner

from basin.cli import app
from service.endpoints.graphs.schemas import GraphBody
from service.endpoints.transactions.schemas import AlertList, TransactionScores
from tests.support.server import Server, gauge
from training.datasets.payments import simulate_payments

MODEL = "cdat-payments"
SETTINGS = {"models": MODEL, "default_anomaly_model": MODEL}
THRESHOLD = 0.02  # low, so that there are many alerts
GRAPH = {"model": MODEL, "threshold": THRESHOLD}


@pytest.fixture(scope="module")
def server(start, wait, answers) -> Server:
    one = start(**SETTINGS, max_alert_streams=2)
    wait(lambda: answers(one, "/health/ready", 200))
    return one


@pytest.fixture
def client(server: Server) -> Iterator[httpx.Client]:
    with server.client() as client:
        assert client.put("/graphs/g", json=GRAPH).status_code in (200, 201)
        yield client


@pytest.fixture(scope="module")
def rows() -> list[dict[str, Any]]:
    frame = simulate_payments(1000, fraud_share=0.05, seed=5)
    return frame.drop(columns=["is_fraud", "typology"]).to_dict("records")


def add(client: httpx.Client, rows: list[dict[str, Any]], **fields: Any) -> dict[str, Any]:
    response = client.post("/graphs/g/transactions", json={"transactions": rows, **fields})
    assert response.status_code == 200, response.text
    body = response.json()
    TransactionScores.model_validate_json(response.content)
    return body


def list_alerts(client: httpx.Client, after: str | None = None) -> list[dict[str, Any]]:
    alerts = []
    while True:
        parameters = {"limit": 7} | ({} if after is None else {"after": after})
        response = client.get("/graphs/g/alerts", params=parameters)
        page = AlertList.model_validate_json(response.content)
        if not page.alerts:
            return alerts
        alerts += response.json()["alerts"]
        after = page.last_event_id


def score_at_once(client: httpx.Client, rows: list[dict[str, Any]]) -> dict[str, float]:
    """The probabilities of all rows, sent in one request that stores nothing."""
    response = client.post("/anomaly/score", json={"model": MODEL, "transactions": rows})
    return {result["node_id"]: result["probability"] for result in response.json()["results"]}


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
    found = GraphBody.model_validate_json(client.get("/graphs/g").content)
    assert found.model == MODEL
    assert found.num_nodes <= 1000  # the oldest may be forgotten


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


def read_events(response: httpx.Response) -> Iterator[tuple[str, dict[str, Any]]]:
    """Id and data of the alerts of a stream."""
    fields = dict[str, str]()
    for line in response.iter_lines():
        if line:
            name, _, value = line.partition(": ")
            fields[name] = value
        elif "data" in fields:
            assert fields["event"] == "alert"
            yield fields["id"], json.loads(fields["data"])
            fields = {}
        else:
            fields = {}


def test_a_stream_has_each_alert_once_and_goes_on_where_it_ended(client, rows) -> None:
    headers = {"accept": "text/event-stream"}
    seen = list[str]()
    with client.stream("GET", "/graphs/g/alerts", headers=headers, timeout=60) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        events = read_events(response)
        add_from = threading.Thread(target=add, args=(client, rows[:400]))
        add_from.start()  # the stream waits meanwhile
        last, alert = next(events)
        seen.append(alert["node_id"])
        add_from.join()
    add(client, rows[400:])
    expected = [alert["node_id"] for alert in list_alerts(client)]
    headers["last-event-id"] = last
    with client.stream("GET", "/graphs/g/alerts", headers=headers, timeout=60) as response:
        for event_id, alert in read_events(response):
            assert event_id == alert["event_id"]
            seen.append(alert["node_id"])
            if len(seen) == len(expected):
                break
    assert seen == expected
    assert client.put("/graphs/g", json=GRAPH).status_code == 200  # another one from now on
    assert client.get("/graphs/g/alerts", params={"after": last}).json()["alerts"] == []
    assert client.get("/graphs/g/alerts", params={"after": "x"}).status_code == 422


def test_streams_are_bounded(client) -> None:
    headers = {"accept": "text/event-stream"}
    with (
        client.stream("GET", "/graphs/g/alerts", headers=headers),
        client.stream("GET", "/graphs/g/alerts", headers=headers),
    ):
        refused = client.get("/graphs/g/alerts", headers=headers)
        assert refused.status_code == 429
        assert "BASIN_MAX_ALERT_STREAMS" in refused.json()["detail"]


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


def test_no_alert_is_lost_and_none_is_raised_twice(start, wait, answers, tmp_path, rows) -> None:
    settings = SETTINGS | {"graph_store": tmp_path / "graphs.sqlite"}
    one = start(**settings)
    wait(lambda: answers(one, "/health/ready", 200))
    responses = list[str]()

    def send() -> None:
        with one.client() as client:
            for row in rows:
                try:
                    add(client, [row])
                except httpx.TransportError:
                    return
                responses.append(row["id"])

    with one.client() as client:
        assert client.put("/graphs/g", json=GRAPH).status_code == 201
        expected = score_at_once(client, rows)
    senders = [threading.Thread(target=send) for _ in range(3)]  # the same rows, all three
    for sender in senders:
        sender.start()
    wait(lambda: len(responses) > 150)
    one.process.kill()
    for sender in senders:
        sender.join()
    two = start(**settings)
    wait(lambda: answers(two, "/health/ready", 200))
    with two.client() as client:
        stored = client.get("/graphs/g").json()["num_nodes"]
        assert len(set(responses)) <= stored
        raised = [row["id"] for row in rows[:stored] if expected[row["id"]] >= THRESHOLD]
        wait(lambda: len(list_alerts(client)) >= len(raised))
        add(client, rows[: stored + 100])
        time.sleep(0.5)
        ids = [alert["node_id"] for alert in list_alerts(client)]
        raised = [row["id"] for row in rows[: stored + 100] if expected[row["id"]] >= THRESHOLD]
        assert sorted(ids) == sorted(raised)
        assert gauge(two, f'basin_alerts_total{{model="{MODEL}"}}') > 0
    watch = AlertWatch("g", None, 60.0)
    assert "last-event-id" not in watch.request().headers
    with Client(two.url) as basin, basin.events(watch.request()) as events:
        seen = [next(watch.read(events))["node_id"]]
        two.process.terminate()  # the stream ends: the server does not wait for its client
        seen += [alert["node_id"] for alert in watch.read(events)]
        assert two.process.wait(20) == 0
    assert seen == ids[: len(seen)]
    assert watch.request().headers["last-event-id"].endswith(f".{len(seen)}")


def test_the_client_stores_scores_and_watches(server: Server, rows) -> None:
    frame = pd.DataFrame(rows).assign(note="x")
    with Client(server.url) as client:
        client.store_transaction_graph("g", model=MODEL, threshold=THRESHOLD)
        assert client.graph("g")["threshold"] == THRESHOLD
        past = client.store_transactions("g", frame[:300], drop="note")
        assert past["added"] == 300
        with pytest.raises(InputError, match="column 'note' has no meaning yet"):
            client.add_transactions("g", frame[300:310])
        scores = client.add_transactions("g", frame[300:], drop="*")
        assert scores.node_ids == frame["id"][300:].tolist()
        raised = [alert["node_id"] for alert in client.alerts("g")]
        assert raised == [i for i, y in zip(scores.node_ids, scores.label, strict=True) if y]
        watched = client.watch_alerts("g")
        assert [next(watched)["node_id"] for _ in raised] == raised
        second = client.alerts("g", limit=2)[1]
        assert second["node_id"] == raised[1]
        rest = client.watch_alerts("g", after=second["event_id"])
        assert next(rest)["node_id"] == raised[2]
        again = client.score_nodes("g", scores.node_ids[-5:], model=MODEL)
        np.testing.assert_allclose(again.score, scores.score[-5:], atol=1e-4)


def test_the_command_line_puts_adds_scores_and_watches(server: Server, rows, tmp_path) -> None:
    def basin(*arguments: str, code: int = 0) -> str:
        result = CliRunner().invoke(app, ["graphs", *arguments, "--server", server.url])
        assert result.exit_code == code, result.output
        return result.stdout

    frame = pd.DataFrame(rows).sample(frac=1, random_state=0)  # in any order
    for name, part in (("past", slice(0, 300)), ("new", slice(300, None))):
        ids = {row["id"] for row in rows[part]}
        frame[frame["id"].isin(ids)].to_csv(tmp_path / f"{name}.csv", index=False)
    basin("put", "g", "--model", MODEL, "--threshold", str(THRESHOLD))
    basin("add", "g", str(tmp_path / "past.csv"), "--no-score")
    scores = pd.read_csv(io.StringIO(basin("add", "g", str(tmp_path / "new.csv"))))
    assert len(scores) == 700
    assert scores.sort_values("rank")["score"].is_monotonic_decreasing
    raised = scores["node_id"][scores["label"] == 1]
    assert len(raised) > 5
    lines = basin("watch", "g", "--count", str(len(raised))).splitlines()
    assert [json.loads(line)["node_id"] for line in lines] == raised.tolist()
    [one] = basin("score", "g", raised.iloc[0]).splitlines()[1:]
    assert one.startswith(raised.iloc[0])
    assert basin("list", "--json").count(MODEL) == 1
    basin("add", "g", str(tmp_path / "past.csv"), "--id", "none", code=1)
    basin("patch", "g", "--delete-node", "p1", code=1)
    basin("delete", "g")
    basin("watch", "g", code=1)
