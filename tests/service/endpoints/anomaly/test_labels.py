"""Labels of neighbours in `POST /anomaly/score`, from a model that was trained to read them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pandas as pd
import pytest
import safetensors.numpy
from basin_client import Client
from basin_client.graphs import Graph as ClientGraph
from sklearn.metrics import roc_auc_score
from typer.testing import CliRunner

from basin.cli import app as basin_app
from models.base import DynamicsParams
from models.checkpoint import load_checkpoint
from models.inputs.graph import UNKNOWN, Graph
from service.endpoints.anomaly.schemas import ScoreResponse
from service.workers.large_json import MAX_INLINE_BYTES
from tests.service.endpoints.anomaly.test_bad_input import check
from tests.support.few_references import few_references
from tests.support.server import Start, answers_with, wait_until
from training.__main__ import app

MODEL = "et-labels"
GROUPS, OF_EACH = 150, 5
NODES = GROUPS * OF_EACH


class Cliques:
    """Groups of nodes that all know each other. A group is fraud or not; a node hardly shows it."""

    def __init__(self, folder: Path) -> None:
        rng = np.random.default_rng(0)
        fraud = np.repeat(rng.random(GROUPS) < 0.3, OF_EACH)
        self.labels = fraud.astype(int)
        self.x = (0.3 * fraud[:, None] + rng.standard_normal((NODES, 3))).astype(np.float32)
        inside = [(i, j) for i in range(OF_EACH) for j in range(i)]
        self.edges = np.array(
            [(first + i, first + j) for first in range(0, NODES, OF_EACH) for i, j in inside]
        ).T
        self.ids = [f"account-{i}" for i in range(NODES)]
        nodes = pd.DataFrame(self.x, columns=["a", "b", "c"])
        nodes.insert(0, "id", self.ids)
        nodes.assign(is_fraud=self.labels).to_csv(folder / "nodes.csv", index=False)
        ends = np.array(self.ids)[self.edges]
        pd.DataFrame(ends.T, columns=["source", "target"]).to_csv(folder / "e.csv", index=False)
        options = {
            "--nodes": folder / "nodes.csv",
            "--edges": folder / "e.csv",
            "--split-out": folder / "split.csv",
            "--name": MODEL,
            "--out": folder / "models" / MODEL,
            "--run-folder": folder / "run",
        }
        given = [str(part) for pair in options.items() for part in pair]
        command = ["anomaly", "--model", "et", "--labels", "--smoke", "--device", "cpu", *given]
        with few_references():
            result = CliRunner().invoke(app, command, catch_exceptions=False)
        assert result.exit_code == 0, result.output
        self.folder, self.output, self.models = folder, result.output, folder / "models"
        self.part = (
            pd.read_csv(folder / "split.csv", index_col=0).iloc[:, 0].loc[self.ids].to_numpy()
        )

    @property
    def known(self) -> np.ndarray:
        """The labels of those that it was trained on."""
        return np.where(self.part == "train", self.labels, UNKNOWN).astype(np.int8)

    def body(self, labels: np.ndarray | None = None, **rest: Any) -> dict[str, Any]:
        graph = {"x": self.x.tolist(), "edge_index": self.edges.tolist(), "node_ids": self.ids}
        return {"graph": graph, **self.entries(labels), **rest}

    def rows(self, labels: np.ndarray | None = None) -> dict[str, Any]:
        nodes = [{"id": name, "x": x} for name, x in zip(self.ids, self.x.tolist(), strict=True)]
        pairs = ((self.ids[i], self.ids[j]) for i, j in self.edges.T)
        edges = [{"source": source, "target": target} for source, target in pairs]
        return {"nodes": nodes, "edges": edges, **self.entries(labels)}

    def entries(self, labels: np.ndarray | None) -> dict[str, Any]:
        if labels is None:
            return {}
        known = np.flatnonzero(labels != UNKNOWN)
        return {"labels": [{"node_id": self.ids[i], "label": int(labels[i])} for i in known]}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Cliques:
    return Cliques(tmp_path_factory.mktemp("labels"))


@pytest.fixture(scope="module")
def url(data: Cliques, start: Start, checkpoints: Path) -> str:
    (data.models / "et-small").symlink_to(checkpoints / "et-small")
    server = start(checkpoints=data.models, default_anomaly_model=MODEL)
    wait_until(lambda: answers_with(server, "/health/ready", 200))
    return server.url


def post(url: str, body: dict[str, Any]) -> httpx.Response:
    return httpx.post(f"{url}/anomaly/score", json=body, timeout=60)


def read_scores(response: httpx.Response) -> np.ndarray:
    assert response.status_code == 200, response.text
    ScoreResponse.model_validate_json(response.content)
    return np.array([result["score"] for result in response.json()["results"]])


def test_scores_are_those_of_training_and_labels_help(data: Cliques, url: str) -> None:
    test = data.part == "test"
    metrics = load_checkpoint(data.models / MODEL).manifest.metrics
    figures = dict[str, float]()
    for name, labels in (("test", None), ("test_with_labels", data.known)):
        scores = read_scores(post(url, data.body(labels)))
        figures[name] = float(roc_auc_score(data.labels[test], scores[test]))
        assert figures[name] == pytest.approx(metrics[name]["roc_auc"], abs=1e-9)
    assert figures["test_with_labels"] > figures["test"] + 0.05
    assert f"{figures['test_with_labels']:.4f}" in data.output


def test_each_form_of_a_request_is_the_same(data: Cliques, url: str) -> None:
    network = load_checkpoint(data.models / MODEL).network
    graph = Graph(data.x, data.edges, labels=data.known)
    right = network.infer(network.pack([graph]), [DynamicsParams()]).logits.numpy()
    padded = data.body(data.known) | {"model": MODEL}
    edges = np.ascontiguousarray(data.edges)
    arrays = {"x": data.x, "edge_index": edges, "labels": data.known}
    tensors = safetensors.numpy.save(arrays)
    headers = {"content-type": "application/vnd.safetensors"}
    answers = [
        post(url, data.body(data.known)),
        post(url, data.rows(data.known)),
        httpx.post(f"{url}/anomaly/score", content=tensors, headers=headers),
        # Large enough to be parsed in another process.
        httpx.post(
            f"{url}/anomaly/score",
            content=httpx.Request("POST", url, json=padded).content + b" " * MAX_INLINE_BYTES,
            headers={"content-type": "application/json"},
            timeout=60,
        ),
    ]
    for answer in answers:
        np.testing.assert_allclose(read_scores(answer), right, atol=1e-5)
        assert answer.json()["labels_known"] == (data.known != UNKNOWN).sum()
    with Client(url) as client:
        scores = client.score(ClientGraph(data.x, data.edges, labels=data.known), model=MODEL)
        np.testing.assert_allclose(scores.score, right, atol=1e-5)


def test_no_labels_and_no_known_labels_are_two_things(data: Cliques, url: str) -> None:
    answer = post(url, data.body(np.full(NODES, UNKNOWN)))
    assert answer.json()["labels_known"] == 0
    assert "labels_known" not in post(url, data.body()).json()
    assert (read_scores(answer) != read_scores(post(url, data.body()))).any()


def test_an_explanation_is_of_the_score_with_labels(data: Cliques, url: str) -> None:
    body = data.body(data.known, include=["explanation"], targets=[data.ids[0]])
    [result] = post(url, body).json()["results"]
    whole = read_scores(post(url, data.body(data.known)))
    assert result["score"] == pytest.approx(whole[0], abs=1e-5)
    explanation = result["explanation"]
    assert explanation["value"] == pytest.approx(whole[0], abs=1e-5)
    # Who is labelled and taken away moves the score.
    assert explanation["neighbours"]["supports"]


def test_the_model_says_that_it_reads_labels(url: str) -> None:
    label_trees = httpx.get(f"{url}/models/{MODEL}").json()["label_trees"]
    assert label_trees["count"] > 0
    assert label_trees["with_label_near"]["label_trees"] > 0
    assert httpx.get(f"{url}/models/et-small").json()["label_trees"] is None


ENTRY = {"node_id": "account-0", "label": 1}


@pytest.mark.parametrize(
    ("labels", "code", "at"),
    [
        ({}, "wrong_type", "/labels"),
        ([1], "wrong_type", "/labels/0"),
        ([{"node_id": "account-0"}], "missing", "/labels/0/label"),
        ([ENTRY | {"x": 1}], "unknown_field", "/labels/0/x"),
        ([ENTRY, ENTRY], "duplicate", "/labels/1/node_id"),
        ([ENTRY | {"node_id": "nobody"}], "unknown_node", "/labels/0/node_id"),
        ([ENTRY | {"node_id": 0}], "unknown_node", "/labels/0/node_id"),
        ([ENTRY | {"label": 2}], "out_of_range", "/labels/0/label"),
        ([ENTRY | {"label": True}], "wrong_type", "/labels/0/label"),
        ([ENTRY | {"label": None}], "wrong_type", "/labels/0/label"),
    ],
    ids=str,
)
def test_bad_labels_are_refused(
    data: Cliques, url: str, labels: object, code: str, at: str
) -> None:
    check(post(url, data.body() | {"labels": labels}), 422, "invalid-graph", code, at)


@pytest.mark.parametrize(
    ("labels", "code"),
    [
        (np.zeros(NODES - 1, np.int8), "wrong_shape"),
        (np.full(NODES, 2, np.int8), "out_of_range"),
        (np.full(NODES, -2, np.int64), "out_of_range"),
        (np.zeros(NODES, np.float32), "wrong_dtype"),
    ],
    ids=["fewer", "two", "minus two", "floats"],
)
def test_bad_tensors_of_labels_are_refused(
    data: Cliques, url: str, labels: np.ndarray, code: str
) -> None:
    body = safetensors.numpy.save({"x": data.x, "edge_index": data.edges, "labels": labels})
    headers = {"content-type": "application/vnd.safetensors"}
    answer = httpx.post(f"{url}/anomaly/score", content=body, headers=headers)
    check(answer, 422, "invalid-graph", code)


def test_labels_are_refused_where_nothing_reads_them(data: Cliques, url: str, sample) -> None:
    one = sample(1)
    labels = [{"node_id": one.node_ids[0], "label": 1}]
    body = one.arrays(model="et-small", labels=labels)
    check(post(url, body), 422, "invalid-graph", "not_read", "/labels")
    stored = {"graph_id": "some", "targets": ["account-0"], "labels": [ENTRY]}
    check(post(url, stored), 422, "invalid-graph", "not_read", "/labels")


def test_the_command_line_reads_a_column_of_labels(
    data: Cliques, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes, edges = data.folder / "nodes.csv", data.folder / "e.csv"
    known = pd.read_csv(nodes).assign(is_fraud=data.known).replace({"is_fraud": {UNKNOWN: None}})
    known.to_csv(tmp_path / "known.csv", index=False)

    def score(*options: str) -> pd.DataFrame:
        out = tmp_path / "out.csv"
        command = ["score", str(tmp_path / "known.csv"), str(edges), "--server", url]
        result = CliRunner().invoke(basin_app, [*command, "--out", str(out), *options])
        assert result.exit_code == 0, result.output
        return pd.read_csv(out)

    with_labels = score("--label", "is_fraud")
    right = read_scores(post(url, data.body(data.known)))
    np.testing.assert_allclose(with_labels["score"], right, atol=1e-4)
    assert with_labels["is_fraud"].notna().sum() == (data.known != UNKNOWN).sum()
    without = score("--drop", "is_fraud")
    np.testing.assert_allclose(without["score"], read_scores(post(url, data.body())), atol=1e-4)
    monkeypatch.setenv("BASIN_CHECKPOINTS", str(data.models))
    out, parts = str(tmp_path / "bulk.csv"), ["--bulk", str(tmp_path / "bulk"), "--parts", "3"]
    given = ["score", str(tmp_path / "known.csv"), str(edges), "--label", "is_fraud", "--out", out]
    result = CliRunner().invoke(basin_app, [*given, "--model", MODEL, *parts])
    assert result.exit_code == 0, result.output
    np.testing.assert_allclose(pd.read_csv(out)["score"], right, atol=1e-4)


def put(url: str, body: dict[str, Any]) -> httpx.Response:
    return httpx.put(f"{url}/graphs/cliques", json=body, timeout=60)


def ask(url: str, targets: list[str]) -> httpx.Response:
    return post(url, {"graph_id": "cliques", "targets": targets})


def test_a_stored_graph_is_scored_by_its_labels(data: Cliques, url: str) -> None:
    """As the same graph that is sent, whether labels came with it, later, or in a table."""
    targets = data.ids[:50]
    right = read_scores(post(url, data.body(data.known, targets=targets)))
    none = read_scores(post(url, data.body(np.full(NODES, UNKNOWN), targets=targets)))
    assert put(url, data.rows(data.known)).json()["labels"] is True
    answer = ask(url, targets)
    np.testing.assert_allclose(read_scores(answer), right, atol=1e-5)
    assert answer.json()["labels_known"] == (data.known[:50] != UNKNOWN).sum()

    edges = np.ascontiguousarray(data.edges)
    tensors = {"x": data.x, "edge_index": edges, "labels": np.full(NODES, UNKNOWN, np.int8)}
    metadata = {"request": json.dumps({"node_ids": data.ids})}
    headers = {"content-type": "application/vnd.safetensors"}
    content = safetensors.numpy.save(tensors, metadata)
    stored = httpx.put(f"{url}/graphs/cliques", content=content, headers=headers).json()
    assert stored["labels"] is True
    np.testing.assert_allclose(read_scores(ask(url, targets)), none, atol=1e-5)
    known = {data.ids[i]: int(data.labels[i]) for i in np.flatnonzero(data.known != UNKNOWN)}
    with Client(url) as client:
        assert client.add_labels("cliques", known)["changed"] == len(known)
        again = client.add_labels("cliques", known)
        assert (again["changed"], again["revision"]) == (0, stored["revision"] + 1)
        np.testing.assert_allclose(read_scores(ask(url, targets)), right, atol=1e-5)
        changed = client.change_graph("cliques", labels=dict.fromkeys(known))
        assert changed["revision"] == stored["revision"] + 2
    np.testing.assert_allclose(read_scores(ask(url, targets)), none, atol=1e-5)


def test_the_command_line_stores_labels(data: Cliques, url: str, tmp_path: Path) -> None:
    frame = pd.read_csv(data.folder / "nodes.csv").assign(is_fraud=data.known)
    known = frame.replace({"is_fraud": {UNKNOWN: None}})
    known.assign(is_fraud=None).to_csv(tmp_path / "unknown.csv", index=False)
    known.to_csv(tmp_path / "known.csv", index=False)

    def run(*command: str) -> str:
        result = CliRunner().invoke(basin_app, ["graphs", *command, "--server", url])
        assert result.exit_code == 0, result.output
        return result.output

    tables = ["--nodes", str(tmp_path / "unknown.csv"), "--edges", str(data.folder / "e.csv")]
    run("put", "cliques", "--model", MODEL, *tables, "--label", "is_fraud")
    output = run("label", "cliques", str(tmp_path / "known.csv"), "--label", "is_fraud")
    count = (data.known != UNKNOWN).sum()
    assert f"{count} of {count} labels are new" in output
    right = read_scores(post(url, data.body(data.known)))[:50]
    np.testing.assert_allclose(read_scores(ask(url, data.ids[:50])), right, atol=1e-4)


def test_a_new_label_of_a_neighbor_raises_an_alert(data: Cliques, url: str) -> None:
    """Nodes that score higher once two of the same clique are known to be fraud."""
    clique = int(np.flatnonzero((data.part == "test") & (data.labels == 1))[0]) // OF_EACH
    members = data.ids[clique * OF_EACH :][:OF_EACH]
    frauds = [{"id": id, "label": 1} for id in members[:2]]

    def find_probabilities() -> np.ndarray:
        results = ask(url, members).json()["results"]
        return np.array([result["probability"] for result in results])

    put(url, data.rows() | {"labels": []})
    before = find_probabilities()
    httpx.post(f"{url}/graphs/cliques/labels", json={"labels": frauds}).raise_for_status()
    after = find_probabilities()
    assert (after > before).all()
    target = int((after - before).argmax())
    threshold = float(before[target] + after[target]) / 2
    put(url, data.rows() | {"labels": [], "alerts": {"threshold": threshold}})

    def list_alerted() -> dict[str, float]:
        alerts = httpx.get(f"{url}/graphs/cliques/alerts?limit=1000").json()["alerts"]
        return {alert["node_id"]: alert["probability"] for alert in alerts}

    def is_scored(revision: int) -> bool:
        return httpx.get(f"{url}/graphs/cliques").json()["scored_revision"] == revision

    revision = httpx.get(f"{url}/graphs/cliques").json()["revision"]
    wait_until(lambda: is_scored(revision))
    assert members[target] not in list_alerted()
    httpx.post(f"{url}/graphs/cliques/labels", json={"labels": frauds}).raise_for_status()
    wait_until(lambda: is_scored(revision + 1))
    assert list_alerted()[members[target]] == pytest.approx(after[target], abs=1e-5)


def test_stored_labels_are_refused_where_nothing_reads_them(
    data: Cliques, url: str, sample
) -> None:
    one = sample(1)
    labels = [{"node_id": one.node_ids[0], "label": 1}]
    body = {"graph": one.arrays()["graph"], "model": "et-small", "labels": labels}
    check(put(url, body), 422, "invalid-graph", "not_read", "/labels")
    put(url, data.rows())  # without labels
    for answer in (
        httpx.post(f"{url}/graphs/cliques/labels", json={"labels": [{"id": "a", "label": 1}]}),
        httpx.patch(f"{url}/graphs/cliques", json={"labels": [ENTRY]}),
    ):
        check(answer, 422, "invalid-graph", "not_read", "/labels")


@pytest.mark.parametrize(
    ("labels", "code", "at"),
    [
        ([1], "wrong_type", "/labels/0"),
        ([{"node_id": "account-0"}], "missing", "/labels/0/label"),
        ([ENTRY, ENTRY], "duplicate", "/labels/0/node_id"),
        ([ENTRY | {"node_id": "nobody"}], "unknown_node", "/labels/0"),
        ([ENTRY | {"label": False}], "wrong_type", "/labels/0/label"),
        ([ENTRY | {"label": -1}], "out_of_range", "/labels/0/label"),
    ],
    ids=str,
)
def test_bad_changes_of_labels_are_refused(
    data: Cliques, url: str, labels: object, code: str, at: str
) -> None:
    revision = put(url, data.rows() | {"labels": []}).json()["revision"]
    answer = httpx.patch(f"{url}/graphs/cliques", json={"labels": labels})
    check(answer, 422, "invalid-graph", code, at)
    assert httpx.get(f"{url}/graphs/cliques").json()["revision"] == revision
