"""The commands of graph classification: train one checkpoint, or compare models."""

from __future__ import annotations

from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from basin_client.command_line import Encoding, Separator
from rich.progress import Progress

from training.cli_options import (
    DataOption,
    DeviceOption,
    EpochsOption,
    LearnStrength,
    Name,
    Out,
    PrecisionOption,
    Resonating,
    ResultsLogOption,
    RunFolder,
    SmokeOption,
    checkpoint_folder,
    console,
    create_fabric,
    run_folder,
    with_resonance,
)
from training.datasets import (
    TU_DATASETS,
    GraphDataset,
    Split,
    as_published_split,
    balanced_scaffold_split,
    k_folds,
    load_smiles,
    load_tu,
    random_split,
    scaffold_split,
)
from training.tasks.classify import results_table as tables
from training.tasks.classify.configs import (
    as_published_config,
    graph_train_config,
    smoke_graph_config,
)
from training.tasks.classify.export import export_graph_classifier
from training.tasks.classify.train import train_graph_classifier


class EvaluationProtocol(StrEnum):
    """How a graph comes to be a test graph."""

    HONEST = "honest"
    AS_PUBLISHED = "as-published"


class SplitMethod(StrEnum):
    """How graphs are split: folds, or 80/10/10."""

    FOLD = "fold"
    RANDOM = "random"
    SCAFFOLD = "scaffold"
    BALANCED = "balanced-scaffold"


Dataset = Annotated[str | None, typer.Option(help=", ".join(TU_DATASETS))]
Smiles = Annotated[Path | None, typer.Option(help="your molecules, a table")]
SmilesColumn = Annotated[str, typer.Option(help="column of the SMILES in --smiles")]
Labels = Annotated[
    list[str] | None, typer.Option("--label", help="column of a label in --smiles; repeat for more")
]
SplitBy = Annotated[
    SplitMethod | None,
    typer.Option(help="else fold, or scaffold for molecules", case_sensitive=False),
]
Folds = Annotated[int, typer.Option(help="how many, stratified")]


def _load(
    dataset: str | None,
    smiles: Path | None,
    smiles_column: str,
    labels: list[str] | None,
    data: Path | None,
    separator: str | None,
    encoding: str | None,
) -> GraphDataset:
    if (dataset is None) == (smiles is None):
        raise typer.BadParameter("give either --dataset or --smiles")
    if smiles is not None:
        if not labels:
            raise typer.BadParameter("--smiles needs at least one --label")
        source = load_smiles(smiles, smiles_column, labels, separator=separator, encoding=encoding)
        if source.note:
            console.print(source.note, markup=False, highlight=False)
        return source
    assert dataset is not None
    return load_tu(dataset, data)


def _splits(
    dataset: GraphDataset, how: SplitMethod | None, protocol: EvaluationProtocol, folds: int
) -> tuple[Split, ...]:
    """Every split of a protocol; of random ones, as many as there would be folds."""
    if protocol is EvaluationProtocol.AS_PUBLISHED:
        return (as_published_split(dataset),)
    how = how or (SplitMethod.FOLD if dataset.smiles is None else SplitMethod.SCAFFOLD)
    if how is SplitMethod.FOLD:
        return k_folds(dataset, folds)
    if how is SplitMethod.SCAFFOLD:
        return (scaffold_split(dataset),)
    draw = random_split if how is SplitMethod.RANDOM else balanced_scaffold_split
    return tuple(draw(dataset, seed) for seed in range(folds))


