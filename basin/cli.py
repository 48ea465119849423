"""`basin`: what a server does, from a shell; with a server, or without one within this process."""

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
from basin_client import BasinError, Client, Dynamics
from rich.console import Console
from rich.markup import escape
from rich.progress import track

from basin.io import FileError, pictures, read_smiles, read_table, write_table

T = TypeVar("T")
_READY_TRIES = 40
_AT_A_TIME = 256  # molecules of a request

app = typer.Typer(
    no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, help=__doc__
)
console = Console(stderr=True)

Server = Annotated[
    str | None,
    typer.Option(envvar="BASIN_URL", help="Address of a server; without one it runs in here."),
]
Key = Annotated[str | None, typer.Option(envvar="BASIN_KEY", help="Key, if the server asks.")]
Model = Annotated[str | None, typer.Option(help="A name of `basin models`.")]
Knobs = Annotated[
    list[str] | None,
    typer.Option("--set", help="A knob of the dynamics, as steps=8 or tolerance=0.01; repeat."),
]
Out = Annotated[Path | None, typer.Option(help="CSV, TSV, Parquet, JSON; else standard output.")]


@app.command()
def serve(
    port: Annotated[int, typer.Option(envvar="BASIN_PORT")] = 8000,
    host: Annotated[str, typer.Option(envvar="BASIN_HOST")] = "127.0.0.1",
) -> NoReturn:
    """Serve until SIGTERM, by the settings of the environment."""
    environment = os.environ | {"BASIN_PORT": str(port), "BASIN_HOST": host}
    os.execve(sys.executable, [sys.executable, "-m", "service"], environment)


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def keys(context: typer.Context) -> NoReturn:
    """Make a key for a server; the same as `python -m service key`."""
    command = [sys.executable, "-m", "service", "key", *context.args]
    os.execv(sys.executable, command)


@app.command()
def models(server: Server = None, key: Key = None, out: Out = None) -> None:
    """Which models and memories are served."""
    with _asking(server, key) as client:
        rows = [{name: one[name] for name in _TOLD} for one in client.models()]
        kept = [
            {"name": one["id"], "task": "sample", "route": "/sample"} for one in client.memories()
        ]
        write_table(pd.DataFrame(rows + kept, columns=list(_TOLD)), out)


_TOLD = ("name", "version", "architecture", "task", "route")


@app.command()
def score(
    nodes: Annotated[Path, typer.Argument(help="Table with `id` and a column for each feature.")],
    edges: Annotated[Path, typer.Argument(help="Table with `source`, `target`, perhaps `type`.")],
    targets: Annotated[
        Path | None, typer.Option(help="Table with the `id`s to tell of; all if not given.")
    ] = None,
    model: Model = None,
    knobs: Knobs = None,
    server: Server = None,
    key: Key = None,
    out: Out = None,
    bulk: Annotated[
        Path | None,
        typer.Option(
            help="Score in parts, without a server; what is done is kept in this folder, and the "
            "same command goes on with it. Tables may be folders of Parquet files."
        ),
    ] = None,
    parts: Annotated[int | None, typer.Option(help="With --bulk; one a million edges.")] = None,
    ray: Annotated[
        str | None,
        typer.Option(
            help="With --bulk: a Ray cluster that shares the folder; local, auto or host:port."
        ),
    ] = None,
) -> None:
    """How suspicious is each node of a graph?"""
    asked = None if targets is None else list(read_table(targets)["id"])
    if bulk is not None:
        if server is not None:
            raise FileError("--bulk works without a server: leave --server, or BASIN_URL, out")
        _score_in_parts(nodes, edges, asked, model, knobs, out, bulk, parts, ray)
        return
    if parts is not None or ray is not None:
        raise FileError("--parts and --ray go with --bulk")
    frames = read_table(nodes), read_table(edges)
    with _asking(server, key) as client:
        features = _features(client, model, frames[0])
        told = client.score(
            frames, asked, features=features, model=model, dynamics=_dynamics(knobs)
        )
        write_table(told.to_pandas(), out)
        _say(told.convergence.raw)


