"""A graph scored in parts: as whole, however it is cut and however often it is begun."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pandas as pd
import pytest

from basin.bulk import BulkError, score_tables
from basin.bulk.passes import passes
from basin.bulk.plan import Plan
from basin.bulk.run import here, score
from models import checkpoint
from models.architectures.cdat import CDAT
from models.architectures.et import ET
from models.checkpoint import EnergyReference, Feature, Manifest
from models.contract import Knobs
from models.graph import Graph
from models.node_scorer import NodeScorer
from models.resonance import Resonance
from service.engine.convergence import Courses

ENERGY = EnergyReference(levels=(0.0, 0.5, 1.0), values=(-50.0, -10.0, 10.0))


def saved(folder: Path, kind: type[NodeScorer], graph: Graph, **config: Any) -> Path:
    """A checkpoint of the kind's example with another configuration."""
    example, _ = kind.example(3)
    settings = kind.config_type.model_validate(example.config.model_dump() | config)
    network, _ = kind.fitted(cast(Any, settings), [graph], 1)
    manifest = Manifest(
        name="random",
        version="1",
        architecture=kind.name,
        task="anomaly",
        config=network.config.model_dump(mode="json"),
        knobs=checkpoint.trained_knobs(network),
        features=tuple(Feature(name=f, minimum=-4, maximum=4, mean=0) for f in "abcde"),
        energy=ENERGY,
        training={},
        metrics={},
    )
    checkpoint.save(folder / "random", network, manifest, "# Random\n")
    return folder / "random"


def market(nodes: int = 90, edges: int = 400, seed: int = 0) -> Graph:
    """Some of the nodes have no neighbour."""
    chance = np.random.default_rng(seed)
    ends = (nodes * 0.9 * chance.random((2, edges)) ** 2).astype(np.int64)
    x = chance.standard_normal((nodes, 5)).astype(np.float32)
    return Graph(x, ends, chance.integers(0, 2, edges))


def whole(model: Path, graph: Graph, knobs: Knobs) -> tuple[np.ndarray, dict[str, Any]]:
    network = cast(NodeScorer, checkpoint.load(model).network)
    output = network.infer(network.pack([graph]), [knobs])
    return output.logits.numpy(), Courses(output.solutions).row(0, graph.num_nodes, ENERGY, ())


def begun(folder: Path, model: Path, graph: Graph, knobs: Knobs, parts: int | None) -> Path:
    Plan.of(model, "a graph", knobs, parts).begin(folder, graph)
    return folder


CONFIGS = {
    "two relations, two blocks": {},
    "directed": {"undirected": False},
    "self-loops": {"self_loops": True, "combine": "max"},
    "no attention": {"attention": False},
    "no features of neighbours": {"hops": 0},
    "one relation": {"relations": ("r",), "combine": "max", "blocks": 1, "encoder": 0},
}


@pytest.mark.parametrize("kind", [ET, CDAT])
@pytest.mark.parametrize("name", CONFIGS)
def test_as_whole(tmp_path: Path, kind: type[NodeScorer], name: str) -> None:
    graph, knobs = market(), Knobs(steps=4, beta_scale=1.5, step_size=0.2)
    model = saved(tmp_path, kind, graph, **CONFIGS[name])
    expected, course = whole(model, graph, knobs)
    for parts in (1, 7):
        folder = begun(tmp_path / f"{parts}", model, graph, knobs, parts)
        logits, convergence = score(folder, here)
        np.testing.assert_allclose(logits, expected, atol=2e-5)
        assert convergence.keys() == course.keys()
        for what in ("energy_initial", "energy_final", "energy_drop", "residual"):
            assert convergence[what] == pytest.approx(course[what], rel=1e-4, abs=1e-4)
        assert convergence["steps"] == course["steps"]
        assert convergence["stop_reason"] == course["stop_reason"]


def test_more_parts_than_nodes_and_no_edge(tmp_path: Path) -> None:
    graph = replace(market(3, 0), edge_type=np.zeros(0, np.int64))
    model = saved(tmp_path, CDAT, market())
    expected, _ = whole(model, graph, Knobs())
    logits, _ = score(begun(tmp_path / "work", model, graph, Knobs(), 50), here)
    np.testing.assert_allclose(logits, expected, atol=2e-5)


class Killed(Exception):
    pass


def killed_after(count: int) -> Callable[[Callable[[int], None], Sequence[int]], None]:
    """Whoever does the parts dies once it has done so many."""
    left = count

    def over(do: Callable[[int], None], parts: Sequence[int]) -> None:
        nonlocal left
        for part in parts:
            if not left:
                raise Killed
            do(part)
            left -= 1

    return over


