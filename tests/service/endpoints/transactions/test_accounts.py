"""Stored graphs of a model that scores accounts: scores, and alerts when they cross."""

from __future__ import annotations

import io
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pandas as pd
import pytest
from basin_client import Client
from typer.testing import CliRunner

from basin.cli import app
from service.endpoints.graphs.schemas import GraphDetail
from tests.support.accounts import AccountState, list_crossings, score_states, train_accounts
from tests.support.live_transactions import add, list_alerts
from tests.support.server import Server, gauge
from training.datasets.payments import simulate_payments

MODEL = "accounts"
NUM_ROWS = 400
Row = dict[str, Any]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("accounts")
    frame = simulate_payments(1500, fraud_share=0.1, seed=1)
    train_accounts(frame, folder, "--label", "is_fraud", "--account-side", "both")
    return folder


@pytest.fixture(scope="module")
def settings(folder: Path) -> Row:
    return {"checkpoints": folder, "models": MODEL, "default_anomaly_model": MODEL}


@pytest.fixture(scope="module")
def server(settings: Row, start, wait, answers) -> Server:
    one = start(**settings)
    wait(lambda: answers(one, "/health/ready", 200))
    return one


@pytest.fixture(scope="module")
def frame() -> pd.DataFrame:
    frame = simulate_payments(1000, fraud_share=0.1, seed=5).head(NUM_ROWS)
    frame = frame.drop(columns=["is_fraud", "typology"])
    for side in ("source", "target"):  # few accounts, so that each is in many rows
        frame[side] = "a" + (frame[side].str[1:].astype(int) % 30).astype(str)
    frame.loc[7, "target"] = frame.loc[7, "source"]  # an account may pay itself
    return frame


@pytest.fixture(scope="module")
def rows(frame: pd.DataFrame) -> list[Row]:
    return frame.to_dict("records")


@pytest.fixture(scope="module")
def states(folder: Path, frame: pd.DataFrame) -> list[AccountState]:
    return score_states(folder / MODEL, frame)


