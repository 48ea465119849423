"""`basin`: use a server from a shell, or run one within this process."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, NoReturn

import pandas as pd
import typer
from basin_client.command_line import run

from basin.classify import classify
from basin.complete import complete
from basin.console import AsJson, Key, Out, Server, connect
from basin.graphs import graphs
from basin.io import require_table_suffix, write_table
from basin.sample import sample
from basin.score import score
from basin.transactions import score_transactions

_MODEL_COLUMNS = ("name", "version", "architecture", "task", "route")

app = typer.Typer(
    no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, help=__doc__
)


@app.command()
def serve(
    port: Annotated[int, typer.Option(envvar="BASIN_PORT")] = 8000,
    host: Annotated[str, typer.Option(envvar="BASIN_HOST")] = "127.0.0.1",
) -> NoReturn:
    """Run a server with the settings of the environment, until SIGTERM."""
    environment = os.environ | {"BASIN_PORT": str(port), "BASIN_HOST": host}
    os.execve(sys.executable, [sys.executable, "-m", "service"], environment)


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def keys(context: typer.Context) -> NoReturn:
    """Create an API key of a server; the same as `python -m service key`."""
    os.execv(sys.executable, [sys.executable, "-m", "service", "key", *context.args])


@app.command()
def models(
    server: Server = None, key: Key = None, out: Out = None, as_json: AsJson = False
) -> None:
    """List the models and memories of the server."""
    require_table_suffix(out)
    with connect(server, key) as client:
        rows = [{name: model[name] for name in _MODEL_COLUMNS} for model in client.models()]
        for memory in client.memories():
            rows.append({"name": memory["id"], "task": "sample", "route": "/sample"})
    write_table(pd.DataFrame(rows, columns=list(_MODEL_COLUMNS)), out, as_json=as_json)


app.add_typer(graphs, name="graphs")
for command in (score, score_transactions, classify, complete, sample):
    app.command()(command)


@app.command()
def onnx(
    checkpoint: Annotated[Path, typer.Argument(help="Folder of a checkpoint.")],
    out: Annotated[Path, typer.Argument(help="Folder for block-0.onnx and so on.")],
) -> None:
    """Write the step of each block as an ONNX graph that contains its weights."""
    from basin.onnx_export import export_steps

    for path in export_steps(checkpoint, out):
        print(path)


def main() -> None:
    run(app)
