"""Classify images, and answer questions about them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, cast

import pandas as pd
import typer
from basin_client import Client, InputError, ProblemError
from basin_client.errors import one_line
from basin_client.results import ImageResult

from basin.console import (
    AsJson,
    Key,
    Model,
    Out,
    Params,
    Server,
    connect,
    exit_with,
    is_about_one_input,
    parse_dynamics,
    tell,
    with_progress_bar,
)
from basin.io import find_images, require_table_suffix, write_table

images = typer.Typer(no_args_is_help=True, help=__doc__)
Images = Annotated[list[Path], typer.Argument(help="Images, or folders of images.")]
Fit = Annotated[
    str | None,
    typer.Option(help="How an image becomes square: stretch or crop. By default stretch."),
]


@images.command("classify")
def classify_images(
    paths: Images,
    fit: Fit = None,
    model: Model = None,
    params: Params = None,
    server: Server = None,
    key: Key = None,
    out: Out = None,
    as_json: AsJson = False,
) -> None:
    """Say what is on images: one row for each. The exit code is 1 if one could not be read."""
    require_table_suffix(out)
    dynamics = parse_dynamics(params)

    def classify(client: Client, path: Path) -> list[ImageResult]:
        return client.classify_images(path, fit=cast(Any, fit), model=model, dynamics=dynamics)

    _write_results(paths, classify, server, key, out, as_json)


@images.command("answer")
def answer_images(
    paths: Images,
    question: Annotated[
        list[str],
        typer.Option(help="Question about each image; repeat for more."),
    ],
    fit: Fit = None,
    model: Model = None,
    params: Params = None,
    server: Server = None,
    key: Key = None,
    out: Out = None,
    as_json: AsJson = False,
) -> None:
    """Answer questions about images: one row for each image and question."""
    require_table_suffix(out)
    dynamics = parse_dynamics(params)

    def answer(client: Client, path: Path) -> list[ImageResult]:
        return client.answer_images(
            path, question, fit=cast(Any, fit), model=model, dynamics=dynamics
        )

    _write_results(paths, answer, server, key, out, as_json)


def _write_results(
    paths: list[Path],
    ask: Callable[[Client, Path], list[ImageResult]],
    server: str | None,
    key: str | None,
    out: Path | None,
    as_json: bool,
) -> None:
    """Write a table of what a server answers about images, and exit with those that it refused."""
    rows, failures = list[dict[str, Any]](), list[str]()
    files = list(find_images(paths, tell))
    if not files:
        raise InputError("The arguments contain no images.")
    with connect(server, key) as client:
        for path in with_progress_bar(files, "images"):
            try:
                results = ask(client, path)
            except (InputError, ProblemError) as error:
                if not is_about_one_input(error):
                    raise
                failures.append(f"{path}: {one_line(error)}")
                continue
            rows += [_to_row(path, result) for result in results]
    if rows:
        write_table(pd.DataFrame(rows), out, as_json=as_json)
    exit_with(failures)


def _to_row(path: Path, result: ImageResult) -> dict[str, Any]:
    row: dict[str, Any] = {"image": str(path)}
    if "question" in result.raw:
        row["question"] = result.raw["question"]["text"]
    return row | {"label": result.label, "probability": result.probability}
