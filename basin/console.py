"""What the commands share: options, messages, and the connection to a server."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Annotated, Any, TypeVar, cast

import typer
from basin_client import Client, Dynamics, InputError, ProblemError
from basin_client.command_line import print_error
from rich.console import Console
from rich.progress import track

T = TypeVar("T")
_STARTUP_RETRIES = 40

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
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of CSV.")]


def tell(note: str) -> None:
    console.print(note, markup=False, highlight=False, soft_wrap=True, style="dim")


def exit_with(failures: Sequence[str]) -> None:
    """Print what failed, and end with exit code 1 if anything did."""
    for failure in failures:
        print_error(failure)
    if failures:
        raise typer.Exit(1)


def require_server(server: str | None) -> str:
    """Return the URL of the server, for commands about what a server stores."""
    if server is None:
        raise typer.BadParameter(
            "Graphs and jobs are on a server: give --server, or set BASIN_URL."
        )
    return server


@contextmanager
def connect(server: str | None, key: str | None) -> Iterator[Client]:
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


def is_about_one_input(error: InputError | ProblemError) -> bool:
    """Whether an error is about one input, so that the others are still done."""
    return isinstance(error, InputError) or error.status in (413, 415, 422)


def parse_params(params: list[str] | None) -> dict[str, Any]:
    """Parse `name=value` arguments; a value is JSON, or else text."""
    values = dict[str, Any]()
    for param in params or ():
        name, equals, text = param.partition("=")
        if not equals:
            raise typer.BadParameter(f"--set {param}: expected name=value, for example steps=8.")
        try:
            values[name] = json.loads(text)
        except ValueError:
            values[name] = text
    return values


def parse_dynamics(params: list[str] | None) -> Dynamics | None:
    return cast(Dynamics, parse_params(params)) or None


def with_progress_bar(items: Sequence[T], description: str) -> Iterator[T]:
    """Iterate with a progress bar on standard error, if that is a terminal."""
    disable = len(items) < 2 or not console.is_terminal
    yield from track(items, description, console=console, transient=True, disable=disable)
