"""A table means the same by every way in: the same scores, or the same refusal.

Models are trained on tables by the command line; random tables are then scored by the command
line, in bulk, by the client from frames, files, NetworkX and PyTorch Geometric, as JSON in rows and
arrays, as safetensors, and from a stored graph.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import httpx
import networkx as nx
import numpy as np
import pandas as pd
import pytest
import torch
from basin_client import BasinError, Client, Graph
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch_geometric.data import Data
from typer.testing import CliRunner

from basin.bulk import score_tables
from basin.cli import app as basin
from tests.support.server import Server, Start, wait_until
from training.__main__ import app as training

FEATURES = ("amount", "x", "âge €")
RELATIONS = {
    "untyped": ("edge",),
    "one-named": ("card",),
    "numbered": ("1", "2", "10"),
    "named": ("card", "ip", "phone", "e-mail", "007"),
}
Scores = dict[str, float]


@dataclass(frozen=True)
class RandomTable:
    """A graph of N nodes: ids, features by name, ends of edges as places, and types by name."""

    ids: list[str]
    columns: dict[str, list[float | None]]
    edges: list[tuple[int, int]]
    types: list[str] | None
    order: tuple[str, ...]  # of the columns in the tables

    def frames(self) -> tuple[pd.DataFrame, pd.DataFrame]:
        values = {"id": self.ids, **self.columns}
        nodes = pd.DataFrame({name: values[name] for name in self.order})
        ends = {
            end: [self.ids[edge[i]] for edge in self.edges]
            for i, end in enumerate(("source", "target"))
        }
        edges = pd.DataFrame(ends if self.types is None else ends | {"type": self.types}, dtype=str)
        return nodes, edges

    def features(self) -> list[str]:
        return [name for name in self.order if name != "id"]

    def x(self) -> np.ndarray:
        columns = [self.columns[name] for name in self.features()]
        return np.array(columns, np.float64).T

    def edge_index(self) -> np.ndarray:
        return np.array(self.edges, np.int64).reshape(-1, 2).T

    def relations(self) -> list[str] | None:
        return None if self.types is None else sorted(set(self.types), reverse=True)

    def edge_type(self) -> np.ndarray | None:
        relations = self.relations()
        if self.types is None or relations is None:
            return None
        return np.array([relations.index(name) for name in self.types], np.int64)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train a model for each set of relations, from tables."""
    folder = tmp_path_factory.mktemp("models")
    rng = np.random.default_rng(0)
    for name, relations in RELATIONS.items():
        ids = [f"n{i}" for i in range(60)]
        nodes = pd.DataFrame({"id": ids} | {f: rng.normal(size=60) for f in FEATURES})
        nodes["is_fraud"] = rng.integers(0, 2, 60)
        edges = pd.DataFrame(rng.choice(ids, (200, 2)), columns=["source", "target"])
        if name != "untyped":
            edges["type"] = rng.choice(relations, 200)
        paths = [folder / f"{name}-{part}.csv" for part in ("nodes", "edges")]
        for frame, path in zip((nodes, edges), paths, strict=True):
            frame.to_csv(path, index=False)
        options = ["--nodes", str(paths[0]), "--edges", str(paths[1]), "--name", name, "--smoke"]
        places = ["--out", str(folder / name), "--run-folder", str(folder / "runs" / name)]
        result = CliRunner().invoke(training, ["anomaly", *options, *places])
        assert result.exit_code == 0, (result.output, result.exception)
    return folder


@pytest.fixture(scope="module")
def server(models: Path, start: Start) -> Iterator[Server]:
    server = start(checkpoints=models, default_anomaly_model="untyped")
    with server.client() as client:

        def is_ready() -> bool:
            try:
                return client.get("/health/ready").is_success
            except httpx.TransportError:
                return False

        wait_until(is_ready)
    yield server
    server.process.terminate()


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[Client]:
    with Client(server.url) as client:
        yield client


def by_command(table: RandomTable, model: str, client: Client, folder: Path) -> Scores:
    nodes, edges = _write(table, folder)
    url = str(client._http.base_url)
    arguments = [str(nodes), str(edges), "--model", model, "--server", url, "--json"]
    result = CliRunner().invoke(basin, ["score", *arguments])
    if result.exception is not None:
        raise result.exception
    return {row["node_id"]: row["score"] for row in json.loads(result.stdout)}


def in_bulk(table: RandomTable, model: str, client: Client, folder: Path) -> Scores:
    nodes, edges = _write(table, folder)
    run = folder / f"run-{len(list(folder.iterdir()))}"
    frame, _ = score_tables(nodes, edges, run, model=model, parts=2)
    return dict(zip(frame["node_id"], frame["score"], strict=True))


