"""Stored graphs whose edges have features: they are scored as the same graph when it is sent."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import safetensors.numpy

from models import checkpoint
from models.architectures.et import ET
from service.endpoints.graphs.schemas import EdgesToAdd, GraphBody, StoreArrays, StoreRows
from tests.service.endpoints.anomaly.test_bad_input import check
from tests.support.checkpoints import EDGE_FEATURES, FEATURES, RELATIONS, Sample, make_sample
from tests.support.server import Server

MODEL, TURNED = "et-edges", "et-turned"
SAFETENSORS = {"content-type": "application/vnd.safetensors"}
EVERYTHING = {"hops": 8, "max_neighbors": 1000}
EDGE = {"source": "n1", "target": "n2", "type": "pays", "amount": 0.5, "hour": -1.25}


@pytest.fixture(scope="module")
def models(checkpoints: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Those of all tests, and one that reads the features of edges in another order."""
    folder = tmp_path_factory.mktemp("models")
    for each in checkpoints.iterdir():
        (folder / each.name).symlink_to(each)
    loaded = checkpoint.load_checkpoint(checkpoints / MODEL)
    config = loaded.network.config.model_copy(update={"edge_features": EDGE_FEATURES[::-1]})
    manifest = loaded.manifest.model_copy(
        update={
            "name": TURNED,
            "config": config.model_dump(mode="json"),
            "edge_features": loaded.manifest.edge_features[::-1],
        }
    )
    network = ET(config)
    network.load_state_dict(loaded.network.state_dict())
    checkpoint.save_checkpoint(folder / TURNED, network, manifest, "# A test model\n")
    return folder


@pytest.fixture(scope="module")
def launch(start, wait, answers, models: Path) -> Callable[..., Server]:
    """Starts a server, and waits until it is ready."""

    def launch(**where: object) -> Server:
        server = start(checkpoints=models, default_anomaly_model=MODEL, **where)
        wait(lambda: answers(server, "/health/ready", 200))
        return server

    return launch


@pytest.fixture(scope="module")
def server(launch: Callable[..., Server]) -> Server:
    return launch()


@pytest.fixture
def client(server: Server) -> Iterator[httpx.Client]:
    with server.client() as client:
        yield client


@pytest.fixture
def one() -> Sample:
    """A graph with one edge of a type from one node to another."""
    drawn = make_sample(3, 2, edge_features=2)
    assert drawn.edge_type is not None
    assert drawn.edge_attr is not None
    keys = np.r_[drawn.edge_index, drawn.edge_type[None]]
    first = np.sort(np.unique(keys, axis=1, return_index=True)[1])
    return replace(
        drawn,
        edge_index=np.ascontiguousarray(drawn.edge_index[:, first]),
        edge_type=drawn.edge_type[first],
        edge_attr=drawn.edge_attr[first],
    )


def turn(one: Sample) -> Sample:
    """Its columns in another order."""
    assert one.edge_attr is not None
    return replace(one, edge_attr=np.ascontiguousarray(one.edge_attr[:, ::-1]))


def named_arrays(one: Sample) -> dict[str, Any]:
    body = turn(one).arrays()
    body["graph"]["edge_feature_names"] = ["hour", "amount"]
    return body


SHAPES: dict[str, Callable[[Sample], dict[str, Any] | bytes]] = {
    "arrays": lambda one: one.arrays(),
    "arrays with names": named_arrays,
    "rows": lambda one: one.rows(),
    "tensors": lambda one: one.tensors(),
    "tensors with names": lambda one: turn(one).tensors(edge_feature_names=["hour", "amount"]),
}


def put(client: httpx.Client, body: dict[str, Any] | bytes) -> httpx.Response:
    if isinstance(body, bytes):
        return client.put("/graphs/g", content=body, headers=SAFETENSORS)
    return client.put("/graphs/g", json=body)


def told(answer: httpx.Response) -> GraphBody:
    assert answer.status_code in (200, 201), answer.text
    return GraphBody.model_validate_json(answer.content, strict=True)


