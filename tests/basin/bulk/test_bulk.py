"""A graph scored in parts: as whole, however it is cut and however often it is begun."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partialmethod
from pathlib import Path
from typing import Any, cast

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from basin.bulk import BulkError, score_tables
from basin.bulk.part_store import PartStore
from basin.bulk.plan import Plan, held
from basin.bulk.run import here, score
from basin.cli import app
from models import checkpoint
from models.architectures.cdat import CDAT
from models.architectures.et import ET
from models.base import DynamicsParams
from models.checkpoint import EnergyReference, Feature, Manifest
from models.inputs.graph import Graph
from models.resonance import Resonance
from models.tasks.node_scorer import NodeScorer
from service.endpoints.common.convergence import ConvergenceReports
from service.endpoints.common.dynamics import as_trained

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


def whole(model: Path, graph: Graph, knobs: DynamicsParams) -> tuple[np.ndarray, dict[str, Any]]:
    network = cast(NodeScorer, checkpoint.load(model).network)
    output = network.infer(network.pack([graph]), [knobs])
    courses = ConvergenceReports(output.solutions, as_trained=as_trained(network, knobs))
    return output.logits.numpy(), courses.row(0, graph.num_nodes, ENERGY, ())


def begun(
    folder: Path, model: Path, graph: Graph, knobs: DynamicsParams, parts: int | None
) -> tuple[Path, Plan]:
    return folder, Plan.of(model, "a graph", knobs, parts).begin(folder, graph)


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
    graph, model = market(), saved(tmp_path, kind, market(), **CONFIGS[name])
    for parts, knobs in (
        (1, DynamicsParams()),
        (7, DynamicsParams(steps=4, beta_scale=1.5, step_size=0.2)),
    ):
        expected, course = whole(model, graph, knobs)
        logits, convergence = score(*begun(tmp_path / f"{parts}", model, graph, knobs, parts), here)
        np.testing.assert_allclose(logits, expected, atol=2e-5)
        assert convergence.keys() == course.keys()
        for what, value in course.items():
            found = convergence[what]
            assert found == (
                pytest.approx(value, rel=1e-4, abs=1e-4) if value.__class__ is float else value
            )


def test_a_resonance_that_is_silenced(tmp_path: Path) -> None:
    """It moves as nothing that was trained did, so nothing is told of what that would mean."""
    loud = {"strength": 0.7, "vigilance": 0.1}
    graph, model = market(), saved(tmp_path, CDAT, market(), resonance=loud)
    with pytest.raises(BulkError, match="strength 0"):
        Plan.of(model, "a graph", DynamicsParams(), 2)
    silent = DynamicsParams(resonance=Resonance.model_validate({"strength": 0.0}))
    expected, course = whole(model, graph, silent)
    logits, convergence = score(*begun(tmp_path / "work", model, graph, silent, 2), here)
    np.testing.assert_allclose(logits, expected, atol=2e-5)
    assert convergence["out_of_distribution"] is course["out_of_distribution"] is None


def test_more_parts_than_nodes_and_no_edge(tmp_path: Path) -> None:
    graph = replace(market(3, 0), edge_type=np.zeros(0, np.int64))
    model = saved(tmp_path, CDAT, market())
    expected, _ = whole(model, graph, DynamicsParams())
    logits, _ = score(*begun(tmp_path / "work", model, graph, DynamicsParams(), 50), here)
    np.testing.assert_allclose(logits, expected, atol=2e-5)


class Killed(Exception):  # noqa: N818
    pass


@pytest.fixture
def dying(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Whoever works dies before it has written, marked or dropped so many things more."""
    left = 0

    def dies(self: PartStore, *given: Any, does: Callable[..., None]) -> None:
        nonlocal left
        if not left:
            raise Killed
        left -= 1
        does(self, *given)

    for name in ("put", "mark", "drop"):
        monkeypatch.setattr(PartStore, name, partialmethod(dies, does=getattr(PartStore, name)))

    def after(count: int) -> None:
        nonlocal left
        left = count

    return after


@pytest.mark.parametrize("apart", [1, 2, 7])
def test_killed_anywhere_it_goes_on_to_the_same_bits(
    tmp_path: Path, dying: Callable[[int], None], apart: int
) -> None:
    graph, knobs = market(40, 150), DynamicsParams(steps=2)
    model = saved(tmp_path, CDAT, market())
    plan = Plan.of(model, "a graph", knobs, 2)
    dying(10**9)
    expected, course = score(tmp_path / "once", plan.begin(tmp_path / "once", graph), here)
    folder, kills, after = tmp_path / "often", 0, apart
    folder.mkdir()
    while True:
        dying(after)
        try:
            cut = plan.begun(folder) or plan.begin(folder, graph)
            found = score(folder, cut, here)
            break
        except Killed:
            kills += 1
            after += apart  # else it would never come past what one go has to write
            assert kills < 1000
    assert kills > 4
    assert found[0].tobytes() == expected.tobytes()
    assert found[1] == course


def test_parts_in_any_order_and_twice(tmp_path: Path) -> None:
    graph = market()
    model = saved(tmp_path, ET, graph)
    expected, _ = score(*begun(tmp_path / "once", model, graph, DynamicsParams(), 4), here)

    def over(do: Callable[[int], None], parts: Sequence[int]) -> None:
        for part in (*reversed(parts), *parts):
            do(part)

    found, _ = score(*begun(tmp_path / "twice", model, graph, DynamicsParams(), 4), over)
    assert found.tobytes() == expected.tobytes()


