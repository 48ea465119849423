"""The Python client, on a real server: every kind of input, and what is refused."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import networkx as nx
import numpy as np
import pandas as pd
import pytest
import torch
from basin_client import AsyncClient, Client, Graph, ItemError, Prediction, ProblemError, operations
from PIL import Image
from rdkit import Chem
from torch_geometric.data import Data

from tests.service.endpoints.sample.test_api import ENDLESS, QUICK
from tests.support.image_files import saved, smooth
from tests.support.image_models import OTHER, SEEN, SHAPE
from tests.support.server import FEATURES, MOLECULES, Server, make_sample, make_shapes


@pytest.fixture
def asked(server: Server) -> Iterator[Client]:
    with Client(server.url) as client:
        yield client


SAMPLE = make_sample(5)
GRAPH = Graph(SAMPLE.x, SAMPLE.edge_index, node_ids=SAMPLE.node_ids)


def network() -> nx.Graph:
    graph = nx.Graph()
    for name, row in zip(SAMPLE.node_ids, SAMPLE.x, strict=True):
        graph.add_node(name, **dict(zip(FEATURES, map(float, row), strict=True)))
    for a, b in SAMPLE.edge_index.T:
        graph.add_edge(SAMPLE.node_ids[a], SAMPLE.node_ids[b])
    return graph


def frames() -> tuple[pd.DataFrame, pd.DataFrame]:
    nodes = pd.DataFrame(SAMPLE.x, columns=list(FEATURES))[::-1]  # columns have names
    nodes.insert(2, "id", SAMPLE.node_ids[::-1])
    ends = [[SAMPLE.node_ids[i] for i in row] for row in SAMPLE.edge_index]
    return nodes, pd.DataFrame({"source": ends[0], "target": ends[1]})


def test_a_graph_however_it_is_held(asked: Client) -> None:
    targets = ["n3", "n0"]
    expected = asked.score(GRAPH, targets, model="et-small")
    assert expected.node_ids == targets
    geometric = Data(torch.from_numpy(SAMPLE.x), torch.from_numpy(SAMPLE.edge_index))
    rows = [SAMPLE.node_ids.index(name) for name in targets]
    for found in (
        asked.score(network(), targets, features=FEATURES, model="et-small"),
        asked.score(frames(), targets, features=FEATURES, model="et-small"),
        asked.score(frames(), targets),
        asked.score(geometric, rows),
        asked.score(geometric, np.array(rows)),
    ):
        np.testing.assert_allclose(found.score, expected.score, rtol=1e-4)
        assert found.rank.tolist() == expected.rank.tolist()
        assert found.threshold == 0.5
    frame = expected.to_pandas()
    assert list(frame.columns) == ["node_id", "score", "probability", "label", "rank"]
    assert frame["node_id"].tolist() == targets
    graph = network()
    whole = asked.score(graph, features=FEATURES)
    whole.onto(graph)
    assert graph.nodes["n3"]["score"] == pytest.approx(float(expected.score[0]), rel=1e-4)
    assert len(whole) == len(SAMPLE.node_ids)


def test_what_is_told_of_the_energy(asked: Client) -> None:
    dynamics = {"steps": 3, "resonance": {"strength": 0.2}}
    told = asked.score(GRAPH, dynamics=dynamics, include=["trace", "attention"], timeout_s=20)
    assert told.convergence.steps == 3
    assert told.convergence.trace is not None
    assert len(told.convergence.trace) == 4
    assert told.convergence.energy_final == told.convergence.trace[-1]["energy"]
    assert told.raw["dynamics"]["resonance"]["strength"] == 0.2
    assert "attention_0.weight" in told.tensors


@pytest.mark.parametrize("held", ["frames", "rows", "tuples"])
def test_a_graph_that_is_kept(asked: Client, held: str) -> None:
    nodes, edges = frames()
    first, second = nodes[:30], nodes[30:]
    there = edges["source"].isin(first["id"]) & edges["target"].isin(first["id"])
    told = asked.store_graph("kept", (first, edges[there]), features=FEATURES, model="et-small")
    assert told["num_nodes"] == 30
    rest: Any = edges[~there]
    more: Any = second
    if held == "rows":
        more, rest = second.to_dict("records"), rest.to_dict("records")
    elif held == "tuples":
        more, rest = second.to_dict("records"), list(rest.itertuples(index=False))
    asked.change_graph("kept", nodes=more, edges=rest)
    near = asked.score_nodes("kept", ["n3", "n8"], hops=8, max_neighbors=99, model="et-small")
    assert near.node_ids == ["n3", "n8"]
    assert near.raw["graph"]["num_nodes"] == asked.graph("kept")["num_nodes"] == 40
    expected = asked.score(GRAPH, ["n3", "n8"], model="et-small")
    np.testing.assert_allclose(near.score, expected.score, rtol=1e-4)
    asked.change_graph("kept", delete_nodes=["n8"], delete_edges=edges[:3])
    assert asked.graphs()[0]["num_nodes"] == 39
    asked.forget_graph("kept")
    assert asked.graphs() == []


def test_a_kept_graph_that_is_not_one(asked: Client) -> None:
    with pytest.raises(ProblemError) as refused:
        asked.change_graph("nobody", delete_nodes=[1])
    assert refused.value.kind == "unknown-graph"


def test_several_relations(asked: Client) -> None:
    sample = make_sample(2, 2)
    one = Graph(sample.x, sample.edge_index, sample.edge_type, node_ids=sample.node_ids)
    assert len(asked.score(one, model="cdat-small")) == 40
    graph = nx.MultiGraph()
    for name, row in zip(sample.node_ids, sample.x, strict=True):
        graph.add_node(name, x=row.tolist())
    assert sample.edge_type is not None
    for (a, b), kind in zip(sample.edge_index.T, sample.edge_type, strict=True):
        graph.add_edge(sample.node_ids[a], sample.node_ids[b], type=int(kind))
    expected = asked.score(one, model="cdat-small").score
    np.testing.assert_allclose(asked.score(graph, model="cdat-small").score, expected, rtol=1e-4)


def test_molecules_as_text_and_as_rdkit_has_them(asked: Client) -> None:
    found = asked.classify([*MOLECULES, "no molecule"])
    assert [type(one) for one in found] == [Prediction] * 5 + [ItemError]
    assert found.results[5].code == "not_smiles"
    as_rdkit = asked.classify([Chem.MolFromSmiles(text) for text in MOLECULES])
    for one, other in zip(found.results[:5], as_rdkit, strict=True):
        assert isinstance(one, Prediction)
        assert isinstance(other, Prediction)
        assert one.labels == other.labels
        p, q = one.probabilities["colour"], other.probabilities["colour"]
        assert p == pytest.approx(q, rel=1e-3)
    frame = found.to_pandas()
    assert frame["error"].tolist()[5] == "not_smiles"
    assert frame["mutagen.yes"].notna().sum() == 5
    assert len(asked.classify("CCO")) == 1


def test_graphs_in_one_request(asked: Client) -> None:
    shapes = [Graph(one.x, one.edge_index) for one in make_shapes(2, 4)]
    data = [Data(torch.from_numpy(one.x), torch.from_numpy(one.edge_index)) for one in shapes]
    expected = asked.classify(shapes, model="et-shape")
    for one, other in zip(expected, asked.classify(data, model="et-shape"), strict=True):
        assert isinstance(one, Prediction)
        assert isinstance(other, Prediction)
        assert one.probabilities == other.probabilities


def test_pictures_however_they_are_held(asked: Client, tmp_path: Any) -> None:
    array = smooth(20, 24)
    hole = np.zeros((20, 24), bool)
    hole[4:9, 6:12] = True
    (tmp_path / "a.png").write_bytes(saved(array))
    done = [
        asked.complete(picture, hole, model="et-tile", num_samples=2, dynamics={"noise": 0.1})
        for picture in (array, Image.fromarray(array), tmp_path / "a.png", saved(array))
    ]
    first = np.array(done[0].images[0])
    np.testing.assert_array_equal(first[~hole], array[~hole])
    assert (np.array(done[0].images[1]) != first)[hole].any()
    for other in done[1:]:
        np.testing.assert_array_equal(np.array(other.images[0]), first)
    assert done[0].convergence[0]["windows"] > 0


def test_pictures_are_looked_at(asked: Client) -> None:
    one, other = asked.classify_images([SEEN, Image.fromarray(OTHER)], model="ait-glyph")
    assert (one.index, other.index) == (0, 1)
    assert one.probabilities[one.label] == one.probability
    [answer] = asked.answer_images(SEEN, SHAPE, model="ait-scene")
    several = asked.answer_images(SEEN, [SHAPE, {"asked": "shape", "colour": "red"}])
    assert several[0].label == several[1].label == answer.label


def test_samples(asked: Client) -> None:
    patterns = np.random.default_rng(0).standard_normal((6, 4)).astype(np.float32)
    drawn = asked.sample(patterns, **QUICK)
    assert drawn.samples.shape[1:] == (4,)
    assert "r_hat" in drawn.diagnostics
    spectrum = asked.sample(patterns, **QUICK | {"beta": [1.0, 20.0]})
    assert len(spectrum.samples) == len(spectrum.diagnostics) == 2
    assert asked.store_memory("of-the-client", patterns, note="mine")["note"] == "mine"
    kept = asked.sample("of-the-client", **QUICK)
    np.testing.assert_array_equal(kept.samples, drawn.samples)
    assert "of-the-client" in {memory["id"] for memory in asked.memories()}
    asked.forget_memory("of-the-client")
    proteins = asked.sample(["ACDA", "ACDC", "ACCA"], **QUICK)
    assert all(set(text) <= set("ACD") for text in proteins.samples)


def test_what_is_served(asked: Client) -> None:
    assert asked.ready()
    assert "et-small" in {model["name"] for model in asked.models()}
    assert asked.model("et-small")["features"][0]["name"] == "age"


def test_a_job(asked: Client) -> None:
    job = asked.submit(operations.classify(list(MOLECULES), model="cdat-mol"))
    assert len(job.result(30)) == 5
    assert not job.running
    endless = asked.submit(operations.sample(**ENDLESS))
    events = endless.events()
    name, told = next(events)
    assert name == "progress"
    assert "energy" in told
    with pytest.raises(TimeoutError):
        endless.wait(0.1)
    endless.cancel()
    with pytest.raises(ProblemError) as error:
        endless.refresh()
    assert (error.value.status, error.value.kind) == (404, "unknown-job")


def test_a_picture_while_it_relaxes(asked: Client) -> None:
    call = operations.complete(smooth(20, 24), np.eye(20, 24, dtype=bool), model="et-tile")
    names = [name for name, _ in asked.stream(call)]
    assert names[-1] == "done"
    assert set(names[:-1]) == {"progress"}
    with pytest.raises(ProblemError) as error:
        list(asked.stream(operations.complete(b"no picture", b"none")))
    assert error.value.status in (415, 422)


def test_what_is_refused_says_where(asked: Client) -> None:
    with pytest.raises(ProblemError, match=r"/x: must have 5 columns") as error:
        asked.score(Graph(SAMPLE.x[:, :3], SAMPLE.edge_index))
    assert error.value.kind == "invalid-graph"
    assert error.value.request_id
    with pytest.raises(ProblemError) as error:
        asked.score(GRAPH, model="nobody")
    assert error.value.status == 404
    with pytest.raises(KeyError):
        asked.score(GRAPH, ["nobody"])
    with pytest.raises(TypeError):
        asked.score("no graph")
    with pytest.raises(KeyError):
        asked.score(network(), features=["age", "height"])


def test_on_an_event_loop(server: Server) -> None:
    async def play() -> None:
        async with AsyncClient(server.url) as client:
            one, other = await asyncio.gather(client.score(GRAPH), client.classify("CCO"))
            assert (len(one), len(other)) == (40, 1)
            job = await client.submit(operations.score(GRAPH))
            assert len(await job.result(30)) == 40
            endless = await client.submit(operations.sample(**ENDLESS))
            async for name, _ in endless.events():
                assert name == "progress"
                break
            with pytest.raises(TimeoutError):
                await endless.wait(0.1)
            await endless.cancel()
            call = operations.complete(smooth(20, 24), np.eye(20, 24, dtype=bool), model="et-tile")
            names = [name async for name, _ in client.stream(call)]
            assert names[-1] == "done"
            with pytest.raises(ProblemError):
                await client.score(GRAPH, model="nobody")

    asyncio.run(play())


def test_names_however_they_come(asked: Client) -> None:
    graph = nx.grid_2d_graph(3, 3)
    for node in graph.nodes:
        graph.nodes[node]["x"] = [float(node[0]), *[0.0] * 4]
    found = asked.score(graph, [(0, 1), (2, 2)])
    assert found.node_ids == ["(0, 1)", "(2, 2)"]
    found.onto(graph)
    assert "score" in graph.nodes[(2, 2)]
    nodes = pd.DataFrame(SAMPLE.x[:3], columns=list(FEATURES)).assign(id=[1, 2, 3])
    edges = pd.DataFrame({"source": [1.0, 2.0], "target": [2.0, 3.0]})  # of a column with gaps
    assert asked.score((nodes, edges), [3]).node_ids == [3]