def score(client: httpx.Client, body: dict[str, Any]) -> dict[str, Any]:
    answer = client.post("/anomaly/score", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def score_stored(client: httpx.Client, targets: list[Any], **rest: Any) -> dict[str, Any]:
    return score(client, {"graph_id": "g", "targets": targets, **rest})


def list_scores(body: dict[str, Any]) -> list[float]:
    return [result["score"] for result in body["results"]]


def refused(answer: httpx.Response, where: str, words: str = "") -> None:
    fault = check(answer, 422, "invalid-graph").errors[0]
    assert fault.pointer == where
    assert words in fault.detail


@pytest.mark.parametrize("shape", SHAPES)
def test_a_stored_graph_scores_as_one_that_is_sent(
    client: httpx.Client, one: Sample, shape: str
) -> None:
    graph = told(put(client, SHAPES[shape](one)))
    assert graph.edge_features == list(EDGE_FEATURES)
    assert graph.features == list(FEATURES)
    assert graph.relations == list(RELATIONS)
    assert graph.num_edges == one.edge_index.shape[1]
    assert told(client.get("/graphs/g")) == graph
    assert graph in [GraphBody(**g) for g in client.get("/graphs").json()["graphs"]]
    stored = score_stored(client, one.node_ids[:5], neighborhood=EVERYTHING)
    assert stored["graph"]["num_nodes"] == 40
    sent = score(client, one.arrays(targets=one.node_ids[:5]))
    assert list_scores(stored) == pytest.approx(list_scores(sent), rel=1e-5, abs=1e-6)
    other = score(client, turn(one).arrays(targets=one.node_ids[:5]))
    assert np.abs(np.subtract(list_scores(stored), list_scores(other))).max() > 1e-2


def test_a_neighborhood_is_described_as_in_the_whole_graph(
    client: httpx.Client, one: Sample
) -> None:
    """Numbers of edges that a neighbourhood leaves out change what is said of the nodes in it."""
    told(put(client, one.arrays()))
    target = one.node_ids[0]
    alone = {"hops": 0}
    before = list_scores(score_stored(client, [target], neighborhood=alone))
    far = next(edge for edge in one.rows()["edges"] if target not in edge.values())
    told(client.post("/graphs/g/edges", json={"edges": [far | {"amount": 9}]}))
    assert list_scores(score_stored(client, [target], neighborhood=alone)) == before
    near = next(edge for edge in one.rows()["edges"] if target in edge.values())
    told(client.post("/graphs/g/edges", json={"edges": [near | {"amount": 9}]}))
    [after] = list_scores(score_stored(client, [target], neighborhood=alone))
    assert abs(after - before[0]) > 1e-3


@pytest.mark.parametrize("kind", ["sqlite", "redis"])
def test_changes_take_rows_with_numbers_and_survive_a_restart(
    launch: Callable[..., Server], one: Sample, kind: str, request, tmp_path: Path
) -> None:
    where: dict[str, object] = {"graph_store": tmp_path / "graphs.sqlite"}
    if kind == "redis":
        where = {"redis_url": request.getfixturevalue("redis_server")().url}
    server, right, rows = launch(**where), one.rows()["edges"], one.rows()
    rows["edges"] = [edge | {"amount": edge["amount"] + 1} for edge in right[:30]] + right[30:60]
    ends = {name: right[3][name] for name in ("source", "target", "type")}
    with server.client() as client:
        head = told(put(client, rows))
        changed = told(client.patch("/graphs/g", json={"edges": right[:70]}))
        assert (changed.revision, changed.num_edges) == (head.revision + 1, 70)
        for path, send in (("/graphs/g", client.patch), ("/graphs/g/edges", client.post)):
            assert told(send(path, json={"edges": right[:70]})) == changed
        same_twice = {"edges": [*right[70:], right[70]]}
        last = told(client.post("/graphs/g/edges", json=same_twice))
        both = {"delete_edges": [ends], "edges": [right[3]]}
        assert told(client.patch("/graphs/g", json=both)) == last
        gone = told(client.patch("/graphs/g", json={"delete_edges": [ends]}))
        assert (gone.revision, gone.num_edges) == (last.revision + 1, last.num_edges - 1)
        restored = told(client.post("/graphs/g/edges", json={"edges": [right[3]]}))
        expected = list_scores(score(client, one.arrays(targets=one.node_ids[:5])))
        before = score_stored(client, one.node_ids[:5], neighborhood=EVERYTHING)
    if kind == "sqlite":
        server.process.kill()
        server.process.wait()
    with launch(**where).client() as client:
        assert told(client.get("/graphs/g")) == restored
        after = score_stored(client, one.node_ids[:5], neighborhood=EVERYTHING)
    assert list_scores(after) == list_scores(before)
    assert list_scores(after) == pytest.approx(expected, rel=1e-5, abs=1e-6)


def test_what_does_not_fit_the_graph_is_refused(client: httpx.Client, one: Sample) -> None:
    before = told(put(client, one.arrays()))
    bare = {name: EDGE[name] for name in ("source", "target", "type")}
    for path, send in (("/graphs/g/edges", client.post), ("/graphs/g", client.patch)):
        few = send(path, json={"edges": [{**bare, "amount": 1}]})
        refused(few, "/edges/0/hour", "source, target, type, amount, hour")
        refused(send(path, json={"edges": [EDGE | {"fee": 1}]}), "/edges/0/fee", "amount")
        refused(send(path, json={"edges": [EDGE | {"hour": None}]}), "/edges/0/hour")
        refused(send(path, json={"edges": [EDGE | {"hour": 1e39}]}), "/edges/0/hour")
        twice = {"edges": [EDGE, EDGE | {"type": "follows"}, EDGE | {"hour": 2}]}
        refused(send(path, json=twice), "/edges/2", "Put the two together")
    deletion = client.patch("/graphs/g", json={"delete_edges": [EDGE]})
    refused(deletion, "/delete_edges/0/amount", "source, target, type")
    assert told(client.get("/graphs/g")) == before
    refused(put(client, replace(one, edge_attr=None).arrays()), "/graph/edge_attr", "2 features")
    refused(put(client, replace(one, edge_attr=None).rows()), "/edges/0/amount")
    refused(put(client, replace(one, edge_attr=None).tensors()), "/edge_attr", "2 features")
    names = one.arrays()
    names["graph"]["edge_feature_names"] = ["amount", "fee"]
    refused(put(client, names), "/graph/edge_feature_names/1")
    assert told(client.get("/graphs/g")) == before


@pytest.mark.parametrize(
    ("shape", "where"),
    [("arrays", "/graph/edge_attr/3"), ("rows", "/edges/3"), ("tensors", "/edge_attr/3")],
)
def test_an_edge_has_one_set_of_numbers(
    client: httpx.Client, one: Sample, shape: str, where: str
) -> None:
    assert one.edge_type is not None
    assert one.edge_attr is not None
    again = replace(
        one,
        edge_index=np.insert(one.edge_index, 3, one.edge_index[:, 1], 1),
        edge_type=np.insert(one.edge_type, 3, one.edge_type[1]),
        edge_attr=np.insert(one.edge_attr, 3, one.edge_attr[1], 0),
    )
    assert told(put(client, getattr(again, shape)())).num_edges == one.edge_index.shape[1]
    assert again.edge_attr is not None
    again.edge_attr[3, 1] += 1
    refused(put(client, getattr(again, shape)()), where, "Put the two together")


def test_models_that_read_others_are_refused(client: httpx.Client, one: Sample) -> None:
    told(put(client, one.arrays()))
    for model, words in (("cdat-small", "model none"), (TURNED, "model hour, amount")):
        body = {"graph_id": "g", "targets": ["n1"], "model": model}
        refused(client.post("/anomaly/score", json=body), "/graph_id", words)
    plain = replace(one, edge_attr=None)
    assert told(put(client, plain.arrays(model="cdat-small"))).edge_features == []
    body = {"graph_id": "g", "targets": ["n1"], "model": MODEL}
    refused(client.post("/anomaly/score", json=body), "/graph_id", "stored graph are none")
    refused(client.post("/graphs/g/edges", json={"edges": [EDGE]}), "/edges/0/amount")
    for shape, where in (
        ("arrays", "/graph/edge_attr"),
        ("rows", "/edges/0/amount"),
        ("tensors", "/edge_attr"),
    ):
        refused(put(client, getattr(one, shape)(model="cdat-small")), where)
    told(put(client, turn(one).arrays(model=TURNED)))
    turned = score_stored(client, ["n1"], model=TURNED, neighborhood=EVERYTHING)
    assert len(turned["results"]) == 1


def test_an_explanation_takes_edges_away_with_their_numbers(
    client: httpx.Client, one: Sample
) -> None:
    told(put(client, one.arrays()))
    target = one.node_ids[0]
    knobs = {"include": ["explanation"], "neighborhood": EVERYTHING}
    [stored] = score_stored(client, [target], **knobs)["results"]
    body = one.arrays(targets=[target], include=["explanation"])
    [sent] = score(client, body)["results"]
    for side in ("supports", "opposes"):
        ours, theirs = (each["explanation"]["neighbours"][side] for each in (stored, sent))
        assert {cause["node_id"]: cause["effect"] for cause in ours} == pytest.approx(
            {cause["node_id"]: cause["effect"] for cause in theirs}, abs=1e-4
        )
    # Of a small neighbourhood: what is left of it is described by the edges that stay.
    near = score_stored(client, [target], include=["explanation"], neighborhood={"hops": 1})
    causes = near["results"][0]["explanation"]["neighbours"]
    assert [*causes["supports"], *causes["opposes"]]


def test_graphs_of_other_forms_have_ids_and_numbers(client: httpx.Client, one: Sample) -> None:
    assert one.edge_type is not None
    assert one.edge_attr is not None
    arrays = {
        "x": one.x,
        "edge_index": one.edge_index,
        "edge_type": one.edge_type,
        "edge_attr": one.edge_attr.astype(np.float64),
        "node_ids": np.arange(40),
    }
    told(put(client, safetensors.numpy.save(arrays)))
    stored = score_stored(client, [3], neighborhood=EVERYTHING)
    target = one.node_ids[3]
    sent = score(client, one.arrays(targets=[target]))
    assert list_scores(stored) == pytest.approx(list_scores(sent), rel=1e-5, abs=1e-6)


def test_the_schemas_have_them(one: Sample) -> None:
    StoreArrays.model_validate(one.arrays(model=MODEL))
    StoreRows.model_validate(one.rows(model=MODEL))
    EdgesToAdd.model_validate({"edges": [EDGE]})
