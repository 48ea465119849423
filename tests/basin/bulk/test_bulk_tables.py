"""Tables of nodes and edges, scored in parts by the function and by the command."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from basin_client import InputError
from typer.testing import CliRunner

from basin.bulk import BulkError, score_tables
from basin.cli import app
from models.architectures.cdat import CDAT
from models.base import DynamicsParams
from tests.support.bulk_models import (
    RELATIONS,
    random_graph,
    save_model,
    score_whole,
)


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
