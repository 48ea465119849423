"""Scores of accounts from raw rows: `POST /anomaly/score`, the client and the command line."""

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
from service.endpoints.anomaly.schemas import ScoreResponse
from tests.support.accounts import score_states, train_accounts
from training.datasets.payments import simulate_payments

MODEL = "accounts"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("accounts")
    frame = simulate_payments(1500, fraud_share=0.1, seed=1)
    train_accounts(frame, folder, "--label", "is_fraud", "--account-side", "both")
    return folder


@pytest.fixture(scope="module")
def url(folder: Path, start, wait, answers) -> str:
    server = start(checkpoints=folder, models=MODEL, default_anomaly_model=MODEL)
    wait(lambda: answers(server, "/health/ready", 200))
    return server.url


def post(url: str, **fields: Any) -> httpx.Response:
    return httpx.post(f"{url}/anomaly/score", json={"model": MODEL, **fields}, timeout=60)


def get_scores(url: str, **fields: Any) -> dict[str, float]:
    response = post(url, **fields)
    assert response.status_code == 200, response.text
    ScoreResponse.model_validate_json(response.content)
    return {result["node_id"]: result["score"] for result in response.json()["results"]}


def score_directly(folder: Path, frame: pd.DataFrame) -> dict[str, float]:
    """Logits of all accounts, each as of its last row, in order of their first row."""
    scores = dict.fromkeys(frame[["source", "target"]].to_numpy().ravel().tolist(), 0.0)
    for state in score_states(folder / MODEL, frame):
        scores[state.account] = state.score
    return scores


def test_accounts_are_scored_in_order_of_appearance_each_alone(
    url: str, folder: Path, frame: pd.DataFrame, rows
) -> None:
    scores = get_scores(url, transactions=rows)
    expected = score_directly(folder, frame)
    assert list(scores) == list(expected)
    assert list(scores.values()) == pytest.approx(list(expected.values()), abs=2e-4)
    some = list(expected)[50:40:-1]
    assert get_scores(url, transactions=rows, targets=some) == pytest.approx(
        {account: expected[account] for account in some}, abs=2e-4
    )


def test_an_account_without_later_rows_keeps_its_score(url: str, rows) -> None:
    whole = get_scores(url, transactions=rows)
    past = get_scores(url, transactions=rows[:700])
    later = {row[side] for row in rows[700:] for side in ("source", "target")}
    same = past.keys() - later
    assert len(same) > 10
    assert {name: past[name] for name in same} == pytest.approx(
        {name: whole[name] for name in same}, abs=1e-4
    )
    shuffled = get_scores(url, transactions=[*rows[700:], *rows[:700]])
    assert shuffled == pytest.approx(whole, abs=1e-4)
    assert next(iter(shuffled)) == rows[700]["source"]


def test_whole_numbers_are_ids_of_accounts_and_rows_need_none(url: str, rows) -> None:
    numbered = [
        {**row, "source": int(row["source"][1:]), "target": int(row["target"][1:])}
        for row in rows[:300]
    ]
    as_text = get_scores(url, transactions=rows[:300])
    nameless = [{k: v for k, v in row.items() if k != "id"} for row in numbered]
    assert list(get_scores(url, transactions=nameless)) == [name[1:] for name in as_text]
    first = numbered[0]["source"]
    assert list(get_scores(url, transactions=nameless, targets=[first])) == [str(first)]


def test_explanations_name_transactions_and_the_features_of_the_account(url: str, rows) -> None:
    account = rows[250]["source"]
    response = post(
        url, transactions=rows[:300], targets=[account], include=["explanation", "attention"]
    )
    assert response.status_code == 200, response.text
    ScoreResponse.model_validate_json(response.content)
    [result] = response.json()["results"]
    explanation = result["explanation"]
    own = {row["id"] for row in rows[:300] if account in (row["source"], row["target"])}
    neighbours = explanation["neighbours"]
    assert 0 < neighbours["parts"] <= 6
    for cause in neighbours["supports"] + neighbours["opposes"]:
        assert cause["node_id"] in own
    described = httpx.get(f"{url}/models/{MODEL}").json()
    recipe = described["transactions"]
    assert recipe["scores"] == "accounts"
    assert recipe["account_sides"] == ["source", "target"]
    means = {feature["name"]: feature["mean"] for feature in described["features"]}
    causes = explanation["features"]["supports"] + explanation["features"]["opposes"]
    assert causes
    for cause in causes:
        assert cause["feature"].startswith("account_")
        assert cause["instead"] == pytest.approx(means[cause["feature"]], rel=1e-4, abs=1e-6)


