"""`basin`: use a server from a shell, or run one within this process."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Annotated, Any, NoReturn, TypeVar, cast

import numpy as np
import pandas as pd
import typer
from basin_client import BasinError, Client, Dynamics, ProblemError
from rich.console import Console
from rich.markup import escape
from rich.progress import track

from basin.io import (
    FileError,
    find_images,
    read_smiles,
    read_table,
    require_columns,
    write_table,
)

T = TypeVar("T")
_STARTUP_RETRIES = 40
_MOLECULES_PER_REQUEST = 256
_MODEL_COLUMNS = ("name", "version", "architecture", "task", "route")

app = typer.Typer(
    no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, help=__doc__
)
console = Console(stderr=True)

Server = Annotated[
    str | None,
    typer.Option(envvar="BASIN_URL", help="URL of a server; without it, run one in this process."),
]
Key = Annotated[
    str | None, typer.Option(envvar="BASIN_KEY", help="API key, if the server requires one.")
]
Model = Annotated[str | None, typer.Option(help="Name of a model, as in `basin models`.")]
Params = Annotated[
    list[str] | None,
    typer.Option(
        "--set", help="Parameter of the dynamics, for example steps=8. May be given several times."
    ),
]
Out = Annotated[
    Path | None,
    typer.Option(help="CSV, TSV, Parquet or JSON file; standard output if not given."),
]


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
def models(server: Server = None, key: Key = None, out: Out = None) -> None:
    """List the models and memories of the server."""
    with _connect(server, key) as client:
        rows = [{name: model[name] for name in _MODEL_COLUMNS} for model in client.models()]
        for memory in client.memories():
            rows.append({"name": memory["id"], "task": "sample", "route": "/sample"})
    write_table(pd.DataFrame(rows, columns=list(_MODEL_COLUMNS)), out)


@app.command()
def score(
    nodes: Annotated[Path, typer.Argument(help="Table with `id` and one column per feature.")],
    edges: Annotated[
        Path, typer.Argument(help="Table with `source`, `target` and optionally `type`.")
    ],
    targets: Annotated[
        Path | None, typer.Option(help="Table with the `id`s of the nodes to print; else all.")
    ] = None,
    model: Model = None,
    params: Params = None,
    server: Server = None,
    key: Key = None,
    out: Out = None,
    bulk: Annotated[
        Path | None,
        typer.Option(
            help="Score the graph in parts, without a server, and store the progress in this "
            "folder: the same command resumes it. Tables may be folders of Parquet files."
        ),
    ] = None,
    parts: Annotated[
        int | None,
        typer.Option(help="With --bulk: number of parts; default one per million edges."),
    ] = None,
    ray: Annotated[
        str | None,
        typer.Option(
            help="With --bulk: a Ray cluster that shares the folder: local, auto or host:port."
        ),
    ] = None,
) -> None:
    """Score how suspicious each node of a graph is."""
    ids = None if targets is None else list(read_table(targets)["id"])
    if bulk is not None:
        if server is not None:
            raise FileError("--bulk runs without a server: do not set --server or BASIN_URL.")
        from basin.bulk import score_tables
        from service.endpoints.common import schemas

        table, convergence = score_tables(
            nodes,
            edges,
            bulk,
            model=model,
            targets=ids,
            params=schemas.Dynamics.model_validate(_parse_params(params)).to_params(),
            parts=parts,
            ray=ray,
            show_progress=lambda stages: _with_progress_bar(stages, "stages"),
        )
    elif parts is not None or ray is not None:
        raise FileError("--parts and --ray need --bulk.")
    else:
        frames = read_table(nodes), read_table(edges)
        with _connect(server, key) as client:
            scores = client.score(
                frames,
                ids,
                features=_model_features(client, model, frames[0]),
                model=model,
                dynamics=_dynamics(params),
            )
        table, convergence = scores.to_pandas(), scores.convergence.raw
    write_table(table, out)
    _print_convergence(convergence)


@app.command()
def classify(
    molecules: Annotated[
        list[str],
        typer.Argument(help="SMILES, or files of SMILES: text with one per line, or tables."),
    ],
    column: Annotated[str | None, typer.Option(help="Column of SMILES in tables.")] = None,
    model: Model = None,
    params: Params = None,
    server: Server = None,
    key: Key = None,
    out: Out = None,
) -> None:
    """Classify molecules: one row per molecule, with an error code if it cannot be parsed."""
    smiles = [text for argument in molecules for text in _read_molecules(argument, column)]
    if not smiles:
        raise FileError("The arguments contain no molecules: pass SMILES, or files of SMILES.")
    dynamics = _dynamics(params)
    starts = range(0, len(smiles), _MOLECULES_PER_REQUEST)
    frames = []
    with _connect(server, key) as client:
        for start in _with_progress_bar(starts, "molecules"):
            batch = smiles[start : start + _MOLECULES_PER_REQUEST]
            frame = _classify_batch(client, batch, model, dynamics)
            frame["index"] += start
            frames.append(frame)
    write_table(pd.concat(frames, ignore_index=True), out)


@app.command()
def complete(
    images: Annotated[list[Path], typer.Argument(help="Images, or folders of images.")],
    mask: Annotated[
        Path | None,
        typer.Option(
            help="Image that is white where to fill, or a folder with one mask per image, of the "
            "same name."
        ),
    ] = None,
    mask_mode: Annotated[str | None, typer.Option(help="white_fill, black_fill or alpha.")] = None,
    num_samples: int = 1,
    model: Model = None,
    params: Params = None,
    server: Server = None,
    key: Key = None,
    out: Annotated[Path, typer.Option(help="Folder for the completed images.")] = Path("completed"),
) -> None:
    """Fill the masked part of images."""
    paths = list(find_images(images))
    path_of_name = {path.stem: path for path in paths}
    for path in paths:
        if (other := path_of_name[path.stem]) != path:
            raise FileError(
                f"{path} and {other} would both be written to {out / path.stem}.png: rename one."
            )
    dynamics = _dynamics(params)
    out.mkdir(parents=True, exist_ok=True)
    with _connect(server, key) as client:
        for path in _with_progress_bar(paths, "images"):
            result = client.complete(
                path,
                _find_mask(path, mask),
                mask_mode=cast(Any, mask_mode),
                num_samples=num_samples,
                model=model,
                dynamics=dynamics,
            )
            for i, image in enumerate(result.images):
                name = path.stem if num_samples == 1 else f"{path.stem}-{i}"
                image.save(out / f"{name}.png")
                print(out / f"{name}.png")


@app.command()
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
) -> None:
    """Draw samples from a memory."""
    source = np.load(memory, allow_pickle=False) if memory.endswith(".npy") else memory
    with _connect(server, key) as client:
        result = client.sample(source, **_parse_params(params))
    # With several values of beta there is one set of samples for each.
    sets = result.samples if isinstance(result.diagnostics, list) else [result.samples]
    for i, samples in enumerate(sets):
        path = out if len(sets) == 1 else out.with_stem(f"{out.stem}-{i}")
        print(_write_samples(samples, path))
    print(json.dumps(result.diagnostics, indent=1), file=sys.stderr)


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
    try:
        app(standalone_mode=True)
    except (BasinError, FileError, OSError, KeyError, TypeError, ValueError) as error:
        console.print(f"[bold red]error[/] {escape(str(error))}", highlight=False)
        sys.exit(1)


@contextmanager
def _connect(server: str | None, key: str | None) -> Iterator[Client]:
    """Yield a client of the server, or of a new server in this process if there is no URL."""
    if server is not None:
        with Client(server, key=key) as client:
            yield client
        return
    from basin.embedded_server import run_server

    with ExitStack() as stack:
        with console.status("loading models"):
            url = stack.enter_context(run_server())
            client = stack.enter_context(Client(url, retries=_STARTUP_RETRIES))
            client.ready()
        yield client


def _model_features(client: Client, model: str | None, nodes: pd.DataFrame) -> list[str]:
    """Return the columns that the model reads, in its order.

    Raises:
        FileError: there is no such model, or a column is missing.
    """
    for entry in client.models():
        is_default = model is None and "/anomaly/score" in entry["default_for"]
        if is_default or entry["name"] == model:
            names = [feature["name"] for feature in client.model(entry["name"])["features"]]
            require_columns(nodes, names, "nodes")
            return names
    raise FileError(f"Unknown model {model}: `basin models` lists the models of the server.")


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


def _read_molecules(argument: str, column: str | None) -> list[str]:
    """Return the molecules of the file of this name, or else the argument itself."""
    path = Path(argument)
    return read_smiles(path, column) if path.is_file() else [argument]


def _find_mask(image: Path, mask: Path | None) -> Path | None:
    if mask is None or not mask.is_dir():
        return mask
    masks = sorted(path for path in mask.iterdir() if path.stem == image.stem)
    if not masks:
        raise FileError(f"{mask}: no mask with the name {image.stem}, for {image}.")
    return masks[0]


def _parse_params(params: list[str] | None) -> dict[str, Any]:
    """Parse `name=value` arguments; a value is JSON, or else text."""
    values = dict[str, Any]()
    for param in params or ():
        name, equals, text = param.partition("=")
        if not equals:
            raise FileError(f"--set {param}: expected name=value, for example steps=8.")
        try:
            values[name] = json.loads(text)
        except ValueError:
            values[name] = text
    return values


def _dynamics(params: list[str] | None) -> Dynamics | None:
    return cast(Dynamics, _parse_params(params)) or None


def _with_progress_bar(items: Sequence[T], description: str) -> Iterator[T]:
    """Iterate with a progress bar on standard error, if that is a terminal."""
    disable = len(items) < 2 or not console.is_terminal
    yield from track(items, description, console=console, transient=True, disable=disable)


def _print_convergence(convergence: dict[str, Any]) -> None:
    names = ("energy_drop", "steps", "residual", "stop_reason", "energy_percentile")
    text = "  ".join(f"{name} {convergence.get(name)}" for name in names)
    console.print(text, highlight=False, style="dim")


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
