"""Names of columns and relations beside arrays, and what a relation's number means."""

from __future__ import annotations

import json

import numpy as np
import pytest
import safetensors.numpy

from models.inputs.graph import UNTYPED
from service.errors import Problem
from service.validation.arrays import pointer_builder
from service.validation.json_graph import parse_json_graph
from service.validation.names import match_features, parse_relations
from service.validation.safetensors_body import graph_from_tensors
from tests.support.checkpoints import FEATURES, RELATIONS, make_sample
from tests.support.server import Server


class Schema:
    def __init__(self, relations: tuple[str, ...]) -> None:
        self.features, self.relations = ("a", "b"), relations
        self.edge_features = ()


class Limits:
    max_nodes = max_edges = 100


AT = pointer_builder("edge_type")
X = np.array([[1.0, 2.0], [3.0, 4.0]], np.float32)
EDGES = np.array([[0, 1], [1, 0]])


def refused(code: str, work, *arguments, **options) -> None:
    with pytest.raises(Problem) as error:
        work(*arguments, **options)
    assert [fault.code for fault in error.value.faults] == [code]


@pytest.mark.parametrize(
    ("relations", "types", "expected"),
    [
        (("pays", "knows"), ["knows", "pays"], [1, 0]),
        (("pays", "knows"), [1, 0], [1, 0]),  # places, where no name is a number
        (("1", "2", "10"), [2, 10], [1, 2]),  # names
        (("1", "2", "10"), ["2", "10"], [1, 2]),
        (("1", "2", "10"), [0, 1], "unknown_relation"),
        (("007", "x"), [7, "x"], [0, 1]),
        (("pays", "knows"), ["owes", "pays"], "unknown_relation"),
        (("pays", "knows"), [True, "pays"], "wrong_type"),
        (("pays", "knows"), None, "missing"),
        (("pays",), ["pays", "pays"], None),
        (("pays",), None, None),
        (("pays",), ["pays", "owes"], "unknown_relation"),
        (UNTYPED, None, None),
        (UNTYPED, ["edge", "edge"], "not_read"),
    ],
)
def test_relations(relations, types, expected) -> None:
    if isinstance(expected, str):
        refused(expected, parse_relations, types, relations, 2, AT)
        return
    numbers = parse_relations(types, relations, 2, AT)
    assert expected == (None if numbers is None else numbers.tolist())


@pytest.mark.parametrize(
    ("relations", "names", "types", "expected"),
    [
        (("pays", "knows"), None, [0, 1], [0, 1]),
        (("pays", "knows"), ["knows", "pays"], [0, 1], [1, 0]),
        (("pays", "knows"), ["knows"], [0, 0], [1, 1]),
        (("pays", "knows"), ["knows"], [0, 1], "unknown_relation"),
        (("pays", "knows"), ["knows", "owes"], [0, 1], "unknown_relation"),
        (("pays", "knows"), ["knows", "knows"], [0, 1], "duplicate"),
        (("1", "2"), None, [0, 1], "ambiguous"),
        (("1", "2"), ["2", "1"], [0, 1], [1, 0]),
        (("pays",), ["pays"], [0, 0], None),
        (("pays",), ["owes"], [0, 0], "unknown_relation"),
    ],
)
@pytest.mark.parametrize("form", ["json", "tensors"])
def test_places_in_relation_names(relations, names, types, expected, form: str) -> None:
    if form == "json":
        if expected == "ambiguous":
            return  # in JSON a name could have been sent, so that the number is one
        graph = {"x": X.tolist(), "edge_index": EDGES.tolist(), "edge_type": types}
        body = {"graph": graph | {"relation_names": names}}
        arguments = parse_json_graph, body, Schema(relations)
    else:
        tensors = {"x": X, "edge_index": EDGES, "edge_type": np.array(types)}
        arguments = graph_from_tensors, tensors, {"relation_names": names}, Schema(relations)
    if isinstance(expected, str):
        refused(expected, *arguments, Limits())
        return
    work, *rest = arguments
    edge_type = work(*rest, Limits()).graph.edge_type
    assert expected == (None if edge_type is None else edge_type.tolist())


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (None, None),
        (["a", "b"], [0, 1]),
        (["b", "a"], [1, 0]),
        (["a"], "missing"),
        (["a", "b", "c"], "unknown_feature"),
        (["a", "a"], "duplicate"),
        (["a", "b", "a"], "duplicate"),
        ("ab", "wrong_type"),
        (["a", 1], "wrong_type"),
    ],
)
def test_features(names, expected) -> None:
    if isinstance(expected, str):
        refused(expected, match_features, names, ("a", "b"), AT)
        return
    columns = match_features(names, ("a", "b"), AT)
    assert expected == (None if columns is None else columns.tolist())


def test_columns_in_another_order_are_the_same_graph(server: Server) -> None:
    sample = make_sample(2, 2)
    order = [3, 1, 0, 4, 2]
    names = {
        "feature_names": [FEATURES[i] for i in order],
        "relation_names": RELATIONS[::-1],
    }
    assert sample.edge_type is not None
    tensors = {
        "x": np.ascontiguousarray(sample.x[:, order]),
        "edge_index": np.ascontiguousarray(sample.edge_index),
        "edge_type": 1 - sample.edge_type,
    }
    body = safetensors.numpy.save(
        tensors, {"request": json.dumps({"model": "cdat-small", **names})}
    )
    graph = {name: array.tolist() for name, array in tensors.items()} | names
    plain = {
        "x": sample.x.tolist(),
        "edge_index": sample.edge_index.tolist(),
        "edge_type": sample.edge_type.tolist(),
    }
    with server.client() as client:
        url, tensor_type = "/anomaly/score", {"content-type": "application/vnd.safetensors"}
        answers = [
            client.post(url, json={"graph": plain, "model": "cdat-small"}),
            client.post(url, json={"graph": graph, "model": "cdat-small"}),
            client.post(url, content=body, headers=tensor_type),
        ]
        stored = client.put("/graphs/named", content=body, headers=tensor_type)
        assert stored.status_code == 201, stored.text
        targets = list(range(40))
        near = {"graph_id": "named", "targets": targets, "model": "cdat-small"}
        around = {"neighborhood": {"hops": 8, "max_neighbors": 1000}}
        answers.append(client.post(url, json=near | around))
        client.delete("/graphs/named")
        scores = [[r["score"] for r in answer.json()["results"]] for answer in answers]
        np.testing.assert_allclose(scores, [scores[0]] * len(scores), atol=1e-4)
        detail = client.get("/models/cdat-small").json()
        assert (detail["undirected"], detail["missing_values"]) == (True, "refused")
        answer = client.post(
            url, json={"graph": plain | {"feature_names": ["age"]}, "model": "cdat-small"}
        )
        assert answer.json()["errors"][0]["pointer"] == "/graph/feature_names"