def from_frames(table: RandomTable, model: str, client: Client, folder: Path) -> Scores:
    return _scores(client.score(table.frames(), model=model))


def from_files(table: RandomTable, model: str, client: Client, folder: Path) -> Scores:
    return _scores(client.score(_write(table, folder), model=model))


def from_networkx(table: RandomTable, model: str, client: Client, folder: Path) -> Scores:
    graph = nx.MultiDiGraph()
    for i, node in enumerate(table.ids):
        graph.add_node(node, **{name: table.columns[name][i] for name in table.features()})
    for i, (a, b) in enumerate(table.edges):
        kind = {} if table.types is None else {"type": table.types[i]}
        graph.add_edge(table.ids[a], table.ids[b], **kind)
    return _scores(client.score(graph, model=model))


def from_geometric(table: RandomTable, model: str, client: Client, folder: Path) -> Scores:
    data = Data(
        x=torch.from_numpy(table.x()).float(),
        edge_index=torch.from_numpy(table.edge_index()),
        feature_names=table.features(),
    )
    if (edge_type := table.edge_type()) is not None:
        data.edge_type = torch.from_numpy(edge_type)
        data.relation_names = table.relations()
    scores = client.score(data, model=model)
    return dict(zip(table.ids, scores.score.tolist(), strict=True))


def from_arrays(table: RandomTable, model: str, client: Client, folder: Path) -> Scores:
    graph = Graph(
        table.x(),
        table.edge_index(),
        table.edge_type(),
        node_ids=table.ids,
        feature_names=table.features(),
        relation_names=table.relations(),
    )
    return _scores(client.score(graph, model=model))


def as_rows(table: RandomTable, model: str, client: Client, folder: Path) -> Scores:
    nodes = [
        {"id": node} | {name: table.columns[name][i] for name in table.features()}
        for i, node in enumerate(table.ids)
    ]
    edges = [
        {"source": table.ids[a], "target": table.ids[b]}
        | ({} if table.types is None else {"type": table.types[i]})
        for i, (a, b) in enumerate(table.edges)
    ]
    return _post(client, {"nodes": nodes, "edges": edges, "model": model})


def as_arrays(table: RandomTable, model: str, client: Client, folder: Path) -> Scores:
    x = [[None if np.isnan(v) else v for v in row] for row in table.x().tolist()]
    graph = {
        "x": x,
        "edge_index": table.edge_index().tolist(),
        "edge_type": table.types,
        "node_ids": table.ids,
        "feature_names": table.features(),
    }
    return _post(client, {"graph": graph, "model": model})


def stored(table: RandomTable, model: str, client: Client, folder: Path) -> Scores:
    client.store_graph("every-way", table.frames(), model=model)
    try:
        scores = client.score_nodes("every-way", table.ids, hops=8, max_neighbors=1000, model=model)
        return _scores(scores)
    finally:
        client.forget_graph("every-way")


WAYS: list[Callable[[RandomTable, str, Client, Path], Scores]] = [
    *(by_command, in_bulk, from_frames, from_files, from_networkx, from_geometric, from_arrays),
    *(as_rows, as_arrays, stored),
]


def _write(table: RandomTable, folder: Path) -> tuple[Path, Path]:
    nodes, edges = folder / "nodes.csv", folder / "edges.csv"
    for frame, path in zip(table.frames(), (nodes, edges), strict=True):
        frame.to_csv(path, index=False)
    return nodes, edges


def _scores(scores) -> Scores:
    return dict(zip(scores.node_ids, scores.score.tolist(), strict=True))


def _post(client: Client, body: dict) -> Scores:
    response = client._http.post("/anomaly/score", json=body)
    if not response.is_success:
        raise BasinError(response.text)
    return {row["node_id"]: row["score"] for row in response.json()["results"]}


_IDS = st.one_of(
    st.from_regex(r"[0-9]{1,20}", fullmatch=True),
    st.sampled_from(["NA", "null", "nan", "None", "1e5", "0x10", "-1", "True", "a b", "a,b", "ä€"]),
    st.integers(2**53, 2**70).map(str),
    st.text("abcé漢0", min_size=1, max_size=5),
)