def test_killed_anywhere_it_goes_on_to_the_same_bits(tmp_path: Path) -> None:
    graph = market()
    model, knobs = saved(tmp_path, CDAT, graph), Knobs(steps=2)
    expected, course = score(begun(tmp_path / "once", model, graph, knobs, 3), here)
    folder, kills, done = begun(tmp_path / "often", model, graph, knobs, 3), 0, list[int]()
    while True:
        try:
            found = score(folder, killed_after(2))
            break
        except Killed:
            kills += 1
            assert kills < 100
            done.append(len(list((folder / "done").iterdir())))
    network = cast(NodeScorer, checkpoint.load(model).network)
    assert kills == -(-3 * len(list(passes(network, knobs))) // 2) - 1
    assert done == sorted(set(done))  # nothing is done twice
    assert found[0].tobytes() == expected.tobytes()
    assert found[1] == course


def test_parts_in_any_order_and_twice(tmp_path: Path) -> None:
    graph = market()
    model = saved(tmp_path, ET, graph)
    expected, _ = score(begun(tmp_path / "once", model, graph, Knobs(), 4), here)

    def over(do: Callable[[int], None], parts: Sequence[int]) -> None:
        for part in (*reversed(parts), *parts):
            do(part)

    found, _ = score(begun(tmp_path / "twice", model, graph, Knobs(), 4), over)
    assert found.tobytes() == expected.tobytes()


def test_what_is_no_longer_needed_is_gone(tmp_path: Path) -> None:
    graph = market()
    folder = begun(tmp_path / "work", saved(tmp_path, CDAT, graph), graph, Knobs(), 3)
    score(folder, here)
    left = {path.name for path in folder.iterdir()}
    assert left == {"plan.json", "cut", "done", "embedded", "course", "logits"}


@pytest.mark.parametrize(
    ("knobs", "told"),
    [
        (Knobs(tolerance=0.1), "all steps"),
        (Knobs(noise=0.1), "without noise"),
        (Knobs(resonance=Resonance.model_validate({})), "resonance"),
    ],
)
def test_knobs_that_need_the_whole(tmp_path: Path, knobs: Knobs, told: str) -> None:
    with pytest.raises(BulkError, match=told):
        Plan.of(saved(tmp_path, CDAT, market()), "", knobs, None)


def test_a_step_too_large_is_told(tmp_path: Path) -> None:
    graph = market()
    model = saved(tmp_path, CDAT, graph)
    folder = begun(tmp_path / "work", model, graph, Knobs(steps=60, step_size=1e6), 2)
    with pytest.raises(BulkError, match="diverged"):
        score(folder, here)


@pytest.fixture
def tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    graph = market()
    assert graph.edge_type is not None
    monkeypatch.setenv("BASIN_CHECKPOINTS", str(tmp_path / "models"))
    saved(tmp_path / "models", CDAT, graph)
    names = np.array([f"n{i}" for i in range(graph.num_nodes)])
    frame = pd.DataFrame(graph.x, columns=list("abcde")).assign(id=names)
    ends = dict(zip(("source", "target"), names[graph.edge_index], strict=True))
    nodes, edges = tmp_path / "nodes", tmp_path / "edges.csv"
    nodes.mkdir()
    frame[:50].to_parquet(nodes / "0.parquet")
    frame[50:].to_parquet(nodes / "1.parquet")
    pd.DataFrame(ends | {"type": graph.edge_type}).to_csv(edges, index=False)
    return nodes, edges


def test_tables(tables: tuple[Path, Path], tmp_path: Path) -> None:
    work = tmp_path / "work"
    told, convergence = score_tables(*tables, work, model="random", parts=3)
    expected, course = whole(tmp_path / "models/random", market(), Knobs())
    np.testing.assert_allclose(told["score"], expected, atol=2e-5)
    assert told["node_id"].tolist() == [f"n{i}" for i in range(90)]
    assert sorted(told["rank"]) == list(range(1, 91))
    assert convergence["energy_percentile"] == pytest.approx(course["energy_percentile"], abs=0.01)
    again, _ = score_tables(*tables, work, model="random", parts=3)
    pd.testing.assert_frame_equal(told, again)


def test_work_of_something_else(tables: tuple[Path, Path], tmp_path: Path) -> None:
    nodes, edges = tables
    score_tables(nodes, edges, tmp_path / "work", model="random")
    with pytest.raises(BulkError, match="another graph, model, dynamics"):
        score_tables(nodes, edges, tmp_path / "work", model="random", knobs=Knobs(steps=3))
    with edges.open("a") as file:
        file.write("n1,n2,0\n")
    with pytest.raises(BulkError, match="another graph, model, dynamics"):
        score_tables(nodes, edges, tmp_path / "work", model="random")
    with pytest.raises(BulkError, match="something else"):
        score_tables(nodes, edges, nodes, model="random")


@pytest.mark.parametrize(
    ("line", "told"),
    [("n1,n200,0", "no node 'n200'"), ("n1,n2,2", "from 0 to 1"), ("n1,n2,-1", "from 0 to 1")],
)
def test_edges_that_are_none(tables, tmp_path: Path, line: str, told: str) -> None:
    with tables[1].open("a") as file:
        file.write(line + "\n")
    with pytest.raises((BulkError, KeyError), match=told):
        score_tables(*tables, tmp_path / "work", model="random")


def test_nodes_that_are_none(tables, tmp_path: Path) -> None:
    nodes, edges = tables
    frame = pd.read_parquet(nodes)
    frame.loc[3, "b"] = np.inf
    frame.to_parquet(tmp_path / "a.parquet")
    with pytest.raises(BulkError, match="node 'n3' are not finite"):
        score_tables(tmp_path / "a.parquet", edges, tmp_path / "work", model="random")
    frame.drop(columns="c").to_parquet(tmp_path / "b.parquet")
    with pytest.raises(Exception, match="no column c"):
        score_tables(tmp_path / "b.parquet", edges, tmp_path / "work", model="random")
    pd.concat([frame, frame[:1]]).to_parquet(tmp_path / "c.parquet")
    with pytest.raises(KeyError, match="'n0' is there twice"):
        score_tables(tmp_path / "c.parquet", edges, tmp_path / "work", model="random")