def _score_in_parts(
    nodes: Path,
    edges: Path,
    asked: list[Any] | None,
    model: str | None,
    knobs: list[str] | None,
    out: Path | None,
    folder: Path,
    parts: int | None,
    ray: str | None,
) -> None:
    from basin.bulk import score_tables
    from service.endpoints.common.schemas import Dynamics as Asked

    told, convergence = score_tables(
        nodes,
        edges,
        folder,
        model=model,
        targets=asked,
        knobs=Asked.model_validate(_values(knobs)).knobs(),
        parts=parts,
        ray=ray,
        track=lambda every: _tracked(every, "passes"),
    )
    write_table(told, out)
    _say(convergence)


@app.command()
def classify(
    molecules: Annotated[
        list[str], typer.Argument(help="SMILES; or files of them: a line each, or tables.")
    ],
    column: Annotated[str | None, typer.Option(help="Column of SMILES in tables.")] = None,
    model: Model = None,
    knobs: Knobs = None,
    server: Server = None,
    key: Key = None,
    out: Out = None,
) -> None:
    """What is each molecule? One row per molecule; what cannot be read has an error in its row."""
    smiles = [text for given in molecules for text in _smiles(given, column)]
    if not smiles:
        raise FileError("there are no molecules in what was given")
    parts = [smiles[i : i + _AT_A_TIME] for i in range(0, len(smiles), _AT_A_TIME)]
    frames, dynamics = [], _dynamics(knobs)
    with _asking(server, key) as client:
        for place, part in enumerate(_tracked(parts, "molecules")):
            frame = _classified(client, part, model, dynamics)
            frame["index"] += place * _AT_A_TIME
            frames.append(frame)
    write_table(pd.concat(frames, ignore_index=True), out)


@app.command()
def complete(
    images: Annotated[list[Path], typer.Argument(help="Pictures, or folders of them.")],
    mask: Annotated[
        Path | None,
        typer.Option(help="White where to fill; or a folder with a mask of each picture's name."),
    ] = None,
    mask_mode: Annotated[str | None, typer.Option(help="white_fill, black_fill or alpha.")] = None,
    num_samples: int = 1,
    model: Model = None,
    knobs: Knobs = None,
    server: Server = None,
    key: Key = None,
    out: Annotated[Path, typer.Option(help="Folder of the completed pictures.")] = Path(
        "completed"
    ),
) -> None:
    """Fill what a mask marks of pictures."""
    every, dynamics = list(pictures(images)), _dynamics(knobs)
    named = {path.stem: path for path in every}
    if twice := next((path for path in every if named[path.stem] != path), None):
        raise FileError(f"{twice} and {named[twice.stem]} would have one name in {out}")
    out.mkdir(parents=True, exist_ok=True)
    with _asking(server, key) as client:
        for path in _tracked(every, "pictures"):
            done = client.complete(
                path,
                _mask_of(path, mask),
                mask_mode=cast(Any, mask_mode),
                num_samples=num_samples,
                model=model,
                dynamics=dynamics,
            )
            for i, picture in enumerate(done.images):
                name = path.stem if num_samples == 1 else f"{path.stem}-{i}"
                picture.save(out / f"{name}.png")
                print(out / f"{name}.png")


@app.command()
def sample(
    memory: Annotated[
        str, typer.Argument(help="Name of a memory, or a file of patterns (.npy), rows first.")
    ],
    knobs: Annotated[
        list[str] | None, typer.Option("--set", help="As beta=200, steps=5000, num_samples=16.")
    ] = None,
    server: Server = None,
    key: Key = None,
    out: Annotated[
        Path, typer.Option(help="Samples as .npy, .csv; of sequences as .txt, a line each.")
    ] = Path("samples.npy"),
) -> None:
    """Draw from a memory."""
    asked = np.load(memory, allow_pickle=False) if memory.endswith(".npy") else memory
    with _asking(server, key) as client:
        told = client.sample(asked, **_values(knobs))
    several = told.samples if isinstance(told.diagnostics, list) else [told.samples]
    for i, samples in enumerate(several):
        path = out if len(several) == 1 else out.with_stem(f"{out.stem}-{i}")
        print(_write_samples(samples, path))
    print(json.dumps(told.diagnostics, indent=1), file=sys.stderr)


