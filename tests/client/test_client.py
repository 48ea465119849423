"""The Python client against a real server: every type of input, and requests that are refused."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import networkx as nx
import numpy as np
import pandas as pd
import pytest
import torch
from basin_client import (
    AsyncClient,
    Client,
    Graph,
    InputError,
    ItemError,
    Prediction,
    ProblemError,
    graph_operations,
    operations,
)
from PIL import Image
from rdkit import Chem
from torch_geometric.data import Data

from tests.service.endpoints.sample.test_api import ENDLESS, QUICK
from tests.support.checkpoints import FEATURES, MOLECULES, RELATIONS, make_sample, make_shapes
from tests.support.image_files import saved, smooth
from tests.support.image_models import OTHER, SEEN, SHAPE
from tests.support.server import Server


@pytest.fixture
def client(server: Server) -> Iterator[Client]:
    with Client(server.url) as client:
        yield client


SAMPLE = make_sample(5)
GRAPH = Graph(SAMPLE.x, SAMPLE.edge_index, node_ids=SAMPLE.node_ids)


def to_networkx() -> nx.Graph:
    graph = nx.Graph()
    for node_id, row in zip(SAMPLE.node_ids, SAMPLE.x, strict=True):
        graph.add_node(node_id, **dict(zip(FEATURES, map(float, row), strict=True)))
    for a, b in SAMPLE.edge_index.T:
        graph.add_edge(SAMPLE.node_ids[a], SAMPLE.node_ids[b])
    return graph


def to_frames() -> tuple[pd.DataFrame, pd.DataFrame]:
    nodes = pd.DataFrame(SAMPLE.x, columns=list(FEATURES))[::-1]  # columns have names
    nodes.insert(2, "id", SAMPLE.node_ids[::-1])
    ends = [[SAMPLE.node_ids[i] for i in row] for row in SAMPLE.edge_index]
    return nodes, pd.DataFrame({"source": ends[0], "target": ends[1]})


def test_graph_types(client: Client) -> None:
    targets = ["n3", "n0"]
    expected = client.score(GRAPH, targets, model="et-small")
    assert expected.node_ids == targets
    geometric = Data(torch.from_numpy(SAMPLE.x), torch.from_numpy(SAMPLE.edge_index))
    rows = [SAMPLE.node_ids.index(node_id) for node_id in targets]
    for scores in (
        client.score(to_networkx(), targets, features=FEATURES, model="et-small"),
        client.score(to_frames(), targets, features=FEATURES, model="et-small"),
        client.score(to_frames(), targets),
        client.score(geometric, rows),
        client.score(geometric, np.array(rows)),
    ):
        np.testing.assert_allclose(scores.score, expected.score, rtol=1e-4)
        assert scores.rank.tolist() == expected.rank.tolist()
        assert scores.threshold == 0.5
    frame = expected.to_pandas()
    assert list(frame.columns) == ["node_id", "score", "probability", "label", "rank"]
    assert frame["node_id"].tolist() == targets
    graph = to_networkx()
    whole = client.score(graph, features=FEATURES)
    whole.onto(graph)
    assert graph.nodes["n3"]["score"] == pytest.approx(float(expected.score[0]), rel=1e-4)
    assert len(whole) == len(SAMPLE.node_ids)


def test_convergence(client: Client) -> None:
    dynamics = {"steps": 3, "resonance": {"strength": 0.2}}
    scores = client.score(GRAPH, dynamics=dynamics, include=["trace", "attention"], timeout_s=20)
    assert scores.convergence.steps == 3
    assert scores.convergence.trace is not None
    assert len(scores.convergence.trace) == 4
    assert scores.convergence.energy_final == scores.convergence.trace[-1]["energy"]
    assert scores.raw["dynamics"]["resonance"]["strength"] == 0.2
    assert "attention_0.weight" in scores.tensors


@pytest.mark.parametrize("data_type", ["frames", "mappings", "tuples"])
def test_stored_graph(client: Client, data_type: str) -> None:
    nodes, edges = to_frames()
    first, second = nodes[:30], nodes[30:]
    is_inside = edges["source"].isin(first["id"]) & edges["target"].isin(first["id"])
    graph = client.store_graph(
        "stored", (first, edges[is_inside]), features=FEATURES, model="et-small"
    )
    assert graph["num_nodes"] == 30
    rest: Any = edges[~is_inside]
    more: Any = second
    if data_type == "mappings":
        more, rest = second.to_dict("records"), rest.to_dict("records")
    elif data_type == "tuples":
        more, rest = second.to_dict("records"), list(rest.itertuples(index=False))
    client.change_graph("stored", nodes=more, edges=rest)
    near = client.score_nodes("stored", ["n3", "n8"], hops=8, max_neighbors=99, model="et-small")
    assert near.node_ids == ["n3", "n8"]
    assert near.raw["graph"]["num_nodes"] == client.graph("stored")["num_nodes"] == 40
    expected = client.score(GRAPH, ["n3", "n8"], model="et-small")
    np.testing.assert_allclose(near.score, expected.score, rtol=1e-4)
    client.change_graph("stored", delete_nodes=["n8"], delete_edges=edges[:3])
    [stored] = [each for each in client.graphs() if each["id"] == "stored"]
    assert stored["num_nodes"] == 39
    client.forget_graph("stored")
    assert "stored" not in [each["id"] for each in client.graphs()]


def test_unknown_stored_graph(client: Client) -> None:
    with pytest.raises(ProblemError) as error:
        client.change_graph("missing", delete_nodes=[1])
    assert error.value.kind == "unknown-graph"


def test_several_relations(client: Client) -> None:
    sample = make_sample(2, 2)
    arrays = Graph(sample.x, sample.edge_index, sample.edge_type, node_ids=sample.node_ids)
    assert len(client.score(arrays, model="cdat-small")) == 40
    graph = nx.MultiGraph()
    for node_id, row in zip(sample.node_ids, sample.x, strict=True):
        graph.add_node(node_id, x=row.tolist())
    assert sample.edge_type is not None
    for (a, b), edge_type in zip(sample.edge_index.T, sample.edge_type, strict=True):
        graph.add_edge(sample.node_ids[a], sample.node_ids[b], type=RELATIONS[edge_type])
    expected = client.score(arrays, model="cdat-small").score
    np.testing.assert_allclose(client.score(graph, model="cdat-small").score, expected, rtol=1e-4)


def test_smiles_and_rdkit_molecules(client: Client) -> None:
    result = client.classify([*MOLECULES, "no molecule"])
    assert [type(item) for item in result] == [Prediction] * 5 + [ItemError]
    assert result.results[5].code == "not_smiles"
    as_rdkit = client.classify([Chem.MolFromSmiles(text) for text in MOLECULES])
    for first, second in zip(result.results[:5], as_rdkit, strict=True):
        assert isinstance(first, Prediction)
        assert isinstance(second, Prediction)
        assert first.labels == second.labels
        expected = pytest.approx(second.probabilities["colour"], rel=1e-3)
        assert first.probabilities["colour"] == expected
    frame = result.to_pandas()
    assert frame["error"].tolist()[5] == "not_smiles"
    assert frame["mutagen.yes"].notna().sum() == 5
    assert len(client.classify("CCO")) == 1


def test_classify_graphs(client: Client) -> None:
    shapes = [Graph(shape.x, shape.edge_index) for shape in make_shapes(2, 4)]
    data = [Data(torch.from_numpy(shape.x), torch.from_numpy(shape.edge_index)) for shape in shapes]
    expected = client.classify(shapes, model="et-shape")
    for first, second in zip(expected, client.classify(data, model="et-shape"), strict=True):
        assert isinstance(first, Prediction)
        assert isinstance(second, Prediction)
        assert first.probabilities == second.probabilities


def test_image_types(client: Client, tmp_path: Any) -> None:
    array = smooth(20, 24)
    hole = np.zeros((20, 24), bool)
    hole[4:9, 6:12] = True
    (tmp_path / "a.png").write_bytes(saved(array))
    results = [
        client.complete(image, hole, model="et-tile", num_samples=2, dynamics={"noise": 0.1})
        for image in (array, Image.fromarray(array), tmp_path / "a.png", saved(array))
    ]
    first = np.array(results[0].images[0])
    np.testing.assert_array_equal(first[~hole], array[~hole])
    assert (np.array(results[0].images[1]) != first)[hole].any()
    for result in results[1:]:
        np.testing.assert_array_equal(np.array(result.images[0]), first)
    assert results[0].convergence[0]["windows"] > 0


def test_classify_and_answer_images(client: Client) -> None:
    first, second = client.classify_images([SEEN, Image.fromarray(OTHER)], model="ait-glyph")
    assert (first.index, second.index) == (0, 1)
    assert first.probabilities[first.label] == first.probability
    [answer] = client.answer_images(SEEN, SHAPE, model="ait-scene")
    several = client.answer_images(SEEN, [SHAPE, {"asked": "shape", "colour": "red"}])
    assert several[0].label == several[1].label == answer.label


def test_samples(client: Client) -> None:
    patterns = np.random.default_rng(0).standard_normal((6, 4)).astype(np.float32)
    samples = client.sample(patterns, **QUICK)
    assert samples.samples.shape[1:] == (4,)
    assert "r_hat" in samples.diagnostics
    spectrum = client.sample(patterns, **QUICK | {"beta": [1.0, 20.0]})
    assert len(spectrum.samples) == len(spectrum.diagnostics) == 2
    assert client.store_memory("client-memory", patterns, note="mine")["note"] == "mine"
    stored = client.sample("client-memory", **QUICK)
    np.testing.assert_array_equal(stored.samples, samples.samples)
    assert "client-memory" in {memory["id"] for memory in client.memories()}
    client.forget_memory("client-memory")
    images = np.stack([smooth(9, 7)[..., 0], smooth(9, 7)[::-1, :, 0]])
    client.store_memory("client-images", images, kind="images")
    hole = np.zeros((9, 7), bool)
    hole[:4] = True
    result = client.complete(
        np.where(hole, np.uint8(0), images[1]), hole, memory="client-images", include=["memories"]
    )
    np.testing.assert_array_equal(np.array(result.images[0]), images[1])
    [memories] = result.raw["images"][0]["reasons"]["memories"]
    assert memories["top"][0]["memory"] == 1
    client.forget_memory("client-images")
    proteins = client.sample(["ACDA", "ACDC", "ACCA"], **QUICK)
    assert all(set(text) <= set("ACD") for text in proteins.samples)


def test_models(client: Client) -> None:
    assert client.ready()
    assert "et-small" in {model["name"] for model in client.models()}
    assert client.model("et-small")["features"][0]["name"] == "age"


def test_job(client: Client) -> None:
    job = client.submit(operations.classify(list(MOLECULES), model="cdat-mol"))
    assert len(job.result(30)) == 5
    assert not job.running
    endless = client.submit(operations.sample(**ENDLESS))
    events = endless.events()
    name, data = next(events)
    assert name == "progress"
    assert "energy" in data
    with pytest.raises(TimeoutError):
        endless.wait(0.1)
    endless.cancel()
    with pytest.raises(ProblemError) as error:
        endless.refresh()
    assert (error.value.status, error.value.kind) == (404, "unknown-job")


def test_stream_of_a_completion(client: Client) -> None:
    request = operations.complete(smooth(20, 24), np.eye(20, 24, dtype=bool), model="et-tile")
    names = [name for name, _ in client.stream(request)]
    assert names[-1] == "done"
    assert set(names[:-1]) == {"progress"}
    with pytest.raises(ProblemError) as error:
        list(client.stream(operations.complete(b"no image", b"none")))
    assert error.value.status in (415, 422)


def test_refusals_name_the_field(client: Client) -> None:
    with pytest.raises(
        ProblemError, match=r"/x: Has 3 columns; this model reads 5 features"
    ) as error:
        client.score(Graph(SAMPLE.x[:, :3], SAMPLE.edge_index))
    assert error.value.kind == "invalid-graph"
    assert error.value.request_id
    with pytest.raises(ProblemError) as error:
        client.score(GRAPH, model="missing")
    assert error.value.status == 404
    with pytest.raises(InputError, match="no node 'missing'"):
        client.score(GRAPH, ["missing"])
    with pytest.raises(TypeError):
        client.score("no graph")
    with pytest.raises(InputError, match="no column 'height', which --features"):
        client.score(to_networkx(), features=["age", "height"])


def test_async_client(server: Server) -> None:
    async def main() -> None:
        async with AsyncClient(server.url) as client:
            scores, classes = await asyncio.gather(client.score(GRAPH), client.classify("CCO"))
            assert (len(scores), len(classes)) == (40, 1)
            job = await client.submit(operations.score(GRAPH))
            assert len(await job.result(30)) == 40
            endless = await client.submit(operations.sample(**ENDLESS))
            async for name, _ in endless.events():
                assert name == "progress"
                break
            with pytest.raises(TimeoutError):
                await endless.wait(0.1)
            await endless.cancel()
            request = operations.complete(
                smooth(20, 24), np.eye(20, 24, dtype=bool), model="et-tile"
            )
            names = [name async for name, _ in client.stream(request)]
            assert names[-1] == "done"
            with pytest.raises(ProblemError):
                await client.score(GRAPH, model="missing")

    asyncio.run(main())


def test_types_of_node_ids(client: Client) -> None:
    graph = nx.grid_2d_graph(3, 3)
    for node in graph.nodes:
        graph.nodes[node]["x"] = [float(node[0]), *[0.0] * 4]
    scores = client.score(graph, [(0, 1), (2, 2)])
    assert scores.node_ids == ["(0, 1)", "(2, 2)"]
    scores.onto(graph)
    assert "score" in graph.nodes[(2, 2)]
    nodes = pd.DataFrame(SAMPLE.x[:3], columns=list(FEATURES)).assign(id=[1, 2, 3])
    edges = pd.DataFrame({"source": [1.0, 2.0], "target": [2.0, 3.0]})  # as in a column with gaps
    assert client.score((nodes, edges), [3]).node_ids == [3]


@pytest.mark.parametrize("id", ["a?b", "a#b", "a/b", "A", "", "ä", "a b", "..", "a" * 65, "%61"])
def test_ids_that_no_server_takes_are_refused_before_anything_is_sent(id: str) -> None:
    """Another object is never touched."""
    for build in (
        lambda: operations.store_memory(id, np.eye(3)),
        lambda: operations.forget_memory(id),
        lambda: operations.model(id),
        lambda: graph_operations.graph(id),
        lambda: graph_operations.store_graph(id, GRAPH),
        lambda: graph_operations.change_graph(id, nodes=[{"id": 1}]),
        lambda: graph_operations.forget_graph(id),
    ):
        with pytest.raises(InputError, match="is not allowed"):
            build()


def test_labels_are_refused_where_nothing_reads_them() -> None:
    labelled = replace(GRAPH, labels=np.zeros(len(SAMPLE.x), int))
    with pytest.raises(InputError, match="label is a column of tables"):
        graph_operations.store_graph("labelled", labelled, label="is_fraud")
    with pytest.raises(InputError, match="Graphs to classify have no labels"):
        operations.classify([labelled])


def test_targets_that_are_no_rows(client: Client) -> None:
    graph = Graph(SAMPLE.x, SAMPLE.edge_index)
    for target in (1.7, True, "n3", -1, 40, None):
        with pytest.raises(InputError, match="is no row"):
            client.score(graph, [target])
    with pytest.raises(InputError, match="must hold integers"):
        client.score(Graph(SAMPLE.x, SAMPLE.edge_index.astype(float)))


def test_a_networkx_graph_with_some_edges_untyped(client: Client) -> None:
    graph = nx.DiGraph()
    for node in "abc":
        graph.add_node(node, **dict.fromkeys(FEATURES, 0.5))
    graph.add_edge("a", "b", type=RELATIONS[0])
    graph.add_edge("b", "c")
    with pytest.raises(InputError, match="row 2, column 'type': the value is blank"):
        client.score(graph, model="cdat-small")
    graph.edges["b", "c"]["type"] = RELATIONS[1]
    scores = client.score(graph, model="cdat-small")
    scores.onto(graph)
    again = client.score(graph, model="cdat-small")  # what `onto` wrote is no feature
    np.testing.assert_allclose(again.score, scores.score, atol=1e-5)


def test_tables_by_path(client: Client, tmp_path) -> None:
    paths = tmp_path / "nodes.csv", str(tmp_path / "edges.csv")
    for frame, path in zip(to_frames(), paths, strict=True):
        frame.to_csv(path, index=False)
    expected = client.score(GRAPH)
    scores = dict(zip(expected.node_ids, expected.score, strict=True))
    by_path = client.score(paths)
    in_order = [scores[node] for node in by_path.node_ids]
    np.testing.assert_allclose(by_path.score, in_order, atol=1e-4)
    with pytest.raises(InputError, match="no such file"):
        client.score((tmp_path / "none.csv", paths[1]))


def test_async_client_matches_names_too(server: Server) -> None:
    async def main() -> None:
        async with AsyncClient(server.url) as client:
            nodes, edges = to_frames()
            scores = await client.score((nodes[nodes.columns[::-1]], edges))
            assert len(scores) == 40
            assert (await client.graph_schema("et-small")).features == tuple(FEATURES)
            with pytest.raises(InputError, match="no column 'age'"):
                await client.score((nodes.drop(columns="age"), edges))
            job = await client.submit(operations.score((nodes, edges)))
            assert len(await job.result(30)) == 40

    asyncio.run(main())


def test_a_model_that_was_replaced_is_asked_about_again(client: Client) -> None:
    nodes, edges = to_frames()
    path = "/models/et-small"
    expected = client.score((nodes, edges), model="et-small").score
    right = client._schemas[path]
    for features in (("gone", *FEATURES), FEATURES[:3]):  # refused here, or by the server
        client._schemas[path] = replace(right, features=tuple(features))
        if len(features) < len(FEATURES):
            with pytest.raises(ProblemError, match="The model also reads"):
                client.score((nodes, edges), model="et-small", drop=FEATURES[3:])
        scores = client.score((nodes, edges), model="et-small").score
        np.testing.assert_allclose(scores, expected, atol=1e-5)
        assert client._schemas[path] == right
