"""A graph scored in parts gets the scores of the whole, also after the run was killed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partialmethod
from pathlib import Path
from typing import Any, cast

import numpy as np
import pandas as pd
import pytest
import torch
from basin_client import InputError
from typer.testing import CliRunner

from basin.bulk import BulkError, score_tables
from basin.bulk.part_store import PartStore
from basin.bulk.plan import Plan, lock_folder
from basin.bulk.run import run_in_process, score
from basin.cli import app
from models import checkpoint
from models.architectures.cdat import CDAT
from models.architectures.et import ET
from models.base import DynamicsParams
from models.inputs.graph import UNKNOWN, Graph
from models.inputs.tree_ensemble import RowKeys, TreeEnsemble, make_stump
from models.manifest import EnergyReference, Feature, Manifest
from models.resonance import Resonance
from models.tasks.node_scorer import FitTrees, NodeScorer
from service.endpoints.common.convergence import ConvergenceReports
from service.endpoints.common.dynamics import as_trained

ENERGY = EnergyReference(levels=(0.0, 0.5, 1.0), values=(-50.0, -10.0, 10.0))

RELATIONS = ("r", "s")


def make_trees(table_NC: np.ndarray, is_exact_C: np.ndarray) -> TreeEnsemble:
    """Two folds, of which some nodes were trained on."""
    folds = [
        (0.1, [make_stump(0, 0.0, -1.0, 1.0), make_stump(9, 0.5, -0.5, 1.5)]),
        (0.2, [make_stump(7, 0.3, 1.0, -2.0)]),
    ]
    keys = RowKeys.of_rows(table_NC[::2], is_exact_C)
    return TreeEnsemble.from_folds(folds, keys, np.arange(len(keys.key_r)) % 2)


def save_model(
    folder: Path,
    architecture: type[NodeScorer],
    graph: Graph,
    fit_trees: FitTrees | None = None,
    **config: Any,
) -> Path:
    """Save a checkpoint of the architecture's example, with changes to its configuration."""
    example, _ = architecture.build_example(3)
    settings = architecture.config_type.model_validate(
        example.config.model_dump() | {"edge_features": ()} | config
    )
    network, _ = architecture.from_data(cast(Any, settings), [graph], 1, fit_trees)
    if fit_trees is not None:
        network.part_weights.copy_(torch.tensor([0.7, 0.4]))
    if graph.labels is not None:
        columns = network.features.count_node_columns(len(network.config.relations))
        stumps = [make_stump(columns, 0.3, -1.0, 2.0), make_stump(columns + 3, 1.0, 0.0, 0.5)]
        keys = RowKeys.of_rows(np.empty((0, columns)))
        network.add_label_trees(TreeEnsemble.from_folds([(0.2, stumps)], keys, np.empty(0)), 0.3)
        network.label_weights.copy_(torch.tensor([[0.5, 0.2, 0.1, -0.3], [0.4, 0.1, 0.9, 0.7]]))
    manifest = Manifest(
        name="random",
        version="1",
        architecture=architecture.name,
        task="anomaly",
        config=network.config.model_dump(mode="json"),
        knobs=checkpoint.read_trained_params(network),
        features=tuple(Feature(name=f, minimum=-4, maximum=4, mean=0) for f in "abcde"),
        energy=ENERGY,
        training={},
        metrics={},
    )
    checkpoint.save_checkpoint(folder / "random", network, manifest, "# Random\n")
    return folder / "random"


def random_graph(nodes: int = 90, edges: int = 400, seed: int = 0) -> Graph:
    """A graph with two relations, in which some nodes have no neighbour."""
    rng = np.random.default_rng(seed)
    ends = (nodes * 0.9 * rng.random((2, edges)) ** 2).astype(np.int64)
    x = rng.standard_normal((nodes, 5)).astype(np.float32)
    attr = rng.standard_normal((edges, 2)).astype(np.float32)
    return Graph(x, ends, rng.integers(0, 2, edges), attr)