def test_what_is_no_longer_needed_is_gone(tmp_path: Path) -> None:
    graph = market()
    folder, plan = begun(
        tmp_path / "work", saved(tmp_path, CDAT, graph), graph, DynamicsParams(), 3
    )
    score(folder, plan, here)
    left = {path.name for path in folder.iterdir()}
    assert left == {"plan.json", "cut", "done", "embedded", "course", "logits"}


@pytest.mark.parametrize(
    ("knobs", "told"),
    [
        (DynamicsParams(tolerance=0.1), "all steps"),
        (DynamicsParams(noise=0.1), "without noise"),
        (DynamicsParams(solver="nesterov"), "as in training"),
        (DynamicsParams(resonance=Resonance.model_validate({})), "resonance"),
    ],
)
def test_knobs_that_need_the_whole(tmp_path: Path, knobs: DynamicsParams, told: str) -> None:
    with pytest.raises(BulkError, match=told):
        Plan.of(saved(tmp_path, CDAT, market()), "", knobs, None)


@pytest.mark.parametrize("steps", [4, 60])
def test_a_step_too_large_is_told(tmp_path: Path, steps: int) -> None:
    """Also where a norm of what is far too large makes it finite again."""
    graph = market()
    model, knobs = saved(tmp_path, CDAT, graph), DynamicsParams(steps=steps, step_size=1e6)
    with pytest.raises(BulkError, match="diverged"):
        score(*begun(tmp_path / "work", model, graph, knobs, 2), here)


def test_one_at_a_time(tmp_path: Path) -> None:
    with held(tmp_path), pytest.raises(BulkError, match="another command"), held(tmp_path):
        pass
    with held(tmp_path):
        pass


def test_a_checkpoint_that_changes(tmp_path: Path) -> None:
    graph = market()
    model = saved(tmp_path, CDAT, graph)
    work = begun(tmp_path / "work", model, graph, DynamicsParams(), 2)
    saved(tmp_path, CDAT, market(seed=5))
    with pytest.raises(BulkError, match="has changed"):
        score(*work, here)


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
    expected, course = whole(tmp_path / "models/random", market(), DynamicsParams())
    np.testing.assert_allclose(told["score"], expected, atol=2e-5)
    assert told["node_id"].tolist() == [f"n{i}" for i in range(90)]
    assert sorted(told["rank"]) == list(range(1, 91))
    assert convergence["energy_percentile"] == pytest.approx(course["energy_percentile"], abs=0.01)
    again, _ = score_tables(*tables, work, model="random", parts=3)
    pd.testing.assert_frame_equal(told, again)
    some, _ = score_tables(*tables, work, targets=["n7", "n2"], model="random", parts=3)
    assert some["node_id"].tolist() == ["n7", "n2"]
    assert some["score"].tolist() == [told["score"][7], told["score"][2]]
    assert sorted(some["rank"]) == [1, 2]
    with pytest.raises(KeyError, match="no node n200"):
        score_tables(*tables, work, targets=["n7", "n200"], model="random", parts=3)


def test_work_of_something_else(tables: tuple[Path, Path], tmp_path: Path) -> None:
    nodes, edges = tables
    score_tables(nodes, edges, tmp_path / "work", model="random")
    with pytest.raises(BulkError, match="another graph, model, dynamics"):
        score_tables(nodes, edges, tmp_path / "work", model="random", knobs=DynamicsParams(steps=3))
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
    with pytest.raises(BulkError, match="node n3 are not finite"):
        score_tables(tmp_path / "a.parquet", edges, tmp_path / "work", model="random")
    frame.drop(columns="c").to_parquet(tmp_path / "b.parquet")
    with pytest.raises(Exception, match="no column c"):
        score_tables(tmp_path / "b.parquet", edges, tmp_path / "work", model="random")
    pd.concat([frame, frame[:1]]).to_parquet(tmp_path / "c.parquet")
    with pytest.raises(KeyError, match="'n0' is there twice"):
        score_tables(tmp_path / "c.parquet", edges, tmp_path / "work", model="random")


def test_the_command(tables, tmp_path: Path) -> None:
    def run(*arguments: object) -> Any:
        asked = ["score", *map(str, tables), "--model", "random", *map(str, arguments)]
        return CliRunner().invoke(app, asked)

    pd.DataFrame({"id": ["n7", "n2"]}).to_csv(tmp_path / "targets.csv", index=False)
    work, out = tmp_path / "work", tmp_path / "scores.parquet"
    done = run("--bulk", work, "--parts", 3, "--set", "steps=2", "--out", out)
    assert done.exit_code == 0, done.stderr
    assert "steps 8" in done.stderr  # two relations, two blocks
    told = pd.read_parquet(out)
    expected, _ = whole(tmp_path / "models/random", market(), DynamicsParams(steps=2))
    np.testing.assert_allclose(told["score"], expected, atol=2e-5)
    some = run(
        "--bulk", work, "--parts", 3, "--set", "steps=2", "--targets", tmp_path / "targets.csv"
    )
    assert [line.split(",")[0] for line in some.stdout.split()] == ["node_id", "n7", "n2"]
    for wrong, why in (
        (["--bulk", work, "--server", "http://127.0.0.1:1"], "without a server"),
        (["--parts", 3], "go with --bulk"),
        (["--bulk", work, "--set", "noise=1"], "without noise"),
        (["--bulk", work, "--set", "steps=3"], "another graph, model, dynamics"),
        (["--bulk", tmp_path / "other", "--model", "none"], "no model none"),
    ):
        assert why in str(run(*wrong).exception)
