"""Options that every command has."""

from __future__ import annotations

import os
import re
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from lightning_fabric import Fabric
from pydantic import ValidationError
from rich.console import Console

from models import checkpoint
from models.resonance import Resonance
from training.common.results_log import config_hash

DataOption = Annotated[Path | None, typer.Option(help="folder with the datasets; else BASIN_DATA")]
DeviceOption = Annotated[str, typer.Option(help="auto, cpu or cuda; torchrun sets how many")]
PrecisionOption = Annotated[str, typer.Option(help="32-true, or bf16-mixed where it is faster")]
RunFolder = Annotated[
    Path | None, typer.Option("--run-folder", help="for logs and resuming; else in runs/")
]


EpochsOption = Annotated[int | None, typer.Option(help="instead of the recipe's", min=0)]
Name = Annotated[str | None, typer.Option(help="of the checkpoint; else model-dataset")]
Out = Annotated[Path | None, typer.Option(help="checkpoint folder to write")]
ResultsLogOption = Annotated[
    Path | None, typer.Option(help="JSON lines, one a result; resumed from")
]
Resonating = Annotated[
    str | None,
    typer.Option(
        "--resonance",
        help="prior on the logits of attention, as in strength=0.3,vigilance=0.5; on: the defaults",
    ),
]
LearnStrength = Annotated[
    bool, typer.Option("--learn-strength", help="of the resonance, for each head")
]
Members = Annotated[
    int,
    typer.Option(help="networks of different seeds, served as one model: the mean", min=1),
]
SmokeOption = Annotated[bool, typer.Option("--smoke", help="a minute, to see it run")]

console = Console(stderr=True)


def with_resonance(given: str | None, learn: bool) -> dict[str, Any]:
    """What `--resonance` and `--learn-strength` add to the configuration of a network."""
    if given is None:
        if learn:
            raise typer.BadParameter("--learn-strength goes with --resonance")
        return {}
    pairs = [] if given == "on" else [part.partition("=") for part in given.split(",")]
    try:
        found = Resonance.model_validate_strings({name.strip(): value for name, _, value in pairs})
    except ValidationError as error:
        told = error.errors(include_url=False)[0]
        where = ".".join(map(str, told["loc"])) or "--resonance"
        raise typer.BadParameter(f"--resonance: {where}: {told['msg']}") from None
    return {"resonance": found.model_dump(mode="json"), "learn_strength": learn}


def checkpoint_folder(wanted: str, out: Path | None) -> tuple[str, Path]:
    """The name of a checkpoint and where it goes, before hours are spent on it.

    Raises:
        CheckpointError: the folder holds something else.
    """
    name = checkpoint_name(wanted)
    folder = out or Path("runs/checkpoints") / name
    checkpoint.require_replaceable(folder)
    return name, folder


def checkpoint_name(wanted: str) -> str:
    """A name that a manifest takes."""
    name = re.sub(r"[^a-z0-9._-]+", "-", wanted.lower()).strip("-._")[:64]
    if not name:
        raise typer.BadParameter(f"{wanted!r} leaves no name: use letters and digits")
    return name


def run_folder(name: str, recipe: Any, seed: int, data: str) -> Path:
    """Where a run keeps its state: named after all that it depends on, the data too."""
    return Path("runs") / f"{name}-{config_hash([asdict(recipe), seed, data])[:8]}"


def create_fabric(device: str, precision: str) -> Fabric:
    """The processes and devices to train on."""
    accelerator = {"auto": "auto", "cpu": "cpu", "cuda": "gpu"}.get(device)
    if accelerator is None:
        raise typer.BadParameter("device must be auto, cpu or cuda")
    # torchrun tells by the environment how many processes there are; without it there is one.
    world = int(os.environ.get("WORLD_SIZE", "1"))
    local = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    fabric = Fabric(
        accelerator=accelerator,
        strategy="ddp" if world > 1 else "auto",
        devices=local,
        num_nodes=world // local,
        precision=precision,  # type: ignore[arg-type]
    )
    fabric.launch()
    return fabric
