"""The commands of fraud in graphs: train one checkpoint, or compare models."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from basin_client.command_line import (
    Decimal,
    Drop,
    EdgeFeatures,
    Encoding,
    Features,
    IdColumn,
    Separator,
    SourceColumn,
    TargetColumn,
    TypeColumn,
)
from basin_client.graph_tables import ColumnOptions
from rich.progress import Progress

from models.checkpoint import CARD, load_checkpoint, save_checkpoint
from models.tasks.node_scorer import NodeScorer
from training.cli_options import (
    DataOption,
    DeviceOption,
    EpochsOption,
    LearnStrength,
    Members,
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
from training.common.results_log import ResultsLog, config_hash
from training.datasets import NodeDataset, Split, load_node_dataset, load_node_tables, random_splits
from training.datasets.splits import OPTION_HELP, write_split
from training.provenance import load_node_data
from training.tasks.anomaly import results_table as tables
from training.tasks.anomaly.configs import (
    ABLATIONS,
    DEFAULT_FANOUTS,
    HYBRID,
    WITH_LABELS,
    node_train_config,
    smoke_node_config,
)
from training.tasks.anomaly.export import export_node_scorer
from training.tasks.anomaly.neighborhoods import choose_neighborhood, compute_request_energies
from training.tasks.anomaly.search import MODELS, Trial, list_variants, search_recipe
from training.tasks.anomaly.task import NodeTrainConfig
from training.tasks.anomaly.train import train_node_scorer


def _splits(dataset: NodeDataset, ratio: float | None, count: int) -> tuple[Split, ...]:
    if ratio is None and dataset.official:
        return dataset.official
    return random_splits(dataset, 0.4 if ratio is None else ratio, count)


def _choose_number(split: str, dataset: NodeDataset, ratio: float | None) -> int:
    """Return which of the splits is meant: one that the user has described is the only one."""
    if split.isdigit():
        return int(split)
    if dataset.ids is None:
        raise typer.BadParameter(f"--split {split} is of --nodes; {dataset.name} has numbers")
    if ratio is not None:
        raise typer.BadParameter("--ratio is of random splits: give it or --split")
    return 0


def anomaly(
    model: Annotated[str | None, typer.Option(help="cdat, which is the default, or et")] = None,
    dataset: Annotated[
        str,
        typer.Option(
            help="tolokers, amazon, yelpchi, tfinance, tsocial, payments-accounts or pyg:NAME"
        ),
    ] = "tolokers",
    nodes: Annotated[Path | None, typer.Option(help="your nodes, a table")] = None,
    edges: Annotated[
        Path | None, typer.Option(help="your edges: source, target[, type, features]")
    ] = None,
    label: Annotated[str, typer.Option(help="column of the label in --nodes")] = "is_fraud",
    id_column: IdColumn = "id",
    source_column: SourceColumn = "source",
    target_column: TargetColumn = "target",
    type_column: TypeColumn = "type",
    features: Features = None,
    edge_features: EdgeFeatures = None,
    drop: Drop = None,
    separator: Separator = None,
    encoding: Encoding = None,
    decimal: Decimal = ".",
    ratio: Annotated[
        float | None, typer.Option(help="share of labelled nodes to train on: 0.01, 0.4, 0.7")
    ] = None,
    split: Annotated[
        str,
        typer.Option(
            help="number of a random or official split; or, of --nodes, time:NAME, the rows with "
            f"the latest values test; {OPTION_HELP}"
        ),
    ] = "0",
    split_out: Annotated[
        Path | None, typer.Option(help="write the id and part of each labelled node, as CSV")
    ] = None,
    ablation: Annotated[str, typer.Option(help=", ".join(ABLATIONS))] = "none",
    hybrid: Annotated[
        bool, typer.Option(help="with boosted trees that the network reads and is mixed with")
    ] = False,
    labels: Annotated[
        bool, typer.Option(help="a hybrid that reads labels of neighbours too, where they are sent")
    ] = False,
    members: Members = 1,
    search: Annotated[
        float | None,
        typer.Option(
            help="minutes in which to look for a better recipe first, by the validation nodes; of "
            "both models and with trees and without, unless --model, --hybrid or --labels says",
            min=0,
        ),
    ] = None,
    seed: int = 0,
    resonance: Resonating = None,
    learn_strength: LearnStrength = False,
    epochs: EpochsOption = None,
    batch_nodes: Annotated[
        int | None, typer.Option(help="number of nodes per step, with their sampled neighbourhoods")
    ] = None,
    fanouts: Annotated[
        str | None, typer.Option(help="neighbours to sample per hop, as in 16,16")
    ] = None,
    name: Name = None,
    out: Out = None,
    run: RunFolder = None,
    data: DataOption = None,
    device: DeviceOption = "auto",
    precision: PrecisionOption = "32-true",
    smoke_test: SmokeOption = False,
) -> None:
    """Train one checkpoint. Killed and started again with the same --run-folder, it goes on."""
    if (nodes is None) != (edges is None):
        raise typer.BadParameter("--nodes and --edges go together")
    if nodes and edges:
        columns = ColumnOptions(
            *(id_column, source_column, target_column, type_column, features, drop or (), decimal),
            edge_features=edge_features or (),
        )
        source = load_node_tables(
            *(nodes, edges, label, columns),
            split=None if split.isdigit() else split,
            separator=separator,
            encoding=encoding,
        )
        if source.note:
            console.print(source.note, markup=False, highlight=False)
    else:
        source = load_node_dataset(dataset, data)
    number = _choose_number(split, source, ratio)
    splits = _splits(source, ratio, number + 1)
    if number >= len(splits):
        raise typer.BadParameter(f"{source.name} has splits 0 to {len(splits) - 1}")
    chosen_split = splits[number]
    if split_out is not None:
        ids = np.arange(len(source.labels)) if source.ids is None else source.ids
        write_split(split_out, ids, chosen_split)
    if ablation not in ABLATIONS:
        raise typer.BadParameter(f"ablation must be one of {', '.join(ABLATIONS)}")
    size = source.graph.edge_index.shape[1]
    if (hybrid or labels) and ablation != "none":
        given = "--hybrid" if hybrid else "--labels"
        raise typer.BadParameter(f"--ablation is of networks without trees: leave out {given}")
    variant = WITH_LABELS if labels else HYBRID if hybrid else ablation
    added = with_resonance(resonance, learn_strength)

    def adapt(recipe: NodeTrainConfig) -> NodeTrainConfig:
        recipe = smoke_node_config(recipe) if smoke_test else recipe
        return replace(recipe, config=recipe.config | added)

    fabric = create_fabric(device, precision)
    trials = list[Trial]()
    if search is None:
        rows = len(chosen_split.train)
        chosen = adapt(node_train_config(model or "cdat", source.name, rows, variant, edges=size))
    else:
        fixed = {"--ablation": ablation != "none", "--epochs": epochs, "--batch-nodes": batch_nodes}
        if given := [option for option, value in fixed.items() if value]:
            raise typer.BadParameter(f"--search chooses what {given[0]} says: leave one out")
        if name or out:
            checkpoint_folder(name or "search", out)  # before the time is spent
        log = _search_log(run, source.name, [source.fingerprint(chosen_split), seed])
        with Progress(console=console, disable=not fabric.is_global_zero) as progress:
            trials = search_recipe(
                *(source, chosen_split, search, ResultsLog(log, fabric)),
                models=MODELS if model is None else (model,),
                variants=list_variants(hybrid=hybrid, labels=labels),
                seed=seed,
                fabric=fabric,
                progress=progress,
                tell=lambda line: console.print(line, markup=False, highlight=False),
                adapt=adapt,
            )
        chosen, tree = trials[0].recipe, trials[0].recipe.trees
        variant = WITH_LABELS if chosen.labels else "none" if tree is None else HYBRID
        console.print(f"The best of {len(trials)} recipes is trained: {trials[0].name}")
    chosen = replace(chosen, members=members)
    if epochs is not None:
        chosen = replace(chosen, epochs=epochs)
    if batch_nodes is not None:
        sampled = fanouts or ",".join(map(str, chosen.fanouts or DEFAULT_FANOUTS))
        chosen = replace(
            chosen, batch_nodes=batch_nodes, fanouts=tuple(map(int, sampled.split(",")))
        )
    elif fanouts is not None:
        raise typer.BadParameter("--fanouts goes with --batch-nodes")
    suffix = f"-{variant}" if chosen.trees is not None else ""
    suffix += f"-{members}" if members > 1 else ""
    named = f"{chosen.model}-{source.name.removesuffix('-single')}{suffix}"
    name, folder = checkpoint_folder(name or named, out)
    if run is None:
        run = run_folder(name, chosen, seed, source.fingerprint(chosen_split))
    with Progress(console=console, disable=not fabric.is_global_zero) as progress:
        result = train_node_scorer(
            source,
            chosen_split,
            chosen,
            seed=seed,
            fabric=fabric,
            run_folder=run,
            progress=progress,
        )
    if fabric.is_global_zero:
        console.print("Choosing what of a stored graph a score reads: minutes in dense graphs.")
        written = export_node_scorer(
            *(folder, name, source, chosen_split, result), seed=seed, tried=len(trials)
        )
        for part, metrics in result.evaluation.parts.items():
            console.print(
                f"{part:5} ROC-AUC {metrics.roc_auc:.4f}  PR-AUC {metrics.pr_auc:.4f}  "
                f"macro-F1 {metrics.macro_f1:.4f}  recall@k {metrics.recall_at_k:.4f}"
            )
        if result.with_labels is not None:
            shown = result.with_labels.parts["test"]
            console.print(
                f"test with labels of the training nodes: ROC-AUC {shown.roc_auc:.4f}  PR-AUC "
                f"{shown.pr_auc:.4f}  macro-F1 {shown.macro_f1:.4f}"
            )
        typer.echo(f"{folder} {written.sha256}")


def _search_log(run: Path | None, dataset: str, identity: list[Any]) -> Path:
    """Return where what was tried is kept, so that a search that was killed goes on."""
    if run is not None:
        return run / "search.jsonl"
    return Path("runs") / f"search-{dataset}-{config_hash(identity)[:8]}.jsonl"


def neighborhood(
    checkpoint: Annotated[Path, typer.Argument(help="folder of a model that scores graphs")],
    data: DataOption = None,
) -> None:
    """Choose what of a stored graph the server reads for a score, make the energies that answers
    are compared with, and write both to a checkpoint. Training does so too.
    """
    loaded = load_checkpoint(checkpoint)
    if not isinstance(loaded.network, NodeScorer) or loaded.manifest.transactions is not None:
        raise typer.BadParameter(f"{checkpoint} does not score graphs of nodes and edges")
    source, split = load_node_data(loaded.manifest, data)
    network, threshold = loaded.network, loaded.manifest.threshold
    calibration, graph = loaded.manifest.calibration, source.graph
    chosen = choose_neighborhood(network, graph, split.train, threshold, calibration)
    energy = compute_request_energies(network, graph, split.train, chosen)
    manifest = loaded.manifest.model_copy(update={"neighborhood": chosen, "energy": energy})
    save_checkpoint(checkpoint, loaded.network, manifest, (checkpoint / CARD).read_text("utf-8"))
    console.print(
        f"{manifest.name}: {chosen.hops} hops, {chosen.max_neighbors} neighbours; "
        f"{100 * chosen.labels_equal:.1f} % of {chosen.nodes} labels as of the whole graph"
    )


def table(
    dataset: Annotated[
        str,
        typer.Option(
            help="tolokers, amazon, yelpchi, tfinance, tsocial, payments-accounts or pyg:NAME"
        ),
    ] = "tolokers",
    ratio: Annotated[float | None, typer.Option(help="else the official splits, or 0.4")] = None,
    splits: Annotated[int, typer.Option(help="how many")] = 10,
    models: Annotated[
        str,
        typer.Option(
            help="comma-separated; cdat:no-w is an ablation, et:hybrid has boosted trees, "
            "boosting_bag has these alone; et:labels and boosting_bag:labels read labels of "
            "neighbours too; et:labels*3 is an ensemble of three networks"
        ),
    ] = ("cdat,et,gcn,graph_transformer,gradient_boosting,random_forest"),
    against: Annotated[
        str | None,
        typer.Option(help="model that the others are compared with, split by split; else the last"),
    ] = None,
    out: ResultsLogOption = None,
    data: DataOption = None,
    device: DeviceOption = "auto",
    precision: PrecisionOption = "32-true",
) -> None:
    """Train every model on every split and print the table in Markdown, and the differences."""
    names = models.split(",")
    if against is not None and against not in names:
        raise typer.BadParameter(f"--against {against}: not one of --models {models}")
    source = load_node_dataset(dataset, data)
    chosen = _splits(source, ratio, splits)[:splits]
    fabric = create_fabric(device, precision)
    protocol = "official splits" if chosen[0].name.startswith("official") else f"{ratio or 0.4:.0%}"
    path = out or Path("runs/tables") / f"{source.name}-{chosen[0].name.rsplit('-', 1)[0]}.jsonl"
    with Progress(console=console) as progress:
        results = tables.compute_rows(source, chosen, names, path, fabric, progress)
    typer.echo(tables.format_table(source, protocol, results))
    if len(names) > 1:
        typer.echo(f"\n{tables.format_differences(results, against or names[-1], chosen)}")
