"""What both command lines share: the options of tables, and how a command ends. Needs typer."""

from __future__ import annotations

import os
import sys
import traceback
from typing import Annotated

import typer

from basin_client.errors import BasinError, one_line

IdColumn = Annotated[str, typer.Option(help="Column of the node id.")]
SourceColumn = Annotated[str, typer.Option(help="Column of the id at which an edge begins.")]
TargetColumn = Annotated[str, typer.Option(help="Column of the id at which an edge ends.")]
TypeColumn = Annotated[str, typer.Option(help="Column of the name of an edge's relation.")]
Features = Annotated[
    list[str] | None,
    typer.Option("--features", help="Column of a feature; repeat for more. Else all others."),
]
EdgeFeatures = Annotated[
    list[str] | None,
    typer.Option(
        "--edge-features", help="Column of a number that edges have; repeat for more. Else none."
    ),
]
Drop = Annotated[
    list[str] | None,
    typer.Option("--drop", help="Column to leave out; repeat for more; * for all not needed."),
]
Separator = Annotated[
    str | None,
    typer.Option(help="Separator of CSV; else the most frequent of , ; tab | in the header."),
]
Encoding = Annotated[
    str | None, typer.Option(help="Encoding of text, as cp1252; else UTF-8, or what a BOM says.")
]
Decimal = Annotated[str, typer.Option(help="Decimal point of numbers in text.")]


def run(app: typer.Typer) -> None:
    """Run a command. Exit codes: 0, 1 if something was refused or failed, 2 for wrong usage.

    An error is one line on standard error; with BASIN_DEBUG set, a traceback.
    """
    try:
        app(standalone_mode=True)
    except BrokenPipeError:  # the reader of a pipe, such as `head`, has what it wants
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except Exception as error:
        if os.environ.get("BASIN_DEBUG"):
            traceback.print_exc()
        elif isinstance(error, ValueError | OSError | BasinError):  # messages for users
            print_error(str(error))
        else:
            name = type(error).__name__
            print_error(f"{name}: {one_line(error)} (BASIN_DEBUG=1 prints where)")
        sys.exit(1)


def print_error(message: str) -> None:
    """Print an error on standard error."""
    typer.secho("error ", fg="red", bold=True, nl=False, err=True)
    typer.echo(message, err=True)
