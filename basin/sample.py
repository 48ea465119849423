"""`basin sample`: draw samples from a memory."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pandas as pd
import typer
from basin_client import InputError
from basin_client.errors import one_line

from basin.console import (
    AsJson,
    Key,
    Server,
    connect,
    parse_params,
)


def sample(
    memory: Annotated[
        str, typer.Argument(help="Name of a memory, or a .npy file of patterns, one per row.")
    ],
    params: Annotated[
        list[str] | None,
        typer.Option("--set", help="For example beta=200, steps=5000 or num_samples=16."),
    ] = None,
    server: Server = None,
    key: Key = None,
    out: Annotated[
        Path, typer.Option(help=".npy or .csv file; sequences become a .txt file, one per line.")
    ] = Path("samples.npy"),
    as_json: AsJson = False,
) -> None:
    """Draw samples from a memory."""
    source: Any = memory
    if memory.endswith(".npy"):
        try:
            source = np.load(memory, allow_pickle=False)
        except (OSError, ValueError) as error:
            raise InputError(f"{memory}: not a readable .npy file: {one_line(error)}") from error
    with connect(server, key) as client:
        result = client.sample(source, **parse_params(params))
    # With several values of beta there is one set of samples for each.
    sets = result.samples if isinstance(result.diagnostics, list) else [result.samples]
    paths = [
        _write_samples(samples, out if len(sets) == 1 else out.with_stem(f"{out.stem}-{i}"))
        for i, samples in enumerate(sets)
    ]
    if as_json:
        names = list(map(str, paths))
        print(json.dumps({"samples": names, "diagnostics": result.diagnostics}, indent=1))
        return
    print(*paths, sep="\n")
    print(json.dumps(result.diagnostics, indent=1), file=sys.stderr)


def _write_samples(samples: Any, path: Path) -> Path:
    """Write samples in the format of the suffix (sequences as text) and return the path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(samples, list):
        path = path.with_suffix(".txt")
        path.write_text("\n".join(samples) + "\n")
    elif path.suffix == ".csv":
        pd.DataFrame(samples.reshape(len(samples), -1)).to_csv(path, index=False)
    else:
        np.save(path, samples, allow_pickle=False)
    return path
