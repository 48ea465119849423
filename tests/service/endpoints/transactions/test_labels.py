"""A model that reads known labels: the same scores by every way, live and at once."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pandas as pd
import pytest
from basin_client import Client
from typer.testing import CliRunner

from basin.cli import app
from tests.support.few_references import few_references
from tests.support.live_transactions import add
from training.__main__ import app as training
from training.datasets.payments import simulate_payments

MODEL = "cdat-known"
DAY = 86_400


@pytest.fixture(scope="module")
def frame() -> pd.DataFrame:
    return simulate_payments(2000, fraud_share=0.1, seed=5).drop(columns="typology")


@pytest.fixture(scope="module")
def folder(frame: pd.DataFrame, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Checkpoints with the model."""
    folder = tmp_path_factory.mktemp("known")
    table = folder / "payments.csv"
    frame.to_csv(table, index=False)
    command = ["transactions", str(table), "--label", "is_fraud", "--category", "type"]
    command += ["--shared", "device", "--id", "id", "--known-after", str(DAY), "--smoke"]
    command += ["--name", MODEL, "--out", str(folder / MODEL)]
    with few_references():
        result = CliRunner().invoke(training, command, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return folder


@pytest.fixture(scope="module")
def url(folder: Path, start, wait, answers) -> str:
    server = start(checkpoints=folder, models=MODEL, default_anomaly_model=MODEL)
    wait(lambda: answers(server, "/health/ready", 200))
    return server.url


@pytest.fixture
def client(url: str):
    with httpx.Client(base_url=url, timeout=60) as client:
        graph = client.put("/graphs/g", json={"model": MODEL, "threshold": 0.5})
        assert graph.status_code in (200, 201), graph.text
        yield client


@pytest.fixture(scope="module")
def rows(frame: pd.DataFrame) -> list[dict[str, Any]]:
    return frame.to_dict("records")


def hide(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [row | {"is_fraud": None} for row in rows]


def score(client: httpx.Client, rows: list[dict[str, Any]]) -> np.ndarray:
    response = client.post("/anomaly/score", json={"model": MODEL, "transactions": rows})
    assert response.status_code == 200, response.text
    return np.array([result["score"] for result in response.json()["results"]])


def test_every_way_gives_the_same_scores(client, url, folder, frame, rows, monkeypatch) -> None:
    expected = score(client, rows)
    assert np.abs(expected - score(client, hide(rows))).max() > 0.01
    with Client(url) as basin:
        of_frame = basin.score_transactions(frame, id="id", model=MODEL)
        marked = frame.assign(is_fraud=frame["is_fraud"].replace(0, 2))
        of_frauds = basin.score_transactions(marked, id="id", model=MODEL, unlabelled="2")
    np.testing.assert_allclose(of_frame.score, expected, atol=1e-4)
    only_frauds = [row if row["is_fraud"] else row | {"is_fraud": None} for row in rows]
    np.testing.assert_allclose(of_frauds.score, score(client, only_frauds), atol=1e-4)
    monkeypatch.setenv("BASIN_CHECKPOINTS", str(folder))
    command = ["score-transactions", str(folder / "payments.csv"), "--model", MODEL, "--id", "id"]
    for how in (["--server", url], ["--bulk"]):
        result = CliRunner().invoke(app, [*command, *how], catch_exceptions=False)
        assert result.exit_code == 0, result.output
        printed = pd.read_csv(io.StringIO(result.stdout))
        np.testing.assert_allclose(printed["score"], expected, atol=2e-4)


def test_labels_that_come_in_time_give_the_scores_of_all_at_once(client, rows) -> None:
    expected = score(client, rows)
    hidden, scores = hide(rows), list[float]()
    half_days = pd.to_datetime([row["time"] for row in rows]).floor("12h")
    places = [part.to_numpy() for _, part in pd.Series(range(len(rows))).groupby(half_days)]
    first = len(places) // 2
    add(client, rows[: places[first][0]])
    for part in places[first:]:
        body = add(client, [hidden[place] for place in part])
        scores += [result["score"] for result in body["results"]]
        # Told before they count: as in training, they do so a day later.
        labels = [{"id": rows[place]["id"], "label": rows[place]["is_fraud"]} for place in part]
        stored = client.post("/graphs/g/labels", json={"labels": labels}).json()
        assert stored["changed"] == len(part)
        again = client.post("/graphs/g/labels", json={"labels": labels}).json()
        assert (again["changed"], again["revision"]) == (0, stored["revision"])
    np.testing.assert_allclose(scores, expected[places[first][0] :], atol=1e-4)
    [stored] = client.post(
        "/anomaly/score", json={"model": MODEL, "graph_id": "g", "targets": [rows[-1]["id"]]}
    ).json()["results"]
    assert stored["score"] == pytest.approx(scores[-1], abs=1e-4)


@pytest.mark.parametrize(
    ("labels", "pointer", "code"),
    [
        ([], "/labels", "out_of_range"),
        ([{"id": "p1", "label": 2}], "/labels/0/label", "not_allowed"),
        ([{"id": "p1", "label": None}], "/labels/0/label", "not_allowed"),
        ([{"id": "p1"}], "/labels/0/label", "missing"),
        ([{"id": "p1", "label": 1}] * 2, "/labels/0/id", "duplicate"),
        ([{"id": "p9", "label": 1}], "/labels/0/id", "unknown_node"),
        ([{"id": "p1", "label": 1, "why": "x"}], "/labels/0/why", "out_of_range"),
    ],
)
def test_wrong_labels_are_refused(client, rows, labels, pointer, code) -> None:
    add(client, rows[:5])
    response = client.post("/graphs/g/labels", json={"labels": labels})
    assert response.status_code == 422, response.text
    assert (response.json()["errors"][0]["pointer"], response.json()["errors"][0]["code"]) == (
        pointer,
        code,
    )


def test_a_wrong_label_of_a_row_is_refused(client, rows) -> None:
    for value in (2, "yes", 0.5):
        row = rows[0] | {"is_fraud": value}
        for path, body in (
            ("/graphs/g/transactions", {}),
            ("/anomaly/score", {"model": MODEL}),
        ):
            response = client.post(path, json=body | {"transactions": [row]})
            assert response.status_code == 422
            [error] = response.json()["errors"]
            assert error["pointer"] == "/transactions/0/is_fraud"
            assert "1 (fraud), 0 (none), or null" in error["detail"]


def test_the_command_line_tells_labels(client, url, rows, frame, tmp_path) -> None:
    add(client, hide(rows[:50]))
    table = tmp_path / "labels.csv"
    frame.head(50).assign(is_fraud=["", *frame["is_fraud"].head(49)]).to_csv(table, index=False)
    command = ["graphs", "label", "g", str(table), "--label", "is_fraud", "--server", url]
    result = CliRunner().invoke(app, command, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    assert "49 of 49 labels are new." in result.output
    again = CliRunner().invoke(app, command, catch_exceptions=False)
    assert "0 of 49 labels are new." in again.output


def test_a_model_that_reads_no_labels_refuses_them(start, wait, answers) -> None:
    server = start(models="cdat-payments", default_anomaly_model="cdat-payments")
    wait(lambda: answers(server, "/health/ready", 200))
    with server.client() as client:
        client.put("/graphs/g", json={"model": "cdat-payments"})
        response = client.post("/graphs/g/labels", json={"labels": [{"id": "a", "label": 1}]})
    assert response.status_code == 422
    assert "reads no labels" in response.json()["detail"]