@app.command()
def onnx(
    checkpoint: Annotated[Path, typer.Argument(help="Folder of a checkpoint.")],
    out: Annotated[Path, typer.Argument(help="Folder for block-0.onnx and so on.")],
) -> None:
    """Write the step of each block as an ONNX graph, with its weights in it."""
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
def _asking(server: str | None, key: str | None) -> Iterator[Client]:
    if server is not None:
        with Client(server, key=key) as client:
            yield client
        return
    from basin.embedded_server import serving

    with ExitStack() as held:
        with console.status("loading models"):
            url = held.enter_context(serving())
            client = held.enter_context(Client(url, retries=_READY_TRIES))
            client.ready()
        yield client


def _features(client: Client, model: str | None, nodes: pd.DataFrame) -> list[str]:
    """The columns that the model reads, in its order.

    Raises:
        FileError: one is not there.
    """
    for told in client.models():
        if told["name"] == model or (model is None and "/anomaly/score" in told["default_for"]):
            names = [feature["name"] for feature in client.model(told["name"])["features"]]
            if missing := [name for name in names if name not in nodes.columns]:
                raise FileError(f"the nodes have no column {missing[0]}; needed are {names}")
            return names
    raise FileError(f"there is no model {model}; see `basin models`")


def _classified(
    client: Client, smiles: Sequence[str], model: str | None, dynamics: Dynamics | None
) -> pd.DataFrame:
    """Rows, also where nothing of it can be read."""
    try:
        return client.classify(list(smiles), model=model, dynamics=dynamics).to_pandas()
    except BasinError as error:
        refused = getattr(error, "errors", [])
        codes = {each["pointer"]: each["code"] for each in refused}
        places = [f"/smiles/{i}" for i in range(len(smiles))]
        if getattr(error, "status", 0) != 422 or not codes.keys() <= set(places):
            raise
        rows = [
            {"index": i, "input": text, "error": codes.get(place, "not_smiles")}
            for i, (text, place) in enumerate(zip(smiles, places, strict=True))
        ]
        return pd.DataFrame(rows)


def _smiles(given: str, column: str | None) -> list[str]:
    """Of a file, if there is one of this name."""
    path = Path(given)
    return read_smiles(path, column) if path.is_file() else [given]


def _mask_of(picture: Path, mask: Path | None) -> Path | None:
    if mask is None or not mask.is_dir():
        return mask
    found = sorted(p for p in mask.iterdir() if p.stem == picture.stem)
    if not found:
        raise FileError(f"{mask}: there is no mask {picture.stem}")
    return found[0]


def _values(knobs: list[str] | None) -> dict[str, Any]:
    """`name=value` as JSON has it, or else as text."""
    found = dict[str, Any]()
    for knob in knobs or ():
        name, equals, text = knob.partition("=")
        if not equals:
            raise FileError(f"--set {knob}: give name=value")
        try:
            found[name] = json.loads(text)
        except ValueError:
            found[name] = text
    return found


def _dynamics(knobs: list[str] | None) -> Dynamics | None:
    return cast(Dynamics, _values(knobs)) or None


def _tracked(items: Sequence[T], what: str) -> Iterator[T]:
    """A bar on standard error, where somebody can see one."""
    quiet = len(items) < 2 or not console.is_terminal
    yield from track(items, what, console=console, transient=True, disable=quiet)


def _say(convergence: dict[str, Any]) -> None:
    names = ("energy_drop", "steps", "residual", "stop_reason", "energy_percentile")
    told = "  ".join(f"{name} {convergence.get(name)}" for name in names)
    console.print(told, highlight=False, style="dim")


def _write_samples(samples: Any, path: Path) -> Path:
    """Where they are: of sequences a file of text."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(samples, list):
        path = path.with_suffix(".txt")
        path.write_text("\n".join(samples) + "\n")
    elif path.suffix == ".csv":
        pd.DataFrame(samples.reshape(len(samples), -1)).to_csv(path, index=False)
    else:
        np.save(path, samples, allow_pickle=False)
    return path