def score_whole(
    model: Path, graph: Graph, params: DynamicsParams
) -> tuple[np.ndarray, dict[str, Any]]:
    network = cast(NodeScorer, checkpoint.load_checkpoint(model).network)
    output = network.infer(network.pack([graph]), [params])
    reports = ConvergenceReports(output.solutions, as_trained=as_trained(network, params))
    return output.logits.numpy(), reports.row(0, graph.num_nodes, ENERGY, ())


def start(
    folder: Path, model: Path, graph: Graph, params: DynamicsParams, parts: int | None
) -> tuple[Path, Plan]:
    return folder, Plan.from_model(model, "a graph", params, parts).start(folder, graph)


CONFIGS = {
    "two relations, two blocks": {},
    "directed": {"undirected": False},
    "self-loops": {"self_loops": True, "combine": "max"},
    "no attention": {"attention": False},
    "no features of neighbours": {"hops": 0},
    "trees": {"fit_trees": make_trees, "hops": 3},
    "trees and features of edges": {"fit_trees": make_trees, "edge_features": ("a", "b")},
    "features of edges": {"edge_features": ("a", "b")},
    "features of directed edges": {"edge_features": ("a", "b"), "undirected": False},
    "one relation": {"relations": ("r",), "combine": "max", "blocks": 1, "encoder": 0},
}


@pytest.mark.parametrize("architecture", [ET, CDAT])
@pytest.mark.parametrize("name", CONFIGS)
def test_parts_equal_the_whole(tmp_path: Path, architecture: type[NodeScorer], name: str) -> None:
    graph = random_graph()
    model = save_model(tmp_path, architecture, graph, **CONFIGS[name])
    for parts, params in (
        (1, DynamicsParams()),
        (7, DynamicsParams(steps=4, beta_scale=1.5, step_size=0.2)),
    ):
        expected, expected_convergence = score_whole(model, graph, params)
        run = start(tmp_path / f"{parts}", model, graph, params, parts)
        logits, convergence = score(*run, run_in_process)
        np.testing.assert_allclose(logits, expected, atol=2e-5)
        assert convergence.keys() == expected_convergence.keys()
        if architecture is CDAT:  # the work of control is not stored in bulk
            assert convergence["energy_rose"] is None
            expected_convergence["energy_rose"] = None
        for name, value in expected_convergence.items():
            is_float = isinstance(value, float)
            assert convergence[name] == (
                pytest.approx(value, rel=1e-4, abs=1e-4) if is_float else value
            )


def test_labels_are_read_as_in_the_whole_graph(tmp_path: Path) -> None:
    labels = np.random.default_rng(1).integers(-1, 2, 90).astype(np.int8)
    labels[:60] = UNKNOWN
    graph, params = replace(random_graph(), labels=labels), DynamicsParams()
    model = save_model(tmp_path, ET, graph, make_trees, hops=2)
    expected, _ = score_whole(model, graph, params)
    plan = Plan.from_model(model, "a graph", params, 7, labels=True)
    logits, _ = score(tmp_path / "run", plan.start(tmp_path / "run", graph), run_in_process)
    np.testing.assert_allclose(logits, expected, atol=2e-5)
    without, _ = score(*start(tmp_path / "none", model, random_graph(), params, 7), run_in_process)
    np.testing.assert_allclose(without, score_whole(model, random_graph(), params)[0], atol=2e-5)
    assert (np.abs(without - logits) > 0.01).any()


def test_labels_are_refused_where_nothing_reads_them(tmp_path: Path) -> None:
    model = save_model(tmp_path, ET, random_graph())
    with pytest.raises(BulkError, match="reads no labels: leave out --label"):
        Plan.from_model(model, "a graph", DynamicsParams(), 2, labels=True)


