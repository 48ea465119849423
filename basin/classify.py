"""`basin classify`: classify molecules."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import pandas as pd
import typer
from basin_client import Client, Dynamics, InputError, ProblemError
from basin_client.command_line import Encoding, Separator
from basin_client.smiles import SmilesTable, looks_like_file, read_smiles

from basin.console import (
    AsJson,
    Key,
    Model,
    Out,
    Params,
    Server,
    connect,
    exit_with,
    parse_dynamics,
    tell,
    with_progress_bar,
)
from basin.io import add_columns, require_table_suffix, write_table

_MOLECULES_PER_REQUEST = 256


def classify(
    molecules: Annotated[
        list[str],
        typer.Argument(
            help="SMILES, or files of them: .smi or .txt with one per line, or tables; - is stdin."
        ),
    ],
    column: Annotated[str | None, typer.Option(help="Column of SMILES in tables.")] = None,
    separator: Separator = None,
    encoding: Encoding = None,
    model: Model = None,
    params: Params = None,
    server: Server = None,
    key: Key = None,
    out: Out = None,
    as_json: AsJson = False,
) -> None:
    """Classify molecules: one row per molecule, with an error code if it cannot be parsed.

    Names and other columns of files are printed beside the classes. The exit code is 1 if a
    molecule or a file could not be read.
    """
    require_table_suffix(out)
    dynamics = parse_dynamics(params)
    failures = list[str]()
    tables = list[SmilesTable]()
    for argument in molecules:
        if not looks_like_file(argument):
            tables.append(SmilesTable([argument], pd.DataFrame(index=[0])))
            continue
        try:
            table = read_smiles(argument, column, separator=separator, encoding=encoding)
        except InputError as error:
            failures.append(str(error))
            continue
        for note in table.notes:
            tell(note)
        if not table.smiles:
            failures.append(f"{argument}: the file holds no molecules.")
        tables.append(table)
    smiles = [text for table in tables for text in table.smiles]
    frames = []
    if smiles:
        starts = range(0, len(smiles), _MOLECULES_PER_REQUEST)
        with connect(server, key) as client:
            for start in with_progress_bar(starts, "molecules"):
                batch = smiles[start : start + _MOLECULES_PER_REQUEST]
                frame = _classify_batch(client, batch, model, dynamics)
                frame["index"] += start
                frames.append(frame)
        others = pd.concat([table.columns for table in tables], ignore_index=True)
        results = add_columns(pd.concat(frames, ignore_index=True), others)
        write_table(results, out, as_json=as_json)
        has_failed = results["error"].notna().to_numpy()
        if has_failed.any():
            first = int(has_failed.argmax())
            failures.append(
                f"{has_failed.sum()} of {len(results)} molecules have no result, first that of "
                f"index {first}: {results['error'].iloc[first]}. Column `error` says why."
            )
    exit_with(failures)


def _classify_batch(
    client: Client, smiles: Sequence[str], model: str | None, dynamics: Dynamics | None
) -> pd.DataFrame:
    """Classify molecules; one row for each.

    The server refuses a request in which no molecule can be parsed, with one error per molecule.
    These become rows too.
    """
    try:
        return client.classify(list(smiles), model=model, dynamics=dynamics).to_pandas()
    except ProblemError as problem:
        codes = {error["pointer"]: error["code"] for error in problem.errors}
        pointers = [f"/smiles/{i}" for i in range(len(smiles))]
        if problem.status != 422 or not codes.keys() <= set(pointers):
            raise
        rows = [
            {"index": i, "input": text, "error": codes.get(pointer, "not_smiles")}
            for i, (text, pointer) in enumerate(zip(smiles, pointers, strict=True))
        ]
        return pd.DataFrame(rows)
