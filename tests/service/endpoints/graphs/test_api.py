"""PUT, PATCH, GET and DELETE /graphs/{id}, and scores of what is stored."""

from __future__ import annotations

import json

import numpy as np
import pytest
import safetensors.numpy

from service.endpoints.graphs.schemas import GraphBody, GraphList
from tests.service.endpoints.anomaly.test_bad_input import check
from tests.support.bad_score_bodies import SECRET
from tests.support.checkpoints import FEATURES, RELATIONS
from tests.support.server import gauge
from tests.support.stored_graphs import SAFETENSORS, post_score, put_graph, read_graph, read_scores

MODELS = {"et-small": 1, "cdat-small": 2}
NODE = {"id": "new", "x": [0.5, 0, 0, 0, 1]}


@pytest.mark.parametrize("shape", ["arrays", "rows", "tensors"])
@pytest.mark.parametrize("model", MODELS)
def test_a_stored_graph_scores_as_one_that_is_sent(client, sample, model, shape):
    one = sample(3, MODELS[model])
    graph = read_graph(put_graph(client, getattr(one, shape)(model=model)), 201)
    relations = list(RELATIONS) if MODELS[model] > 1 else graph.relations
    edges = np.c_[one.edge_index.T, np.zeros(120) if one.edge_type is None else one.edge_type]
    assert graph == GraphBody(
        id="g",
        features=list(FEATURES),
        edge_features=[],
        relations=relations,
        labels=False,
        num_nodes=40,
        num_edges=len(np.unique(edges, axis=0)),
        revision=1,
        digest=graph.digest,
    )
    whole = {"hops": 8, "max_neighbors": 1000}
    answer = read_scores(client, one.node_ids[:3], model=model, neighborhood=whole)
    sent = client.post(
        "/anomaly/score", json=one.arrays(model=model, targets=one.node_ids[:3])
    ).json()
    near, far = answer["graph"]["num_nodes"], 40
    for a, b in zip(answer["results"], sent["results"], strict=True):
        assert a["node_id"] == b["node_id"]
        if near == far:  # all of it can be reached
            assert a["score"] == pytest.approx(b["score"], rel=1e-4, abs=1e-5)
    assert answer["graph"]["revision"] == 1


@pytest.mark.parametrize("model", MODELS)
def test_nodes_are_described_as_in_the_whole_graph_that_grew_edge_by_edge(client, sample, model):
    one = sample(5, MODELS[model])
    start = one.arrays(model=model)
    start["graph"] |= {"edge_index": [[], []]}
    if one.edge_type is not None:
        start["graph"]["edge_type"] = []
    read_graph(put_graph(client, start), 201)
    edges = one.rows()["edges"]
    for i in range(0, len(edges), 30):
        read_graph(client.post("/graphs/g/edges", json={"edges": edges[i : i + 30]}))
    target = one.node_ids[0]
    near = {target}
    for _ in range(2):
        near |= {
            edge[a]
            for edge in edges
            for a, b in (("source", "target"), ("target", "source"))
            if edge[b] in near
        }
    whole = client.post("/anomaly/score", json=one.rows(model=model, targets=[target])).json()
    for hops in (2, 8):
        reach = {"hops": hops, "max_neighbors": 100}
        answer = read_scores(client, [target], model=model, neighborhood=reach)
        assert answer["graph"].items() >= reach.items()
        apart = abs(answer["results"][0]["score"] - whole["results"][0]["score"])
        if hops == 2:
            assert answer["graph"]["num_nodes"] == len(near)
        else:
            assert answer["graph"]["num_nodes"] == 40
            assert apart < 1e-5
        by_hand = one.rows(model=model, targets=[target])
        by_hand["nodes"] = [node for node in by_hand["nodes"] if node["id"] in near]
        by_hand["edges"] = [e for e in edges if {e["source"], e["target"]} <= near]
        sent = client.post("/anomaly/score", json=by_hand).json()
        assert apart < abs(sent["results"][0]["score"] - whole["results"][0]["score"])


def test_energies_are_compared_at_the_reach_of_the_model_alone(client, sample):
    read_graph(put_graph(client, sample(3).rows(model="et-small")), 201)
    detail = client.get("/models/et-small").json()["neighborhood"]
    assert (detail["hops"], detail["max_neighbors"]) == (2, 32)
    usual = read_scores(client, ["n1"], model="et-small")
    taken = usual["graph"]
    assert (taken["hops"], taken["max_neighbors"]) == (2, 32)
    assert taken["means_revision"] == taken["revision"] == 1
    energy = usual["convergence"]["energy_final"] / taken["num_nodes"]
    of_stored = np.interp(energy, [-60.0, -20.0, 0.0], [0, 50, 100])
    assert usual["convergence"]["energy_percentile"] == pytest.approx(of_stored)
    for reach in ({"hops": 1}, {"max_neighbors": 31}):
        other = read_scores(client, ["n1"], model="et-small", neighborhood=reach)["convergence"]
        assert other["energy_percentile"] is None
        assert other["out_of_distribution"] is None


