"""`basin graphs` with a server: graphs of nodes and edges, whose edges have features."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from basin_client import Client
from typer.testing import CliRunner, Result

from basin.cli import app
from tests.client.test_stored_edge_features import GRAPH, MODEL, SAMPLE, to_frames
from tests.support.server import Server


@pytest.fixture
def run(server: Server) -> Callable[..., Result]:
    def run(*arguments: object) -> Result:
        command = ["graphs", *map(str, arguments), "--server", server.url]
        result = CliRunner().invoke(app, command)
        assert result.exit_code == 0, (result.stderr, result.exception)
        return result

    return run


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_a_graph_is_stored_changed_and_scored(
    run: Callable[..., Result], tmp_path: Path, server: Server, suffix: str
) -> None:
    nodes, edges = to_frames()
    wrong = edges.assign(amount=edges["amount"] + 1)
    tables = {
        "nodes": nodes,
        "some": wrong[:60].assign(note="a"),
        "all": edges,
        "changed": nodes[:4],
    }
    paths = {name: tmp_path / f"{name}{suffix}" for name in tables}
    for name, frame in tables.items():
        if suffix == ".csv":
            frame.to_csv(paths[name], index=False)
        else:
            frame.to_parquet(paths[name])
    stored = ["--nodes", paths["nodes"], "--edges", paths["some"], "--drop", "note"]
    run("put", "cli", "--model", MODEL, *stored)
    result = run("patch", "cli", "--nodes", paths["changed"], "--edges", paths["all"])
    assert "40 nodes, revision 2" in result.stderr
    scored = run("score", "cli", *SAMPLE.node_ids[:3], "--model", MODEL)
    table = pd.read_csv(io.StringIO(scored.stdout))
    with Client(server.url) as client:
        client.store_graph("cli", GRAPH, model=MODEL)
        expected = client.score_nodes("cli", SAMPLE.node_ids[:3], model=MODEL)
    np.testing.assert_allclose(table["score"], expected.score, rtol=1e-5)
    run("delete", "cli")
