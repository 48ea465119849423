"""`basin models`: list the models and memories of a server."""

from __future__ import annotations

import pandas as pd

from basin.console import AsJson, Key, Out, Server, connect
from basin.io import require_table_suffix, write_table

_COLUMNS = ("name", "version", "architecture", "task", "route")


def models(
    server: Server = None, key: Key = None, out: Out = None, as_json: AsJson = False
) -> None:
    """List the models and memories of the server."""
    require_table_suffix(out)
    with connect(server, key) as client:
        rows = [{name: model[name] for name in _COLUMNS} for model in client.models()]
        for memory in client.memories():
            rows.append({"name": memory["id"], "task": "sample", "route": "/sample"})
    write_table(pd.DataFrame(rows, columns=list(_COLUMNS)), out, as_json=as_json)