@st.composite
def tables(draw: st.DrawFn, relations: tuple[str, ...]) -> RandomTable:
    count = draw(st.integers(1, 8))
    ids = draw(st.lists(_IDS, min_size=count, max_size=count, unique=True))
    value = st.floats(-100, 100, width=32).filter(lambda v: v == 0 or abs(v) > 1e-3)
    columns = {f: draw(st.lists(value, min_size=count, max_size=count)) for f in FEATURES}
    pair = st.tuples(st.integers(0, count - 1), st.integers(0, count - 1))
    # Each pair once: a stored graph has an edge once.
    edges = draw(st.lists(pair.filter(lambda p: p[0] < p[1]), max_size=10, unique=True))
    types = None
    if relations != ("edge",):
        types = [draw(st.sampled_from(relations)) for _ in edges]
    order = tuple(draw(st.permutations(["id", *FEATURES])))
    return RandomTable(ids, columns, edges, types, order)


few = settings(
    max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def _outcome(way: Callable, *arguments) -> Scores | None:
    try:
        return way(*arguments)
    except BasinError:
        return None


def _new_folder(tmp_path: Path) -> Path:
    folder = tmp_path / str(len(list(tmp_path.iterdir())))
    folder.mkdir()
    return folder


@pytest.mark.parametrize("model", RELATIONS)
def test_the_same_scores(model: str, client: Client, models: Path, tmp_path: Path, monkeypatch):
    monkeypatch.setenv("BASIN_CHECKPOINTS", str(models))

    @few
    @given(tables(RELATIONS[model]))
    def check(table: RandomTable) -> None:
        folder = _new_folder(tmp_path)
        expected = as_rows(table, model, client, folder)
        for way in WAYS:
            scores = way(table, model, client, folder)
            assert list(scores) == table.ids, way.__name__
            np.testing.assert_allclose(
                list(scores.values()), list(expected.values()), atol=2e-4, err_msg=way.__name__
            )

    check()


MUTATIONS = {
    "a feature renamed": lambda t: replace(
        t,
        columns={("amount2" if f == "amount" else f): v for f, v in t.columns.items()},
        order=tuple("amount2" if name == "amount" else name for name in t.order),
    ),
    "a feature dropped": lambda t: replace(
        t,
        columns={f: v for f, v in t.columns.items() if f != "x"},
        order=tuple(name for name in t.order if name != "x"),
    ),
    "a column more": lambda t: replace(
        t, columns=t.columns | {"note": [1.0] * len(t.ids)}, order=(*t.order, "note")
    ),
    "a value missing": lambda t: replace(t, columns=t.columns | {"x": [None, *t.columns["x"][1:]]}),
    "a relation renumbered": lambda t: replace(
        t, types=["3", *["1"] * (len(t.edges) - 1)], edges=t.edges
    ),
    "a relation in other letters": lambda t: replace(
        t, types=["CARD", *["card"] * (len(t.edges) - 1)]
    ),
}


@pytest.mark.parametrize("what", MUTATIONS)
@pytest.mark.parametrize("model", RELATIONS)
def test_never_a_score_without_an_error(
    what: str, model: str, client: Client, models: Path, tmp_path: Path, monkeypatch
) -> None:
    """What is not what the model was trained on is refused, whichever way it comes in."""
    monkeypatch.setenv("BASIN_CHECKPOINTS", str(models))
    first = RELATIONS[model][0]
    rng = np.random.default_rng(0)
    table = RandomTable(
        ["a", "007", "7"],
        {f: rng.normal(size=3).tolist() for f in FEATURES},
        [(0, 1), (1, 2)],
        None if model == "untyped" else [first, first],
        ("id", *FEATURES),
    )
    assert as_rows(table, model, client, tmp_path)
    for way in WAYS:
        outcome = _outcome(way, MUTATIONS[what](table), model, client, _new_folder(tmp_path))
        assert outcome is None, way.__name__


def test_swapped_columns_keep_their_names(
    client: Client, models: Path, tmp_path: Path, monkeypatch
) -> None:
    """Columns in another order are the same table; so the scores are the same, by every way."""
    monkeypatch.setenv("BASIN_CHECKPOINTS", str(models))
    columns = {"amount": [1.0, 2.0], "x": [0.5, -3.0], "âge €": [-1.0, 0.0]}
    table = RandomTable(["a", "b"], columns, [(0, 1)], None, ("id", "amount", "x", "âge €"))
    swapped = replace(table, order=("x", "amount", "id", "âge €"))
    expected = as_rows(table, "untyped", client, tmp_path)
    for way in WAYS:
        scores = way(swapped, "untyped", client, _new_folder(tmp_path))
        assert scores == pytest.approx(expected, abs=2e-4), way.__name__
