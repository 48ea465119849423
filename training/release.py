"""The checkpoints that ship, and the command that makes them again."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import typer

from models.checkpoint import CARD, load_checkpoint
from training.cli_options import DataOption, DeviceOption, PrecisionOption
from training.common.hardware import FULL_PRECISION
from training.datasets import data_folder, load_node_dataset
from training.datasets.payments import simulate_payments
from training.datasets.terms import DATASET_TERMS
from training.model_card import rewrite_card
from training.tasks.anomaly.cli import anomaly
from training.tasks.anomaly.transactions.cli import transactions
from training.tasks.classify.cli import SplitMethod, classify
from training.tasks.complete.cli import complete
from training.tasks.images.cli import DatasetName, recognise
from training.tasks.photos.cli import photos


def _one_relation(
    dataset: str, data: Path | None = None, *, model: str = "cdat", **given: Any
) -> None:
    if (found := load_node_dataset(dataset, data).name) != f"{dataset}-single":
        raise typer.BadParameter(f"what ships is of one relation; this is {found} in full")
    anomaly(model, dataset, data=data, **given)


def _molecules(
    model: str, table: str, label: str, split: SplitMethod, data: Path | None = None, **given: Any
) -> None:
    file = (data or data_folder()) / "molecules" / f"{table}.csv"
    classify(model, smiles=file, label=[label], split=split, data=data, **given)


def _payments(data: Path | None = None, **given: Any) -> None:
    """The simulated payments of `python -m training payments`, which need no data."""
    with TemporaryDirectory() as folder:
        table = Path(folder) / "payments.csv"
        simulate_payments(50_000).to_csv(table, index=False)
        transactions(
            table,
            "is_fraud",
            category=["type"],
            shared=["device"],
            id_column="id",
            drop=["typology"],
            windows="3600,86400,604800",
            budget=0.01,
            **given,
        )


SHIPPED_CHECKPOINTS: dict[str, Callable[..., None]] = {
    "cdat-tolokers": partial(anomaly, "cdat", "tolokers"),
    "et-tolokers": partial(anomaly, "et", "tolokers"),
    "et-tolokers-hybrid": partial(anomaly, "et", "tolokers", labels=True),
    "cdat-amazon": partial(_one_relation, "amazon"),
    "cdat-yelpchi": partial(_one_relation, "yelpchi"),
    "et-yelpchi-hybrid": partial(_one_relation, "yelpchi", model="et", labels=True, members=2),
    "cdat-payments": _payments,
    "cdat-ames": partial(_molecules, "cdat", "AMES", "active", SplitMethod.SCAFFOLD),
    "et-ames": partial(_molecules, "et", "AMES", "active", SplitMethod.SCAFFOLD),
    "cdat-bbbp": partial(_molecules, "cdat", "BBBP", "p_np", SplitMethod.BALANCED),
    "et-proteins": partial(classify, "et", "PROTEINS"),
    "ait-clevr": partial(recognise, DatasetName.CLEVR),
    "ait-cifar10": partial(recognise, DatasetName.CIFAR10),
    "et-photos": partial(photos, size="large"),
    "et-mnist": partial(complete, "mnist", brief=True),
}
"""What trains each: graphs of fraud on split 0, official or 40 %, molecules by scaffold, others on
fold 0, digits as a CPU can, photographs as a GPU, pictures as their recipes say."""


def ship(
    only: Annotated[str | None, typer.Option(help="one of them, as in cdat-tolokers")] = None,
    folder: Annotated[Path, typer.Option(help="where the checkpoints go")] = Path("checkpoints"),
    data: DataOption = None,
    device: DeviceOption = "auto",
    precision: PrecisionOption = FULL_PRECISION,
) -> None:
    """Retrain the checkpoints that ship. Killed and started again, it goes on."""
    if only is not None and only not in SHIPPED_CHECKPOINTS:
        raise typer.BadParameter(f"known are {', '.join(SHIPPED_CHECKPOINTS)}")
    for name, train in SHIPPED_CHECKPOINTS.items():
        if only in (None, name):
            out = folder / name
            train(name=name, out=out, data=data, device=device, precision=precision)
            _add_terms(out)


def cards(
    folder: Annotated[Path, typer.Option(help="where the checkpoints are")] = Path("checkpoints"),
) -> None:
    """Write metadata and terms of the cards of the checkpoints that ship, from their manifests."""
    for name in SHIPPED_CHECKPOINTS:
        _add_terms(folder / name)
        typer.echo(folder / name / CARD)


def _add_terms(folder: Path) -> None:
    dataset = str(load_checkpoint(folder).manifest.training["dataset"])
    rewrite_card(folder, DATASET_TERMS[dataset])
