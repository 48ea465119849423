"""A trained graph classifier as a checkpoint that the server loads."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import numpy as np

from models.checkpoint import Checkpoint, save_checkpoint
from models.manifest import EnergyReference, Manifest
from models.tasks.graph_classifier import GraphClassifier
from training.datasets import GraphDataset, Split
from training.datasets.nodes import draw_sample
from training.export import build_manifest, compute_energy_reference, describe_columns
from training.model_card import build_card
from training.tasks.classify.train import GraphRun

_PROTOCOL = (
    "weights, and the mean and spread of numbers, from the training graphs; epoch and temperature "
    "from the validation graphs; test graphs measured once, at the end"
)
_AS_PUBLISHED = "trained, chosen and measured on the same graphs: this is capacity, not accuracy"


def export_graph_classifier(
    folder: Path, name: str, dataset: GraphDataset, split: Split, run: GraphRun, *, seed: int
) -> Checkpoint:
    """Write `folder`: weights, manifest and model card, read back and verified."""
    network = cast(GraphClassifier, run.network)
    attrs = [g.edge_attr for g in dataset.graphs if g.edge_attr is not None]
    manifest = build_manifest(
        network,
        dataset,
        split,
        run,
        name=name,
        seed=seed,
        unit="graphs",
        fingerprint=dataset.fingerprint(split),
        protocol=_AS_PUBLISHED if split.name == "as-published" else _PROTOCOL,
        features=describe_columns(
            dataset.node_features, np.concatenate([g.x for g in dataset.graphs]).T
        ),
        edge_features=describe_columns(dataset.edge_features, np.concatenate(attrs).T)
        if attrs
        else (),
        temperatures=run.evaluation.temperatures,
        energy=graph_energy_reference(network, dataset, split.train),
        metrics={
            part: {
                task.name: figures.to_dict()
                for task, figures in zip(dataset.tasks, measured, strict=True)
            }
            for part, measured in run.evaluation.parts.items()
        },
    )
    return save_checkpoint(
        folder, network, manifest, build_card(manifest, _card(manifest, dataset))
    )


def graph_energy_reference(
    network: GraphClassifier, dataset: GraphDataset, graphs: np.ndarray
) -> EnergyReference:
    """Quantiles of the final energy per node, CLS counted in the energy, over training graphs."""
    chosen = [dataset.graphs[i] for i in draw_sample(graphs)]
    return compute_energy_reference(network, chosen, [graph.num_nodes for graph in chosen])


def _card(manifest: Manifest, dataset: GraphDataset) -> str:
    t = manifest.training
    rows = "\n".join(
        f"| {part} | {task} | "
        + " | ".join(
            "" if m[key] is None else f"{m[key]:.4f}"
            for key in ("accuracy", "macro_f1", "roc_auc", "cross_entropy", "brier")
        )
        + f" | {m['graphs']} |"
        for part, tasks in manifest.metrics.items()
        for task, m in cast(dict[str, dict[str, float]], tasks).items()
    )
    nodes = sum(graph.num_nodes for graph in dataset.graphs)
    kind = "molecules" if dataset.smiles is not None else "graphs"
    tasks = "; ".join(f"{task.name}: {', '.join(task.labels)}" for task in dataset.tasks)
    return f"""# {manifest.name}

{manifest.architecture.removesuffix("-graph").upper()} that classifies {kind}.

- **Data**: {t["dataset"]}, {len(dataset.graphs)} {kind}, {nodes} nodes in all. {t["note"]}
- **Tasks and labels**: {tasks}.
- **Split**: `{t["split"]}`: {t["train_graphs"]} to train, {t["val_graphs"]} to choose by,
  {t["test_graphs"]} to report on.
- **Protocol**: {t["protocol"]}.
- **Dynamics**: {manifest.knobs.steps} step(s) of {manifest.knobs.step_size} in each of
  {len(manifest.knobs.beta)} block(s).

| part | task | accuracy | macro-F1 | ROC-AUC | cross entropy | Brier | graphs |
|---|---|---|---|---|---|---|---|
{rows}

Probabilities are softmax(logits / T) with T fitted on the validation graphs
({", ".join(f"{value:.3f}" for value in manifest.temperatures)}). They mean something on {kind} like
those above; the energy percentile of an answer says how unlike them one is, as a hint and no more.
"""