def test_a_decision_counts_accounts(url: str, rows) -> None:
    response = post(url, transactions=rows, decision={"budget": 5})
    results = response.json()["results"]
    assert sum(result["label"] for result in results) <= 5
    daily = post(url, transactions=rows, decision={"daily_budget": 1})
    assert daily.status_code == 200


@pytest.mark.parametrize(
    ("fields", "pointer", "words"),
    [
        ({"targets": ["p7"]}, "/targets/0", "Must be the id of an account of `transactions`"),
        ({"targets": ["a1", "a1"]}, "/targets", "already in `targets`"),
        ({"targets": []}, "/targets", "`targets` is empty"),
        ({"targets": [1.5]}, "/targets/0", "Must be the id of an account"),
        ({"targets": "a1"}, "/targets", ""),
        ({"transactions": []}, "/transactions", "`transactions` is empty"),
        ({"graph_id": "g", "targets": ["a1"]}, "", "Send either a graph"),
    ],
)
def test_wrong_requests_are_refused(url: str, rows, fields, pointer: str, words: str) -> None:
    known = rows[0]["source"]
    if isinstance(given := fields.get("targets"), list):
        fields = fields | {"targets": [known if name == "a1" else name for name in given]}
    response = post(url, **({"transactions": rows[:20]} | fields))
    assert response.status_code == 422, response.text
    [error, *_] = response.json()["errors"]
    assert error["pointer"].startswith(pointer)
    assert words in error["detail"]


def test_examples_score_and_store_accounts(url: str) -> None:
    paths = httpx.get(f"{url}/openapi.json").json()["paths"]

    def find_example(path: str, method: str = "post") -> dict[str, Any]:
        content = paths[path][method]["requestBody"]["content"]["application/json"]
        return content["examples"][MODEL]["value"]

    assert post(url, **find_example("/anomaly/score")).status_code == 200
    stored = httpx.put(f"{url}/graphs/example", json=find_example("/graphs/{id}", "put"))
    assert stored.status_code == 201, stored.text
    body = find_example("/graphs/{id}/transactions")
    added = httpx.post(f"{url}/graphs/example/transactions", json=body, timeout=60)
    assert added.status_code == 200, added.text


def test_client_command_line_and_bulk_give_the_same_scores(
    url: str, folder: Path, frame: pd.DataFrame, rows, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    expected = get_scores(url, transactions=rows)
    table = tmp_path / "payments.csv"
    frame.to_csv(table, index=False)
    some = list(expected)[5:9]
    with Client(url) as client:
        of_frame = client.score_transactions(frame, id="id", model=MODEL)
        of_file = client.score_transactions(table, some, drop="id", model=MODEL)
    assert of_frame.node_ids == list(expected)
    assert of_frame.score == pytest.approx(np.array(list(expected.values())), abs=1e-6)
    assert of_file.node_ids == some
    assert of_file.score == pytest.approx(np.array([expected[name] for name in some]), abs=1e-4)
    monkeypatch.setenv("BASIN_CHECKPOINTS", str(folder))
    command = ["score-transactions", str(table), "--model", MODEL, "--id", "id"]
    for how in (["--server", url], ["--bulk"]):
        result = CliRunner().invoke(app, [*command, *how], catch_exceptions=False)
        assert result.exit_code == 0, result.output
        printed = pd.read_csv(io.StringIO(result.stdout))
        assert printed["node_id"].tolist() == list(expected)
        assert "device" not in printed
        np.testing.assert_allclose(printed["score"], list(expected.values()), atol=2e-4)
        refused = CliRunner().invoke(app, [*command, *how, "--last", "5"])
        assert refused.exit_code != 0
        if isinstance(refused.exception, InputError):
            assert "--last is of transactions" in str(refused.exception)
        else:
            assert "--last is of transactions" in refused.output
