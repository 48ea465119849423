"""Alerts of nodes: against scores of everything from nothing, over kill -9, of several servers."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any

import httpx
import pandas as pd
import pytest
from basin_client import Client
from typer.testing import CliRunner

from basin.cli import app
from service.endpoints.graphs.schemas import GraphDetail
from tests.support.events import read_events
from tests.support.server import Server, gauge
from tests.support.watched_graphs import (
    MODEL,
    REACH,
    MirroredGraph,
    list_alerts,
    wait_for_scores,
)


@pytest.fixture(scope="module")
def server(start, checkpoints, wait, answers) -> Server:
    one = start(checkpoints=checkpoints, default_anomaly_model="et-small", max_alert_streams=2)
    wait(lambda: answers(one, "/health/ready", 200))
    return one


@pytest.fixture
def client(server) -> Iterator[httpx.Client]:
    with server.client() as client:
        client.delete("/graphs/g")
        yield client


@pytest.fixture(params=["sqlite", "redis"])
def pair(request, start, checkpoints, wait, answers, tmp_path) -> list[Server]:
    """A server with a file, or two with one Redis."""
    if request.param == "sqlite":
        settings: list[dict[str, Any]] = [{"graph_store": tmp_path / "graphs.sqlite"}]
    else:
        settings = 2 * [{"redis_url": request.getfixturevalue("redis_server")().url}]
    servers = [
        start(checkpoints=checkpoints, default_anomaly_model=MODEL, **each) for each in settings
    ]
    for one in servers:
        wait(lambda one=one: answers(one, "/health/ready", 200))
    return servers


def test_alerts_are_those_of_scoring_everything_after_each_change(pair, checkpoints) -> None:
    mirror = MirroredGraph(checkpoints, seed=3)
    one, other = pair[0], pair[-1]
    with one.client() as client, other.client() as second:
        stored = client.put("/graphs/g", json=mirror.to_body())
        assert stored.status_code == 201, stored.text
        last, crossings = None, 0
        for step in range(20):
            if step:
                changed = (client, second)[step % 2].patch("/graphs/g", json=mirror.change())
                assert changed.status_code == 200, changed.text
            wait_for_scores(one)
            raised = list_alerts((second, client)[step % 2], last)
            expected = mirror.raise_alerts()
            probabilities = {alert["node_id"]: alert["probability"] for alert in raised}
            assert probabilities == pytest.approx(expected, abs=1e-5), step
            assert len(raised) == len(expected)
            assert all(alert["revision"] == step + 1 for alert in raised)
            assert all(alert["threshold"] == mirror.threshold for alert in raised)
            last, crossings = raised[-1]["event_id"] if raised else last, crossings + len(raised)
        assert crossings > len(mirror.nodes)  # some nodes more than once
        assert list_alerts(client) == list_alerts(second)
        counted = sum(
            gauge(each, f'basin_alerts_total{{model="{MODEL}"}}')
            for each in {*pair}
            if "basin_alerts_total{" in httpx.get(f"{each.url}/metrics").text
        )
        assert counted == crossings


def test_an_alert_says_what_a_request_for_the_node_says(client, server, checkpoints) -> None:
    mirror = MirroredGraph(checkpoints, seed=4)
    assert client.put("/graphs/g", json=mirror.to_body()).status_code == 201
    wait_for_scores(server)
    alerts = list_alerts(client)
    assert len(alerts) >= 8
    for alert in alerts:
        body = {"model": MODEL, "graph_id": "g", "targets": [alert["node_id"]]}
        body |= {"neighborhood": REACH, "decision": {"threshold": mirror.threshold}}
        answer = client.post("/anomaly/score", json=body).json()
        (result,) = answer["results"]
        assert result["probability"] == pytest.approx(alert["probability"], abs=1e-6)
        assert (result["label"], result["threshold"]) == (1, alert["threshold"])
        assert answer["graph"]["revision"] == alert["revision"] == 1
        assert answer["model"] == alert["model"]
        assert "transaction" not in alert


def test_a_graph_says_how_it_is_watched(client, server, checkpoints) -> None:
    mirror = MirroredGraph(checkpoints, seed=5)
    body = mirror.to_body()
    assert client.put("/graphs/g", json=body).json()["model"] == MODEL
    wait_for_scores(server)
    response = client.get("/graphs/g")
    GraphDetail.model_validate_json(response.content, strict=True)
    assert response.json()["alerts"] == {"threshold": mirror.threshold, **REACH}
    assert response.json()["scored_revision"] == 1
    raised = list_alerts(client)
    # Stored again it begins anew; with what the model says, of any reach and threshold.
    assert client.put("/graphs/g", json=body | {"alerts": {}}).status_code == 200
    wait_for_scores(server)
    again = list_alerts(client)
    assert {alert["threshold"] for alert in again} == {0.5}
    assert (
        client.get("/graphs/g/alerts", params={"after": raised[-1]["event_id"]}).json()["alerts"]
        == again[:100]
    )
    del body["alerts"]
    assert "model" not in client.put("/graphs/g", json=body).json()
    assert client.patch("/graphs/g", json=mirror.change()).status_code == 200
    assert "scored_revision" not in client.get("/graphs/g").json()
    refused = client.get("/graphs/g/alerts")
    assert refused.status_code == 422
    assert "`alerts`" in refused.json()["detail"]


@pytest.mark.parametrize(
    ("body", "where", "text"),
    [
        ({"alerts": {"threshold": 2}}, "/alerts/threshold", "less than or equal to 1"),
        ({"alerts": {"hops": 9}}, "/alerts/hops", "less than or equal to 8"),
        ({"alerts": {"hop": 1}}, "/alerts/hop", "hops"),
        ({"alerts": []}, "/alerts", "dictionary"),
        ({"alerts": {"webhook": "http://a.b/"}}, "/alerts/webhook", "BASIN_WEBHOOK_ORIGINS"),
        ({"threshold": 0.5}, "/threshold", "within `alerts`"),
        ({"alerts": {}, "model": "cdat-mol"}, "/model", ""),
        ({"alerts": {}, "model": "none"}, "/model", ""),
        ({"alerts": {}, "model": "et-small"}, "/edges/0/type", ""),
    ],
)
def test_what_cannot_be_watched(client, checkpoints, body, where, text) -> None:
    graph = MirroredGraph(checkpoints, seed=5, nodes=3).to_body() | body
    if "alerts" not in body:
        del graph["alerts"]
    refused = client.put("/graphs/refused", json=graph)
    assert refused.status_code in (404, 422), refused.text
    first = refused.json()["errors"][0]
    assert first["pointer"] == where, first
    assert text in first["detail"]


def test_the_client_and_the_command_line_store_and_watch(server, checkpoints, tmp_path) -> None:
    mirror = MirroredGraph(checkpoints, seed=9)
    body = mirror.to_body()
    tables = [pd.DataFrame(body[name]) for name in ("nodes", "edges")]
    paths = [tmp_path / f"{name}.csv" for name in ("nodes", "edges")]
    for table, path in zip(tables, paths, strict=True):
        table.to_csv(path, index=False)
    with Client(server.url) as client:
        client.store_graph("h", tuple(tables), model=MODEL, alerts=body["alerts"])
        assert client.graph("h")["alerts"] == body["alerts"]
        expected = mirror.raise_alerts()
        watched = client.watch_alerts("h")
        first = [next(watched) for _ in expected]
        assert {alert["node_id"] for alert in first} == expected.keys()
        del watched  # the stream ends; another one goes on after the last alert
        while not (expected := mirror.raise_alerts()):
            changes = {"edges": (), **mirror.change()}
            deleted = changes.pop("delete_nodes", ())
            client.change_graph("h", delete_nodes=deleted, **changes)
            wait_for_scores(server, "h")
        rest = client.watch_alerts("h", after=first[-1]["event_id"])
        assert {next(rest)["node_id"] for _ in expected} == expected.keys()
        assert client.score_nodes("h", list(expected), model=MODEL).node_ids == list(expected)
        client.forget_graph("h")

    def basin(*arguments: object, code: int = 0) -> str:
        given = ["graphs", *map(str, arguments), "--server", server.url]
        result = CliRunner().invoke(app, given)
        assert result.exit_code == code, result.output
        return result.stdout

    of_tables = "--model", MODEL, "--nodes", paths[0], "--edges", paths[1]
    reach = "--hops", REACH["hops"], "--max-neighbors", REACH["max_neighbors"]
    basin("put", "h", *of_tables, "--threshold", mirror.threshold, *reach)
    lines = basin("watch", "h", "--count", len(first)).splitlines()
    assert {json.loads(line)["node_id"] for line in lines} == {each["node_id"] for each in first}
    basin("put", "h", *of_tables, "--alerts")
    with server.client() as http:
        assert http.get("/graphs/h").json()["alerts"] == {}
    assert MODEL in basin("list", "--json")
    basin("put", "h", *of_tables, "--keep", 5, code=2)
    basin("put", "h", "--model", MODEL, "--alerts", code=2)
    basin("delete", "h")


def test_a_stream_goes_on_where_it_ended(client, server, checkpoints, wait) -> None:
    mirror = MirroredGraph(checkpoints, seed=10)
    headers = {"accept": "text/event-stream"}
    assert client.put("/graphs/g", json=mirror.to_body()).status_code == 201
    expected = list(mirror.raise_alerts())
    seen, last = list[str](), ""
    with client.stream("GET", "/graphs/g/alerts", headers=headers, timeout=60) as response:
        events = read_events(response)
        for _ in range(3):
            last, alert = next(events)
            seen.append(alert["node_id"])
    for _ in range(4):
        wait_for_scores(server)
        assert client.patch("/graphs/g", json=mirror.change()).status_code == 200
        expected += mirror.raise_alerts()
    headers["last-event-id"] = last
    with client.stream("GET", "/graphs/g/alerts", headers=headers, timeout=60) as response:
        for event_id, alert in read_events(response):
            assert event_id == alert["event_id"]
            seen.append(alert["node_id"])
            if len(seen) == len(expected):
                break
    assert Counter(seen) == Counter(expected)
    assert [alert["node_id"] for alert in list_alerts(client)] == seen


def test_no_alert_is_lost_and_none_is_raised_twice(
    start, wait, answers, checkpoints, tmp_path
) -> None:
    mirror = MirroredGraph(checkpoints, seed=6, nodes=240)
    settings = {"checkpoints": checkpoints, "graph_store": tmp_path / "graphs.sqlite"}
    settings |= {"default_anomaly_model": MODEL}
    one = start(**settings)
    wait(lambda: answers(one, "/health/ready", 200))
    # Nodes without edges, so that each has one score, whenever it is computed.
    mirror.edges.clear()
    scores = mirror.score()
    first, later = list(mirror.nodes)[:150], list(mirror.nodes)[150:]
    rows = {row["id"]: row for row in mirror.to_body()["nodes"]}
    sent = list[str]()

    def send(ids: list[str]) -> None:
        with one.client() as client:
            for node_id in ids:
                try:
                    answer = client.post("/graphs/g/nodes", json={"nodes": [rows[node_id]]})
                except httpx.TransportError:
                    return
                assert answer.status_code == 200
                sent.append(node_id)

    with one.client() as client:
        body = mirror.to_body() | {"nodes": [rows[node_id] for node_id in first], "edges": []}
        assert client.put("/graphs/g", json=body).status_code == 201
        senders = [threading.Thread(target=send, args=(later[k::3],)) for k in range(3)]
        for sender in senders:
            sender.start()
        wait(lambda: len(sent) > 30 and len(list_alerts(client)) > 10)
    one.process.kill()  # some of the first ones and of the later ones are not scored yet
    for sender in senders:
        sender.join()
    two = start(**settings)
    wait(lambda: answers(two, "/health/ready", 200))
    wait_for_scores(two)
    with two.client() as client:
        stored = client.get("/graphs/g").json()["num_nodes"] - len(first)
        assert len(sent) <= stored
        again = [rows[node_id] for node_id in later]
        assert client.post("/graphs/g/nodes", json={"nodes": again}).status_code == 200
        wait_for_scores(two)
        raised = Counter(alert["node_id"] for alert in list_alerts(client))
    expected = Counter(node_id for node_id, p in scores.items() if p >= mirror.threshold)
    assert raised == expected


def test_another_server_goes_on_where_one_was_killed(
    redis_server, start, wait, answers, checkpoints
) -> None:
    mirror = MirroredGraph(checkpoints, seed=7, nodes=120)
    settings = {"checkpoints": checkpoints, "redis_url": redis_server().url}
    settings |= {"default_anomaly_model": MODEL}
    one, two = start(**settings), start(**settings)
    for each in (one, two):
        wait(lambda each=each: answers(each, "/health/ready", 200))
    with one.client() as client, two.client() as second:
        assert client.put("/graphs/g", json=mirror.to_body()).status_code == 201
        for _ in range(3):
            assert second.patch("/graphs/g", json=mirror.change()).status_code == 200
        wait(lambda: len(list_alerts(second)) > 10)
        one.process.kill()
        wait_for_scores(two)
        # In which revision each was scored is not known, so some may have crossed in between.
        mirror.raise_alerts()
        last = {alert["node_id"] for alert in list_alerts(second)}
        assert mirror.above <= last
        position = list_alerts(second)[-1]["event_id"]
        assert second.patch("/graphs/g", json=mirror.change()).status_code == 200
        wait_for_scores(two)
        raised = [alert["node_id"] for alert in list_alerts(second, position)]
        assert sorted(raised) == sorted(mirror.raise_alerts())
