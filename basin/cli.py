"""Serve energy transformers, or use a server from a shell.

Commands that need a server run one of their own without `--server`.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from basin_client import InputError
from basin_client.command_line import run

from basin.jobs import jobs
from basin.serve import OWN_CODE, serve, settings
from service.version import VERSION

# What reads or writes tables needs the extra `cli`: module and function, or group of functions.
_TABLE_COMMANDS = {
    "models": "basin.models:models",
    "score": "basin.score:score",
    "score-transactions": "basin.transactions:score_transactions",
    "classify": "basin.classify:classify",
    "complete": "basin.complete:complete",
    "sample": "basin.sample:sample",
}
_TABLE_GROUPS = {"graphs": "basin.graphs:graphs", "images": "basin.images:images"}
_PASSED_ON = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}

app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False, help=__doc__)


def _print_version(is_asked: bool) -> None:
    if is_asked:
        print(f"basin {VERSION}")
        raise typer.Exit


@app.callback()
def _options(
    _version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version.", callback=_print_version, is_eager=True
        ),
    ] = False,
) -> None:
    pass


def _import(where: str) -> Any:
    module, _, name = where.partition(":")
    return getattr(import_module(module), name)


def _require_tables(context: typer.Context) -> NoReturn:
    """Needs pandas: pip install 'basin-server[cli]'"""
    sys.exit(f"{context.info_name} needs pandas. Run: pip install 'basin-server[cli]'")


def keys(context: typer.Context) -> NoReturn:
    """Create an API key of a server; the same as `python -m service key`."""
    os.execv(sys.executable, [sys.executable, *OWN_CODE, "-m", "service", "key", *context.args])


def train(context: typer.Context) -> NoReturn:
    """Train a model; the same as `python -m training`. Needs the extra `train`."""
    if find_spec("lightning_fabric") is None:
        sys.exit("Training needs more libraries. Run: pip install 'basin-server[train]'")
    os.execv(sys.executable, [sys.executable, *OWN_CODE, "-m", "training", *context.args])


def onnx(
    checkpoint: Annotated[Path, typer.Argument(help="Folder of a checkpoint.")],
    out: Annotated[Path, typer.Argument(help="Folder for block-0.onnx and so on.")],
) -> None:
    """Write the step of each block as an ONNX graph that contains its weights."""
    from basin.onnx_export import export_steps

    for path in export_steps(checkpoint, out):
        print(path)


def seal(
    checkpoint: Annotated[Path, typer.Argument(help="Folder of a checkpoint.")],
) -> None:
    """Accept an edit of manifest.json or README.md: write the digest and the hash anew."""
    from models.checkpoint import seal_checkpoint
    from models.manifest import CheckpointError

    try:
        sealed = seal_checkpoint(checkpoint)
    except CheckpointError as error:
        raise InputError(str(error)) from error
    print(f"{checkpoint} {sealed.sha256}")


app.command()(serve)
app.command()(settings)
app.command(context_settings=_PASSED_ON)(keys)
app.command(context_settings=_PASSED_ON)(train)
app.command()(onnx)
app.command()(seal)
app.add_typer(jobs, name="jobs")
if find_spec("pandas") is not None:
    for name, where in _TABLE_COMMANDS.items():
        app.command(name)(_import(where))
    for name, where in _TABLE_GROUPS.items():
        app.add_typer(_import(where), name=name)
else:
    for name in [*_TABLE_COMMANDS, *_TABLE_GROUPS]:
        app.command(name, context_settings=_PASSED_ON)(_require_tables)


def main() -> None:
    run(app)