def test_ids_may_be_a_tensor(client, sample):
    one = sample(3)
    arrays = {"x": one.x, "edge_index": one.edge_index, "node_ids": np.arange(1000, 1040)}
    read_graph(put_graph(client, safetensors.numpy.save(arrays)), 201)
    assert read_scores(client, [1007])["results"][0]["node_id"] == 1007
    twice = {"request": json.dumps({"node_ids": one.node_ids})}
    both = put_graph(client, safetensors.numpy.save(arrays, twice))
    refused(both, 422, "invalid-graph", "/node_ids")
    few = put_graph(client, safetensors.numpy.save(arrays | {"node_ids": np.arange(39)}))
    refused(few, 422, "invalid-graph", "/node_ids")
    same = put_graph(client, safetensors.numpy.save(arrays | {"node_ids": np.arange(40) // 2}))
    refused(same, 422, "invalid-graph", "/node_ids/0")


def test_the_same_seed_is_the_same_answer_and_the_cache_has_none(client, sample):
    read_graph(put_graph(client, sample(3).rows()), 201)
    knobs = {"hops": 2, "max_neighbors": 2, "seed": 7}
    first = read_scores(client, ["n1"], neighborhood=knobs)
    again = post_score(client, ["n1"], neighborhood=knobs)
    assert "x-cache" not in again.headers
    assert again.json()["results"] == first["results"]
    sizes = {
        read_scores(client, ["n1"], neighborhood=knobs | {"seed": s})["graph"]["num_edges"]
        for s in range(8)
    }
    assert len(sizes) > 1
    client.post("/graphs/g/nodes", json={"nodes": [{"id": "n1", "x": [9, 9, 9, 9, 9]}]})
    changed = read_scores(client, ["n1"], neighborhood=knobs)
    assert changed["results"] != first["results"]
    assert changed["graph"]["revision"] == 2


def test_a_graph_changes_all_at_once(client, server, sample):
    before = read_graph(put_graph(client, sample(3).rows()), 201)
    by_name = {"id": "newer", **dict.fromkeys(FEATURES, 1.0)}
    after = read_graph(
        client.patch(
            "/graphs/g",
            json={
                "delete_nodes": ["n5"],
                "delete_edges": [sample(3).rows()["edges"][0]],
                "nodes": [NODE],
                "edges": [{"source": "new", "target": "n1"}],
            },
        )
    )
    assert after.num_nodes == before.num_nodes
    assert after.revision == 2
    refused(post_score(client, ["n5"]), 422, "invalid-graph", "/targets/0")
    read_graph(client.post("/graphs/g/nodes", json={"nodes": [by_name]}))
    read_graph(
        client.post("/graphs/g/edges", json={"edges": [{"source": "newer", "target": "new"}]})
    )
    answer = read_scores(client, ["newer"], neighborhood={"hops": 1})
    assert answer["graph"]["num_nodes"] == 2
    last = read_graph(client.get("/graphs/g"))
    assert gauge(server, "basin_graph_bytes") > 1000
    assert GraphList.model_validate_json(client.get("/graphs").content).graphs == [last]
    assert last.revision == 4
    bad = {"delete_nodes": ["n6"], "nodes": [NODE], "edges": [{"source": "n6", "target": "n1"}]}
    refused(client.patch("/graphs/g", json=bad), 422, "invalid-graph", "/edges/0/source")
    assert read_graph(client.get("/graphs/g")) == last
    assert client.delete("/graphs/g").status_code == 204
    check(client.get("/graphs/g"), 404, "unknown-graph")
    refused(post_score(client, ["n1"]), 404, "unknown-graph", "/graph_id")


def test_whatever_else_an_answer_may_have(client, sample):
    read_graph(put_graph(client, sample(3).rows()), 201)
    answer = read_scores(client, ["n1", "n2"], include=["trace", "attention", "explanation"])
    seeing = answer["reasons"]["attention"][0]["tokens"]
    assert {token["node_id"] for token in seeing} == {"n1", "n2"}
    assert all("explanation" in result for result in answer["results"])
    headers = {"accept": "application/vnd.safetensors"}
    body = {"graph_id": "g", "targets": ["n1", "n2"]}
    file = client.post("/anomaly/score", json=body, headers=headers)
    assert safetensors.numpy.load(file.content)["results.score"].tolist() == pytest.approx(
        [result["score"] for result in answer["results"]], rel=1e-5
    )
    job = client.post("/anomaly/score", json=body, headers={"prefer": "respond-async"})
    assert job.status_code == 202


def refused(answer, status, kind, where):
    assert check(answer, status, kind).errors[0].pointer == where


EDGE = {"source": "n1", "target": "n2"}
BAD = {
    "no JSON": ("PATCH", "/graphs/g", b"{", 400, "invalid-json"),
    "nothing to change": ("PATCH", "/graphs/g", {}, 422, "invalid-graph"),
    "no nodes": ("POST", "/graphs/g/nodes", {"nodes": []}, 422, "invalid-graph"),
    "more than at once": (
        *("PATCH", "/graphs/g", {"delete_nodes": [*range(10_001)]}, 422, "invalid-graph"),
    ),
    "edges for nodes": ("POST", "/graphs/g/nodes", {"edges": [EDGE]}, 422, "invalid-request"),
    "a list of what": ("POST", "/graphs/g/nodes", {"nodes": 7}, 422, "invalid-graph"),
    "a node twice": ("POST", "/graphs/g/nodes", {"nodes": [NODE, NODE]}, 422, "invalid-graph"),
    "too few features": (
        *("POST", "/graphs/g/nodes"),
        *({"nodes": [{"id": "a", "x": [1, 2]}]}, 422, "invalid-graph"),
    ),
    "no number": (
        *("POST", "/graphs/g/nodes"),
        *({"nodes": [{"id": "a", "x": [1, 2, 3, 4, True]}]}, 422, "invalid-graph"),
    ),
    "an edge to nowhere": (
        *("POST", "/graphs/g/edges"),
        *({"edges": [{"source": "n1", "target": SECRET}]}, 422, "invalid-graph"),
    ),
    "an edge with a feature": (
        *("POST", "/graphs/g/edges", {"edges": [EDGE | {"amount": 1}]}, 422, "invalid-graph"),
    ),
    "an edge with a type": (
        *("POST", "/graphs/g/edges", {"edges": [EDGE | {"type": 0}]}, 422, "invalid-graph"),
    ),
    "a name that is none": (
        *("PATCH", "/graphs/g", {"delete_nodes": [1.5]}, 422, "invalid-graph"),
    ),
    "an edge that is none": (
        *("PATCH", "/graphs/g", {"delete_edges": [{"source": "n1"}]}, 422, "invalid-graph"),
    ),
    "no such graph": ("POST", "/graphs/h/edges", {"edges": [EDGE]}, 404, "unknown-graph"),
    "no such model": ("PUT", "/graphs/h", {"model": "no"}, 404, "unknown-model"),
    "a model of pictures": ("PUT", "/graphs/h", {"model": "et-tile"}, 422, "wrong-model"),
    "no graph": ("PUT", "/graphs/h", {}, 422, "invalid-graph"),
    "targets to store": ("PUT", "/graphs/h", {"targets": ["a"]}, 422, "invalid-request"),
    "an id that is none": (
        *("PUT", "/graphs/UP", {"nodes": [NODE], "edges": []}, 422, "invalid-request"),
    ),
    "tensors that are none": ("PUT", "/graphs/h", (b"\x00" * 9,), 400, "invalid-safetensors"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_cannot_be_stored(client, sample, case):
    before = read_graph(put_graph(client, sample(3).rows()), 201)
    method, path, body, status, kind = BAD[case]
    headers, raw = {"content-type": "application/json"}, body
    if isinstance(body, tuple):
        headers, raw = SAFETENSORS, body[0]
    elif isinstance(body, dict):
        raw = json.dumps(body).encode()
    check(client.request(method, path, content=raw, headers=headers), status, kind)
    assert read_graph(client.get("/graphs/g")) == before


@pytest.mark.parametrize(
    ("rest", "kind", "where"),
    [
        ({"targets": []}, "invalid-graph", "/targets"),
        ({"targets": None}, "invalid-graph", "/targets"),
        ({"targets": ["n1", "n1"]}, "invalid-graph", "/targets/0"),
        ({"nodes": [NODE], "edges": []}, "invalid-graph", ""),
        ({"graph_id": 7}, "invalid-request", "/graph_id"),
        ({"neighborhood": {"hops": 9}}, "invalid-request", "/neighborhood/hops"),
        ({"neighborhood": {"hop": 1}}, "invalid-request", "/neighborhood/hop"),
        ({"neighborhood": {"max_neighbors": 0}}, "invalid-request", "/neighborhood/max_neighbors"),
        ({"model": "cdat-small"}, "invalid-graph", "/graph_id"),
    ],
)
def test_what_cannot_be_scored(client, sample, rest, kind, where):
    read_graph(put_graph(client, sample(3).rows()), 201)
    body = {"graph_id": "g", "targets": ["n1"], **rest}
    refused(client.post("/anomaly/score", json=body), 422, kind, where)


def test_a_neighbourhood_without_a_graph_is_refused(client, sample):
    body = sample(3).rows(neighborhood={"hops": 1})
    refused(client.post("/anomaly/score", json=body), 422, "invalid-graph", "/neighborhood")


def test_there_is_only_so_much_room(client, sample):
    for id in ("a", "b", "c"):
        read_graph(put_graph(client, sample(3).rows(), id), 201)
    check(put_graph(client, sample(3).rows(), "d"), 507, "store-full")
    check(put_graph(client, sample(3, nodes=150).rows(), "c"), 507, "store-full")
    nodes = [{"id": i, "x": [0] * 5} for i in range(81)]
    check(client.post("/graphs/a/nodes", json={"nodes": nodes}), 507, "store-full")
    read_graph(client.post("/graphs/a/nodes", json={"nodes": nodes[:80]}))
