"""Raw rows of transactions through `POST /anomaly/score`, the client and the command line."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pandas as pd
import pytest
from basin_client import Client, InputError
from typer.testing import CliRunner

from basin.cli import app
from models.base import DynamicsParams
from models.checkpoint import load_checkpoint
from models.inputs.transactions import TransactionHistory, Transactions
from tests.support.paths import CHECKPOINTS

MODEL = "cdat-payments"


@pytest.fixture(scope="module")
def url(start, wait, answers) -> str:
    server = start(models=MODEL, default_anomaly_model=MODEL)
    wait(lambda: answers(server, "/health/ready", 200))
    return server.url


def post(url: str, **fields: Any) -> httpx.Response:
    return httpx.post(f"{url}/anomaly/score", json={"model": MODEL, **fields}, timeout=60)


def score_directly(rows: list[dict[str, Any]]) -> np.ndarray:
    """Logits of all rows, from the checkpoint without a server."""
    loaded = load_checkpoint(CHECKPOINTS / MODEL)
    frame = pd.DataFrame(rows)
    recipe = loaded.manifest.transactions
    assert recipe is not None
    times = pd.to_datetime(frame["time"], format="ISO8601", utc=True)
    history = TransactionHistory(recipe)
    history.append(
        Transactions(
            ((times - pd.Timestamp(0, tz="UTC")) / pd.Timedelta(seconds=1)).to_numpy(),
            *(frame[name].to_numpy(object) for name in ("source", "target")),
            frame["amount"].to_numpy(),
            {name: frame[name].to_numpy(object) for name in ("type", "device")},
            {},
        )
    )
    logits = []
    for row in range(len(rows)):
        graph, _, _ = history.build_graph(np.array([row]))
        output = loaded.network.infer(loaded.network.pack([graph]), [DynamicsParams()])
        logits.append(output.logits[0].item())
    return np.array(logits)


def test_rows_are_scored_as_each_alone_in_its_past(url: str, rows: list[dict[str, Any]]) -> None:
    response = post(url, transactions=rows)
    assert response.status_code == 200
    results = response.json()["results"]
    assert [result["node_id"] for result in results] == [row["id"] for row in rows]
    scores = np.array([result["score"] for result in results])
    np.testing.assert_allclose(scores, score_directly(rows), atol=2e-4)


def test_a_score_does_not_change_with_what_comes_later(url: str, rows) -> None:
    whole = post(url, transactions=rows, targets=["p300"]).json()["results"][0]["score"]
    past = post(url, transactions=rows[:301], targets=["p300"]).json()["results"][0]["score"]
    assert past == pytest.approx(whole, abs=1e-5)


def test_order_and_ids_of_rows_do_not_matter(url: str, rows) -> None:
    straight = post(url, transactions=rows[:200]).json()["results"]
    shuffled = post(url, transactions=rows[:200][::-1]).json()["results"][::-1]
    nameless = [{k: v for k, v in row.items() if k != "id"} for row in rows[:200]]
    numbered = post(url, transactions=nameless).json()["results"]
    assert [result["node_id"] for result in numbered] == list(range(200))
    for other in (shuffled, numbered):
        np.testing.assert_allclose(
            [result["score"] for result in other],
            [result["score"] for result in straight],
            atol=1e-4,
        )


def test_explanations_name_transactions_and_features(url: str, rows) -> None:
    response = post(url, transactions=rows[:300], targets=["p250"], include=["explanation"])
    [result] = response.json()["results"]
    explanation = result["explanation"]
    ids = {row["id"] for row in rows[:250]}
    for cause in explanation["neighbours"]["supports"]:
        assert cause["node_id"] in ids
    features = [cause["feature"] for cause in explanation["features"]["supports"]]
    described = httpx.get(f"{url}/models/{MODEL}").json()
    assert set(features) <= {feature["name"] for feature in described["features"]}
    assert described["transactions"]["time"] == "time"
    assert described["decision"]["rule"] == "budget"
    with Client(url) as client:
        frame = pd.DataFrame(rows[:300]).drop(columns=["is_fraud", "typology"], errors="ignore")
        scores = client.score_transactions(
            frame, ["p250"], id="id", model=MODEL, include=["explanation"]
        )
    [parsed] = scores.explanations
    assert parsed is not None
    assert (parsed.target, parsed.label) == ("p250", result["label"])
    assert parsed.value == pytest.approx(explanation["value"], abs=1e-4)
    assert {part.kind for part in parsed.parts} <= {"neighbour", "feature", "memory"}


@pytest.mark.parametrize(
    ("change", "pointer", "words"),
    [
        ({"amount": None}, "/transactions/3/amount", "training had no row without it"),
        ({"amount": "12"}, "/transactions/3/amount", "Must be a finite number"),
        ({"time": "yesterday"}, "/transactions/3/time", "must be a timestamp"),
        ({"source": ""}, "/transactions/3/source", "Must be an id"),
        ({"source": 1.5}, "/transactions/3/source", "Must be an id"),
        ({"type": ["a"]}, "/transactions/3/type", "Must be text"),
        ({"colour": "red"}, "/transactions/3/colour", "Unknown field"),
        ({"id": "p0"}, "/transactions/0/id", "Node ids must be unique"),
    ],
)
def test_wrong_rows_are_refused(url: str, rows, change, pointer: str, words: str) -> None:
    wrong = [*rows[:3], {**rows[3], **change}]
    response = post(url, transactions=wrong)
    assert response.status_code == 422
    [error, *_] = response.json()["errors"]
    assert error["pointer"] == pointer
    assert words in error["detail"]


def test_requests_of_another_kind_are_refused(url: str, rows) -> None:
    graph = {"x": [[0.0]], "edge_index": [[], []]}
    for fields, words in (
        ({"graph": graph}, "reads rows of transactions"),
        ({"transactions": rows[:2], "graph": graph}, "not both"),
        ({"transactions": rows[:2], "graph_id": "g", "targets": [1]}, "Send either a graph"),
        ({"transactions": []}, "`transactions` is empty"),
        ({"transactions": rows[:2], "targets": ["p77"]}, "Must be the id"),
    ):
        response = post(url, **fields)
        assert response.status_code == 422
        assert words in response.text


def test_stated_rules_unseen_category_zone_and_missing_shared(url: str, rows) -> None:
    base = [{**row, "id": i} for i, row in enumerate(rows[:50])]
    last = base[-1]
    in_zone = {**last, "time": last["time"].replace("Z", "+00:00")}
    seconds = {**last, "time": pd.Timestamp(last["time"]).timestamp()}
    scores = [
        post(url, transactions=[*base[:-1], row], targets=[49]).json()["results"][0]["score"]
        for row in (last, in_zone, seconds)
    ]
    np.testing.assert_allclose(scores, scores[0], atol=1e-6)
    for change in ({"type": "never-seen"}, {"type": None}, {"device": None}):
        response = post(url, transactions=[*base[:-1], {**last, **change}], targets=[49])
        assert response.status_code == 200
    unseen, missing = (
        post(url, transactions=[*base[:-1], {**last, "type": value}], targets=[49]).json()
        for value in ("never-seen", None)
    )
    assert unseen["results"] == missing["results"]


def test_client_command_line_and_bulk_give_the_same_scores(
    url: str, frame: pd.DataFrame, rows, tmp_path: Path
) -> None:
    expected = [result["score"] for result in post(url, transactions=rows).json()["results"]]
    table = tmp_path / "payments.csv"
    frame.to_csv(table, index=False)
    with Client(url) as client:
        of_frame = client.score_transactions(frame, id="id", model=MODEL)
        of_file = client.score_transactions(table, ["p7"], id="id", model=MODEL)
        with pytest.raises(InputError, match="the model does not read note"):
            client.score_transactions(frame.assign(note="x"), id="id", model=MODEL)
        with pytest.raises(InputError, match="the model was trained on timestamps"):
            client.score_transactions(frame.assign(time=range(len(frame))), id="id", model=MODEL)
    assert of_frame.node_ids == frame["id"].tolist()
    np.testing.assert_allclose(of_frame.score, expected, atol=1e-6)
    assert of_file.score[0] == pytest.approx(expected[7], abs=1e-4)
    command = ["score-transactions", str(table), "--model", MODEL, "--id", "id"]
    for how in (["--server", url], ["--bulk"]):
        result = CliRunner().invoke(app, [*command, *how, "--last", "100"], catch_exceptions=False)
        assert result.exit_code == 0, result.output
        printed = pd.read_csv(io.StringIO(result.stdout))
        assert printed["node_id"].tolist() == frame["id"].tolist()[-100:]
        np.testing.assert_allclose(printed["score"], expected[-100:], atol=2e-4)


def test_the_command_line_finds_the_model_the_id_and_columns_that_options_name(
    url: str, frame: pd.DataFrame, rows, tmp_path: Path
) -> None:
    expected = [result["score"] for result in post(url, transactions=rows).json()["results"]]
    names = {"time": "when", "source": "payer", "target": "payee", "amount": "eur"}
    table = tmp_path / "theirs.csv"
    frame.rename(columns=names).to_csv(table, index=False, sep=";", decimal=",")
    command = ["score-transactions", str(table), "--decimal", ","]
    with pytest.raises(InputError, match="no column time, source, target, amount, which the model"):
        CliRunner().invoke(app, [*command, "--server", url], catch_exceptions=False)
    options = [word for name, column in names.items() for word in (f"--{name}", column)]
    for how in (["--server", url], ["--bulk", "--model", MODEL]):
        result = CliRunner().invoke(app, [*command, *options, *how], catch_exceptions=False)
        assert result.exit_code == 0, result.output
        printed = pd.read_csv(io.StringIO(result.stdout))
        assert printed["node_id"].tolist() == frame["id"].tolist()
        np.testing.assert_allclose(printed["score"], expected, atol=2e-4)
