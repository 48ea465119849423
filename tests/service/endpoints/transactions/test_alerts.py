"""Alerts over streams, kill -9, the client and the command line."""

from __future__ import annotations

import io
import json
import threading
import time

import httpx
import numpy as np
import pandas as pd
import pytest
from basin_client import Client, InputError
from basin_client.alerts import AlertWatch
from typer.testing import CliRunner

from basin.cli import app
from tests.support.events import read_events
from tests.support.live_transactions import (
    GRAPH,
    MODEL,
    SETTINGS,
    THRESHOLD,
    add,
    list_alerts,
    score_at_once,
)
from tests.support.server import Server, gauge


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
    headers["last-event-id"] = list_alerts(client)[-1]["event_id"]
    with client.stream("GET", "/graphs/g/alerts", headers=headers, timeout=60) as response:
        assert client.put("/graphs/g", json=GRAPH).status_code == 200  # another one from now on
        add(client, rows[:400])
        assert list(read_events(response)) == []  # it ends: its graph is gone
    assert client.put("/graphs/g", json=GRAPH).status_code == 200
    assert client.get("/graphs/g/alerts", params={"after": last}).json()["alerts"] == []
    for position in ("x", last.partition(".")[0] + "." + "9" * 30):
        assert client.get("/graphs/g/alerts", params={"after": position}).status_code == 422


def test_numbers_that_are_left_out_are_not_missed(start, wait, answers, redis_server, rows) -> None:
    store = redis_server("--appendfsync", "always")
    one = start(**SETTINGS, redis_url=store.url)
    wait(lambda: answers(one, "/health/ready", 200))
    restarted = 'basin_redis_changes_total{change="restarted"} 1.0'
    with one.client() as client:
        assert client.put("/graphs/g", json=GRAPH).status_code == 201
        add(client, rows[:400])
        first = list_alerts(client)
        store.kill()
        store.start()
        wait(lambda: restarted in client.get("/metrics").text)
        wait(lambda: client.get("/health/ready").json()["redis"] == "up")
        add(client, rows[400:])
        later = list_alerts(client)[len(first) :]
        assert later
        assert int(later[0]["event_id"].partition(".")[2]) > len(first) + 1
        headers = {"accept": "text/event-stream", "last-event-id": first[-1]["event_id"]}
        with client.stream("GET", "/graphs/g/alerts", headers=headers, timeout=60) as response:
            events = read_events(response)  # which are alerts, and no `missed`
            assert [next(events)[1] for _ in later] == later


def test_streams_are_bounded(client) -> None:
    headers = {"accept": "text/event-stream"}
    with (
        client.stream("GET", "/graphs/g/alerts", headers=headers),
        client.stream("GET", "/graphs/g/alerts", headers=headers),
    ):
        refused = client.get("/graphs/g/alerts", headers=headers)
        assert refused.status_code == 429
        assert "BASIN_MAX_ALERT_STREAMS" in refused.json()["detail"]


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
        with pytest.raises(InputError, match="the model does not read note"):
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