def test_resonance_turned_off(tmp_path: Path) -> None:
    """The dynamics are not those of training, so that no energy is out of distribution."""
    graph = random_graph()
    resonance = {"strength": 0.7, "vigilance": 0.1}
    model = save_model(tmp_path, CDAT, graph, resonance=resonance)
    with pytest.raises(BulkError, match="Resonance is not supported"):
        Plan.from_model(model, "a graph", DynamicsParams(), 2)
    params = DynamicsParams(resonance=Resonance.model_validate({"strength": 0.0}))
    expected, expected_convergence = score_whole(model, graph, params)
    logits, convergence = score(*start(tmp_path / "run", model, graph, params, 2), run_in_process)
    np.testing.assert_allclose(logits, expected, atol=2e-5)
    assert convergence["out_of_distribution"] is None
    assert expected_convergence["out_of_distribution"] is None


def test_more_parts_than_nodes_and_no_edges(tmp_path: Path) -> None:
    graph = replace(random_graph(3, 0), edge_type=np.zeros(0, np.int64))
    model = save_model(tmp_path, CDAT, random_graph())
    expected, _ = score_whole(model, graph, DynamicsParams())
    logits, _ = score(*start(tmp_path / "run", model, graph, DynamicsParams(), 50), run_in_process)
    np.testing.assert_allclose(logits, expected, atol=2e-5)


class KilledError(Exception):
    pass