def classify(
    model: Annotated[str, typer.Option(help="cdat or et")] = "cdat",
    dataset: Dataset = None,
    smiles: Smiles = None,
    smiles_column: SmilesColumn = "smiles",
    label: Labels = None,
    separator: Separator = None,
    encoding: Encoding = None,
    split: SplitBy = None,
    protocol: EvaluationProtocol = EvaluationProtocol.HONEST,
    folds: Folds = 10,
    fold: Annotated[int, typer.Option(help="which fold, or which random split")] = 0,
    balanced: Annotated[bool, typer.Option(help="weigh rare classes up")] = False,
    seed: int = 0,
    resonance: Resonating = None,
    learn_strength: LearnStrength = False,
    epochs: EpochsOption = None,
    name: Name = None,
    out: Out = None,
    run: RunFolder = None,
    data: DataOption = None,
    device: DeviceOption = "auto",
    precision: PrecisionOption = "32-true",
    smoke: SmokeOption = False,
) -> None:
    """Train a checkpoint that classifies graphs. Killed and started again, it goes on."""
    if model not in tables.OURS:
        raise typer.BadParameter(f"model must be one of {', '.join(tables.OURS)}")
    source = _load(dataset, smiles, smiles_column, label, data, separator, encoding)
    splits = _splits(source, split, protocol, folds)
    if not 0 <= fold < len(splits):
        raise typer.BadParameter(f"{source.name} has splits 0 to {len(splits) - 1}")
    chosen = replace(
        graph_train_config(model, source.name, molecules=source.smiles is not None),
        balanced=balanced,
    )
    if protocol is EvaluationProtocol.AS_PUBLISHED:
        chosen = as_published_config(chosen, source.name)
    if smoke:
        chosen = smoke_graph_config(chosen)
    added = with_resonance(resonance, learn_strength)
    chosen = replace(chosen, config=chosen.config | added)
    if epochs is not None:
        chosen = replace(chosen, epochs=epochs)
    name, folder = checkpoint_folder(name or f"{model}-{source.name}", out)
    if run is None:
        run = run_folder(name, chosen, seed, source.fingerprint(splits[fold]))
    fabric = create_fabric(device, precision)
    with Progress(console=console, disable=not fabric.is_global_zero) as progress:
        result = train_graph_classifier(
            source,
            splits[fold],
            chosen,
            seed=seed,
            fabric=fabric,
            run_folder=run,
            progress=progress,
        )
    if fabric.is_global_zero:
        written = export_graph_classifier(folder, name, source, splits[fold], result, seed=seed)
        for part, tasks in result.evaluation.parts.items():
            for task, m in zip(source.tasks, tasks, strict=True):
                auc = "     -" if m.roc_auc is None else f"{m.roc_auc:.4f}"
                console.print(
                    f"{part:5} {task.name}: accuracy {m.accuracy:.4f}  ROC-AUC {auc}  "
                    f"macro-F1 {m.macro_f1:.4f}  {m.graphs} graphs"
                )
        typer.echo(f"{folder} {written.sha256}")


def classify_table(
    dataset: Dataset = None,
    smiles: Smiles = None,
    smiles_column: SmilesColumn = "smiles",
    label: Labels = None,
    separator: Separator = None,
    encoding: Encoding = None,
    split: SplitBy = None,
    protocol: EvaluationProtocol = EvaluationProtocol.HONEST,
    folds: Folds = 10,
    only: Annotated[int | None, typer.Option(help="maximum number of splits")] = None,
    models: Annotated[str | None, typer.Option(help="comma-separated")] = None,
    seeds: Annotated[int, typer.Option(help="runs on each split, from other weights")] = 1,
    out: ResultsLogOption = None,
    data: DataOption = None,
    device: DeviceOption = "auto",
    precision: PrecisionOption = "32-true",
    smoke: SmokeOption = False,
) -> None:
    """Train every model on every split and print the table in Markdown."""
    source = _load(dataset, smiles, smiles_column, label, data, separator, encoding)
    splits = _splits(source, split, protocol, folds)[:only]
    names = models or ("cdat,et,gin,mlp" + (",forest" if source.smiles is not None else ""))
    title = splits[0].name
    if len(splits) > 1:
        title = f"{title.partition('-0')[0]}, {len(splits)} of {folds}"
    kind = "-smoke" if smoke else ""
    path = out or Path("runs/tables") / f"{source.name}-{protocol.value}{kind}.jsonl"
    fabric = create_fabric(device, precision)
    with Progress(console=console) as progress:
        results = tables.compute_rows(
            source, splits, names.split(","), path, fabric, progress, seeds=seeds, smoke=smoke
        )
    typer.echo(tables.format_table(source, title, results))
