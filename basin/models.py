"""`basin models`: list the models and memories of a server, or describe a model."""

from __future__ import annotations

import json
from typing import Annotated

import pandas as pd
import typer

from basin.console import AsJson, Key, Out, Server, connect
from basin.io import require_table_suffix, write_table

_COLUMNS = ("name", "version", "architecture", "task", "route")


def models(
    name: Annotated[
        str | None, typer.Argument(help="Model to describe, as JSON; else all are listed.")
    ] = None,
    server: Server = None,
    key: Key = None,
    out: Out = None,
    as_json: AsJson = False,
) -> None:
    """List the models and memories of the server, or print what one reads and how good it is."""
    require_table_suffix(out)
    with connect(server, key) as client:
        if name is not None and out is not None:
            raise typer.BadParameter("--out is of the list: leave out NAME or --out.")
        if name is not None:
            print(json.dumps(client.model(name), indent=1))
            return
        rows = [{name: model[name] for name in _COLUMNS} for model in client.models()]
        for memory in client.memories():
            rows.append({"name": memory["id"], "task": "sample", "route": "/sample"})
    write_table(pd.DataFrame(rows, columns=list(_COLUMNS)), out, as_json=as_json)