@pytest.fixture
def kill_after(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Set after how many calls that write, mark or delete something the next one is killed."""
    remaining = 0

    def call_or_die(self: PartStore, *args: Any, method: Callable[..., None]) -> None:
        nonlocal remaining
        if not remaining:
            raise KilledError
        remaining -= 1
        method(self, *args)

    for name in ("write", "mark_done", "delete"):
        method = partialmethod(call_or_die, method=getattr(PartStore, name))
        monkeypatch.setattr(PartStore, name, method)

    def set_remaining(count: int) -> None:
        nonlocal remaining
        remaining = count

    return set_remaining


@pytest.mark.parametrize("calls", [1, 2, 7])
def test_a_killed_run_resumes_to_the_same_bits(
    tmp_path: Path, kill_after: Callable[[int], None], calls: int
) -> None:
    graph = random_graph(40, 150)
    model = save_model(tmp_path, CDAT, random_graph())
    plan = Plan.from_model(model, "a graph", DynamicsParams(steps=2), 2)
    kill_after(10**9)
    expected_logits, expected_convergence = score(
        tmp_path / "once", plan.start(tmp_path / "once", graph), run_in_process
    )
    folder = tmp_path / "often"
    folder.mkdir()
    kills = 0
    max_calls = calls
    while True:
        kill_after(max_calls)
        try:
            started = plan.find_started(folder) or plan.start(folder, graph)
            logits, convergence = score(folder, started, run_in_process)
            break
        except KilledError:
            kills += 1
            max_calls += calls  # else it would never get past what has to be written in one go
            assert kills < 1000
    assert kills > 4
    assert logits.tobytes() == expected_logits.tobytes()
    assert convergence == expected_convergence


def test_parts_in_any_order_and_twice(tmp_path: Path) -> None:
    graph = random_graph()
    model = save_model(tmp_path, ET, graph)
    expected, _ = score(
        *start(tmp_path / "once", model, graph, DynamicsParams(), 4), run_in_process
    )

    def execute(run_part: Callable[[int], None], parts: Sequence[int]) -> None:
        for part in (*reversed(parts), *parts):
            run_part(part)

    logits, _ = score(*start(tmp_path / "twice", model, graph, DynamicsParams(), 4), execute)
    assert logits.tobytes() == expected.tobytes()


def test_obsolete_arrays_are_deleted(tmp_path: Path) -> None:
    graph = random_graph()
    model = save_model(tmp_path, CDAT, graph)
    folder, plan = start(tmp_path / "run", model, graph, DynamicsParams(), 3)
    score(folder, plan, run_in_process)
    names = {path.name for path in folder.iterdir()}
    assert names == {"plan.json", "cut", "done", "embedded", "course", "logits"}


@pytest.mark.parametrize(
    ("params", "message"),
    [
        (DynamicsParams(tolerance=0.1), "tolerance, noise and other solvers"),
        (DynamicsParams(noise=0.1), "tolerance, noise and other solvers"),
        (DynamicsParams(solver="nesterov"), "tolerance, noise and other solvers"),
        (DynamicsParams(resonance=Resonance.model_validate({})), "Resonance is not supported"),
    ],
)
def test_unsupported_params(tmp_path: Path, params: DynamicsParams, message: str) -> None:
    with pytest.raises(BulkError, match=message):
        Plan.from_model(save_model(tmp_path, CDAT, random_graph()), "", params, None)


@pytest.mark.parametrize("steps", [4, 60])
def test_divergence_is_an_error(tmp_path: Path, steps: int) -> None:
    """Also where a norm makes values finite again that are far too large."""
    graph = random_graph()
    model = save_model(tmp_path, CDAT, graph)
    params = DynamicsParams(steps=steps, step_size=1e6)
    with pytest.raises(BulkError, match="diverged"):
        score(*start(tmp_path / "run", model, graph, params, 2), run_in_process)


def test_one_command_at_a_time(tmp_path: Path) -> None:
    with (
        lock_folder(tmp_path),
        pytest.raises(BulkError, match="in use by another command"),
        lock_folder(tmp_path),
    ):
        pass
    with lock_folder(tmp_path):
        pass


def test_changed_checkpoint(tmp_path: Path) -> None:
    graph = random_graph()
    model = save_model(tmp_path, CDAT, graph)
    run = start(tmp_path / "run", model, graph, DynamicsParams(), 2)
    save_model(tmp_path, CDAT, random_graph(seed=5))
    with pytest.raises(BulkError, match="has changed"):
        score(*run, run_in_process)


@pytest.fixture
def tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    graph = random_graph()
    assert graph.edge_type is not None
    monkeypatch.setenv("BASIN_CHECKPOINTS", str(tmp_path / "models"))
    save_model(tmp_path / "models", CDAT, graph)
    names = np.array([f"n{i}" for i in range(graph.num_nodes)])
    frame = pd.DataFrame(graph.x, columns=list("abcde")).assign(id=names)
    ends = dict(zip(("source", "target"), names[graph.edge_index], strict=True))
    nodes, edges = tmp_path / "nodes", tmp_path / "edges.csv"
    nodes.mkdir()
    frame[:50].to_parquet(nodes / "0.parquet")
    frame[50:].to_parquet(nodes / "1.parquet")
    pd.DataFrame(ends | {"type": np.array(RELATIONS)[graph.edge_type]}).to_csv(edges, index=False)
    return nodes, edges


def test_tables(tables: tuple[Path, Path], tmp_path: Path) -> None:
    folder = tmp_path / "run"
    scores, convergence = score_tables(*tables, folder, model="random", parts=3)
    expected, expected_convergence = score_whole(
        tmp_path / "models/random", random_graph(), DynamicsParams()
    )
    np.testing.assert_allclose(scores["score"], expected, atol=2e-5)
    assert scores["node_id"].tolist() == [f"n{i}" for i in range(90)]
    assert sorted(scores["rank"]) == list(range(1, 91))
    percentile = expected_convergence["energy_percentile"]
    assert convergence["energy_percentile"] == pytest.approx(percentile, abs=0.01)
    again, _ = score_tables(*tables, folder, model="random", parts=3)
    pd.testing.assert_frame_equal(scores, again)
    some, _ = score_tables(*tables, folder, targets=["n7", "n2"], model="random", parts=3)
    assert some["node_id"].tolist() == ["n7", "n2"]
    assert some["score"].tolist() == [scores["score"][7], scores["score"][2]]
    assert sorted(some["rank"]) == [1, 2]
    with pytest.raises(InputError, match="row 2, column 'id': the graph has no node 'n200'"):
        score_tables(*tables, folder, targets=["n7", "n200"], model="random", parts=3)


def test_folder_of_another_run(tables: tuple[Path, Path], tmp_path: Path) -> None:
    nodes, edges = tables
    score_tables(nodes, edges, tmp_path / "run", model="random")
    with pytest.raises(BulkError, match="another graph, model, dynamics"):
        score_tables(nodes, edges, tmp_path / "run", model="random", params=DynamicsParams(steps=3))
    with edges.open("a") as file:
        file.write(f"n1,n2,{RELATIONS[0]}\n")
    with pytest.raises(BulkError, match="another graph, model, dynamics"):
        score_tables(nodes, edges, tmp_path / "run", model="random")
    with pytest.raises(BulkError, match="contains other files"):
        score_tables(nodes, edges, nodes, model="random")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("n1,n200,r", r"column 'target': \S+ has no node 'n200'"),
        ("n1,n2,0", r"random has no relation '0'\. Relations: r, s"),
        ("n1,n2,", r"row \d+, column 'type': the value is blank"),
        ("n1,n2", r"row \d+ has 2 columns, the header has 3"),
    ],
)
def test_invalid_edges(tables, tmp_path: Path, line: str, message: str) -> None:
    with tables[1].open("a") as file:
        file.write(line + "\n")
    with pytest.raises(InputError, match=message):
        score_tables(*tables, tmp_path / "run", model="random")


def test_invalid_nodes(tables, tmp_path: Path) -> None:
    nodes, edges = tables
    frame = pd.read_parquet(nodes)
    frame.loc[3, "b"] = np.inf
    frame.to_parquet(tmp_path / "a.parquet")
    with pytest.raises(InputError, match=r"row 4 \(id n3\), column 'b': the value is infinite"):
        score_tables(tmp_path / "a.parquet", edges, tmp_path / "run", model="random")
    frame.drop(columns="c").to_parquet(tmp_path / "b.parquet")
    with pytest.raises(InputError, match="no column 'c', which random reads"):
        score_tables(tmp_path / "b.parquet", edges, tmp_path / "run", model="random")
    pd.concat([frame, frame[:1]]).to_parquet(tmp_path / "c.parquet")
    with pytest.raises(InputError, match="row 91, column 'id': the id n0 has occurred before"):
        score_tables(tmp_path / "c.parquet", edges, tmp_path / "run", model="random")


def test_command(tables, tmp_path: Path) -> None:
    def run(*arguments: object) -> Any:
        command = ["score", *map(str, tables), "--model", "random", *map(str, arguments)]
        return CliRunner().invoke(app, command)

    pd.DataFrame({"id": ["n7", "n2"]}).to_csv(tmp_path / "targets.csv", index=False)
    folder, out = tmp_path / "run", tmp_path / "scores.parquet"
    result = run("--bulk", folder, "--parts", 3, "--set", "steps=2", "--out", out)
    assert result.exit_code == 0, result.stderr
    assert "steps 16" in result.stderr  # two networks, two relations, two blocks
    scores = pd.read_parquet(out)
    expected, _ = score_whole(tmp_path / "models/random", random_graph(), DynamicsParams(steps=2))
    np.testing.assert_allclose(scores["score"], expected, atol=2e-5)
    some = run(
        "--bulk", folder, "--parts", 3, "--set", "steps=2", "--targets", tmp_path / "targets.csv"
    )
    assert [line.split(",")[0] for line in some.stdout.split()] == ["node_id", "n7", "n2"]
    for arguments, message in (
        (["--bulk", folder, "--set", "noise=1"], "noise and other solvers"),
        (["--bulk", folder, "--set", "steps=3"], "another graph, model, dynamics"),
        (["--bulk", tmp_path / "other", "--model", "none"], "No model none"),
    ):
        assert message in str(run(*arguments).exception)
    for arguments, message in (
        (["--bulk", folder, "--server", "http://127.0.0.1:1"], "runs without a server"),
        (["--parts", 3], "need --bulk"),
    ):
        result = run(*arguments)
        assert (result.exit_code, message in result.stderr) == (2, True)