@pytest.fixture(scope="module")
def threshold(states: list[AccountState]) -> float:
    """In the widest gap in the middle, so that rounding moves no score over it."""
    values = np.sort([state.probability for state in states])
    middle = values[2 * len(values) // 5 : 3 * len(values) // 5]
    place = int(np.diff(middle).argmax())
    return float(middle[place : place + 2].mean())


@pytest.fixture
def client(server: Server, threshold: float) -> Iterator[httpx.Client]:
    with server.client() as client:
        store(client, threshold)
        yield client


def store(client: httpx.Client, threshold: float, **fields: Any) -> None:
    response = client.put("/graphs/g", json={"model": MODEL, "threshold": threshold, **fields})
    assert response.status_code in (200, 201), response.text


def score_prefix(client: httpx.Client, rows: list[Row], accounts: list[str]) -> list[float]:
    body = {"model": MODEL, "transactions": rows, "targets": accounts}
    response = client.post("/anomaly/score", json=body)
    assert response.status_code == 200, response.text
    return [result["score"] for result in response.json()["results"]]


def name_alerts(client: httpx.Client) -> list[tuple[str, str]]:
    return [(alert["node_id"], alert["transaction"]["id"]) for alert in list_alerts(client)]


def test_scores_and_alerts_are_those_of_each_prefix_from_nothing(
    client, rows, states, threshold
) -> None:
    results = add(client, rows[:150])["results"]
    for row in rows[150:180]:
        results += add(client, [row])["results"]
    for begin in range(180, NUM_ROWS, 90):
        results += add(client, rows[begin : begin + 90])["results"]
    names = [(state.account, state.transaction_id) for state in states]
    assert [(each["node_id"], each["transaction_id"]) for each in results] == names
    assert len(names) < 2 * NUM_ROWS  # who pays itself comes once
    expected = [state.score for state in states]
    assert [each["score"] for each in results] == pytest.approx(expected, abs=2e-4)
    for place in (0, 7, 149, 165, 300, 399):
        accounts = list(dict.fromkeys((rows[place]["source"], rows[place]["target"])))
        scores = [r["score"] for r in results if r["transaction_id"] == rows[place]["id"]]
        prefix = score_prefix(client, rows[: place + 1], accounts)
        assert scores == pytest.approx(prefix, abs=1e-4)
    crossings = list_crossings(states, threshold)
    counts = pd.Series([account for account, _ in crossings]).value_counts()
    assert counts.max() > 1  # some cross more than once
    above = [state for state in states if state.probability >= threshold]
    assert len(crossings) < len(above)  # and some stay
    assert name_alerts(client) == crossings
    by_name = dict(zip(names, states, strict=True))
    for alert in list_alerts(client):
        state = by_name[alert["node_id"], alert["transaction"]["id"]]
        assert alert["probability"] == pytest.approx(state.probability, abs=1e-4)
        assert alert["threshold"] == threshold
        assert alert["node_id"] in (alert["transaction"]["source"], alert["transaction"]["target"])


def test_rows_that_are_sent_again_answer_the_same_and_raise_nothing(client, rows) -> None:
    first = add(client, rows[:100])
    alerts = list_alerts(client)
    again = add(client, rows[:100])
    assert (first["added"], again["added"]) == (100, 0)
    assert again["results"] == first["results"]
    assert list_alerts(client) == alerts


def test_rows_that_are_stored_alone_raise_no_alert_and_hide_none(
    client, rows, states, threshold
) -> None:
    body = {"transactions": rows[:200]}
    stored = client.post("/graphs/g/transactions?score=false", json=body)
    assert stored.json()["added"] == 200
    assert list_alerts(client) == []
    add(client, rows[200:])
    later = {row["id"] for row in rows[200:]}
    scored = [state for state in states if state.transaction_id in later]
    assert name_alerts(client) == list_crossings(scored, threshold)


def test_an_account_is_scored_and_explained_as_of_its_last_row(client, rows, states) -> None:
    add(client, rows)
    detail = GraphDetail.model_validate_json(client.get("/graphs/g").content)
    assert detail.transactions is not None
    assert (detail.model, detail.num_nodes, detail.transactions.scores) == (
        *(MODEL, NUM_ROWS),
        "accounts",
    )
    last = {state.account: state.score for state in states}
    accounts = list(last)[:20]
    body = {"model": MODEL, "graph_id": "g", "targets": accounts}
    results = client.post("/anomaly/score", json=body).json()["results"]
    assert [result["node_id"] for result in results] == accounts
    expected = [last[account] for account in accounts]
    assert [result["score"] for result in results] == pytest.approx(expected, abs=2e-4)
    account = rows[-1]["source"]
    body |= {"targets": [account], "include": ["explanation"]}
    [result] = client.post("/anomaly/score", json=body).json()["results"]
    own = {row["id"] for row in rows if account in (row["source"], row["target"])}
    neighbours = result["explanation"]["neighbours"]
    causes = neighbours["supports"] + neighbours["opposes"]
    assert causes
    assert {cause["node_id"] for cause in causes} <= own
    live = add(client, rows[-1:], include=["explanation"])["results"][0]
    assert live["explanation"]["features"] == result["explanation"]["features"]


def test_what_is_wrong_is_refused(client, rows) -> None:
    add(client, rows[:20])

    def get_error(path: str, body: Row) -> Row:
        response = client.post(path, json=body)
        assert response.status_code == 422, response.text
        return response.json()["errors"][0]

    for name in ("none", rows[0]["id"], 5):
        body = {"model": MODEL, "graph_id": "g", "targets": [name]}
        error = get_error("/anomaly/score", body)
        assert (error["pointer"], error["code"]) == ("/targets/0", "unknown_node")
        assert "No account that the model scores" in error["detail"]
    many = [rows[0] | {"id": number} for number in range(1954)]
    error = get_error("/graphs/g/transactions", {"transactions": many})
    assert error["pointer"] == "/transactions"
    assert (
        "at most 1953 are allowed, each with up to 256 nodes around each of its accounts"
        in (error["detail"])
    )
    assert client.get("/graphs/g").json()["num_nodes"] == 20
    labels = client.post("/graphs/g/labels", json={"labels": [{"id": "p1", "label": 1}]})
    assert labels.status_code == 422
    assert "reads no labels" in labels.json()["detail"]


def test_what_is_forgotten_is_scored_no_more_and_changes_no_later_score(
    server, threshold, folder
) -> None:
    frame = simulate_payments(3000, seed=11).drop(columns=["is_fraud", "typology"])
    with server.client() as client:
        recipe = client.get(f"/models/{MODEL}").json()["transactions"]
        reach = 2 * pd.Timedelta(seconds=recipe["windows"][-1])
        times = pd.to_datetime(frame["time"], format="ISO8601", utc=True)
        passed = times - times.iloc[0]
        times = times.iloc[-1] - (passed.iloc[-1] - passed) * (4 * reach / passed.iloc[-1])
        frame["time"] = times.dt.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        rows = frame.to_dict("records")
        store(client, threshold, keep=reach.total_seconds())
        assert client.get("/graphs/g").json()["keep"] == reach.total_seconds()
        for begin in range(0, 3000, 500):
            results = add(client, rows[begin : begin + 500])["results"]
        assert client.get("/graphs/g").json()["num_nodes"] < 2500
        near = frame[times > times.iloc[-1] - 1.2 * reach]  # what the last rows depend on
        whole = set(frame["id"][times > times[near.index[0]] + reach]) & {
            row["id"] for row in rows[-500:]
        }
        expected = {
            (state.account, state.transaction_id): state.score
            for state in score_states(folder / MODEL, near)
            if state.transaction_id in whole
        }
        live = {(r["node_id"], r["transaction_id"]): r["score"] for r in results}
        assert len(expected) > 100
        assert {name: live[name] for name in expected} == pytest.approx(expected, abs=2e-4)
        gone = client.post("/graphs/g/transactions", json={"transactions": rows[:1]})
        assert gone.json()["errors"][0]["code"] == "out_of_order"


@pytest.fixture(params=["sqlite", "redis"])
def pair(request, settings: Row, start, wait, answers, tmp_path) -> tuple[list[Server], Any]:
    """A server with a file, or two with one Redis; and what starts another one."""
    place: Row = {"graph_store": tmp_path / "graphs.sqlite"}
    if request.param == "redis":
        place = {"redis_url": request.getfixturevalue("redis_server")().url}

    def start_one() -> Server:
        one = start(**settings, **place, deadline_s=2)
        wait(lambda: answers(one, "/health/ready", 200))
        return one

    return [start_one() for _ in range(1 if request.param == "sqlite" else 2)], start_one


def test_no_alert_is_lost_or_doubled_by_a_kill(pair, rows, states, threshold, wait) -> None:
    servers, start_one = pair
    answered = list[str]()

    def send(server: Server) -> None:
        with server.client() as client:
            for row in rows:
                try:
                    response = client.post("/graphs/g/transactions", json={"transactions": [row]})
                except httpx.TransportError:
                    return
                if response.status_code == 200:
                    answered.append(row["id"])

    with servers[-1].client() as client:
        store(client, threshold)
    senders = [threading.Thread(target=send, args=(servers[i % len(servers)],)) for i in range(3)]
    for sender in senders:
        sender.start()
    wait(lambda: len(answered) > 150)
    servers[0].process.kill()
    for sender in senders:
        sender.join()
    other = start_one() if len(servers) == 1 else servers[1]
    with other.client() as client:
        wait(lambda: gauge(other, "basin_transactions_pending") == 0)
        stored = {row["id"] for row in rows[: client.get("/graphs/g").json()["num_nodes"]]}
        assert set(answered) <= stored
        expected = list_crossings([s for s in states if s.transaction_id in stored], threshold)
        wait(lambda: len(list_alerts(client)) >= len(expected))
        assert name_alerts(client) == expected
        add(client, rows)
        assert name_alerts(client) == list_crossings(states, threshold)
        assert gauge(other, f'basin_alerts_total{{model="{MODEL}"}}') > 0


def test_the_client_and_the_command_line_add_and_watch(
    server: Server, frame, states, threshold, tmp_path
) -> None:
    crossings = list_crossings(states, threshold)
    with Client(server.url) as client:
        client.store_transaction_graph("g", model=MODEL, threshold=threshold)
        scores = client.add_transactions("g", frame)
        assert scores.node_ids == [state.account for state in states]
        assert scores.transaction_ids == [state.transaction_id for state in states]
        np.testing.assert_allclose(scores.score, [state.score for state in states], atol=2e-4)
        watched = client.watch_alerts("g")
        raised = [next(watched) for _ in crossings]
        assert [(each["node_id"], each["transaction"]["id"]) for each in raised] == crossings
        account = states[-1].account
        [again] = client.score_nodes("g", [account], model=MODEL).score
        assert again == pytest.approx(states[-1].score, abs=2e-4)

    def basin(*arguments: str) -> str:
        result = CliRunner().invoke(app, ["graphs", *arguments, "--server", server.url])
        assert result.exit_code == 0, result.output
        return result.stdout

    table = tmp_path / "payments.csv"
    frame.to_csv(table, index=False)
    basin("put", "g", "--model", MODEL, "--threshold", str(threshold))
    printed = pd.read_csv(io.StringIO(basin("add", "g", str(table))))
    assert printed["node_id"].tolist() == scores.node_ids
    assert printed["transaction_id"].tolist() == scores.transaction_ids
    lines = basin("watch", "g", "--count", str(len(crossings))).splitlines()
    assert [json.loads(line)["node_id"] for line in lines] == [name for name, _ in crossings]
