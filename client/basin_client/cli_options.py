"""Options of tables, the same on every command line. Needs typer."""

from __future__ import annotations

from typing import Annotated

import typer

IdColumn = Annotated[str, typer.Option(help="Column of the node id.")]
SourceColumn = Annotated[str, typer.Option(help="Column of the id at which an edge begins.")]
TargetColumn = Annotated[str, typer.Option(help="Column of the id at which an edge ends.")]
TypeColumn = Annotated[str, typer.Option(help="Column of the name of an edge's relation.")]
Features = Annotated[
    list[str] | None,
    typer.Option("--features", help="Column of a feature; repeat for more. Else all others."),
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
