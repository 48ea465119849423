"""A trained network as a checkpoint that the server loads."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from models.base import DynamicsParams
from models.checkpoint import Checkpoint, EnergyReference, Manifest, save_checkpoint
from models.inputs.graph import Column
from models.inputs.graph_batch import GraphBatch
from models.tasks.node_scorer import NodeScorer
from training.datasets import NodeDataset, Split
from training.export import build_manifest, describe_columns, draw_sample, energy_quantiles
from training.tasks.anomaly.neighbor_sampler import NeighborSampler
from training.tasks.anomaly.train import NodeRun

_PROTOCOL = (
    "weights from the training nodes; epoch, calibration and threshold from the validation nodes; "
    "feature bins from all nodes without labels; test nodes measured once, at the end"
)

REQUEST_FANOUTS = (16, 8)
"""Neighbours of a node, and of each of those, in what is taken for a client's request."""


def export_node_scorer(
    folder: Path, name: str, dataset: NodeDataset, split: Split, run: NodeRun, *, seed: int
) -> Checkpoint:
    """Write `folder`: weights, manifest and model card, read back and verified."""
    network, evaluation = run.network, run.evaluation
    manifest = build_manifest(
        network,
        dataset,
        split,
        run,
        name=name,
        seed=seed,
        unit="nodes",
        fingerprint=dataset.fingerprint(split),
        protocol=_PROTOCOL,
        features=describe_columns([Column(name) for name in dataset.features], dataset.graph.x),
        threshold=evaluation.threshold,
        calibration=evaluation.calibration,
        energy=node_energy_reference(network, network.pack([dataset.graph]), split.train),
        metrics={part: metrics.to_dict() for part, metrics in evaluation.parts.items()},
    )
    return save_checkpoint(folder, network, manifest, _card(manifest, dataset))


def node_energy_reference(
    network: NodeScorer, batch: GraphBatch, nodes: np.ndarray
) -> EnergyReference:
    """Quantiles of final energy per node over `neighbourhoods` of training nodes."""
    energies = []
    for part in sample_neighborhoods(batch, draw_sample(nodes)):
        output = network.infer(part, [DynamicsParams()])
        total = sum(float(s.trace[-1].energy_R.sum()) for s in output.solutions)
        energies.append(total / len(part.x_NF))
    return energy_quantiles(energies)


def sample_neighborhoods(
    batch: GraphBatch, nodes: np.ndarray, fanouts: Sequence[int] = REQUEST_FANOUTS
) -> Iterator[GraphBatch]:
    """What a client posts to ask about one node, for each of `nodes`, which comes first: itself,
    its neighbours a hop away, and theirs, at most `fanouts` of each."""
    sampler = NeighborSampler(batch, fanouts)
    for node in nodes:
        yield sampler.sample(np.array([node]), seed=int(node))[0]


def _card(manifest: Manifest, dataset: NodeDataset) -> str:
    test: dict[str, float] = manifest.metrics["test"]  # type: ignore[assignment]
    t = manifest.training
    fraud = float((dataset.labels == 1).sum() / (dataset.labels >= 0).sum())
    rows = "\n".join(
        f"| {part} | "
        + " | ".join(
            f"{m[k]:.4f}" for k in ("roc_auc", "pr_auc", "macro_f1", "recall_at_k", "brier")
        )
        + f" | {m['nodes']} | {m['frauds']} |"
        for part, m in manifest.metrics.items()
        if isinstance(m, dict)
    )
    return f"""# {manifest.name}

{manifest.architecture.upper()} that scores the nodes of a graph for fraud.

- **Data**: {t["dataset"]}, {dataset.graph.num_nodes} nodes, {dataset.graph.edge_index.shape[1]}
  edges as stored, {len(manifest.features)} features, {100 * fraud:.2f} % fraud of the labelled
  nodes. {t["note"]}
- **Split**: `{t["split"]}`: {t["train_nodes"]} nodes to train, {t["val_nodes"]} to choose by,
  {t["test_nodes"]} to report on.
- **Protocol**: {t["protocol"]}.
- **Dynamics**: {manifest.knobs.steps} steps of {manifest.knobs.step_size} in each of
  {len(manifest.knobs.beta)} block(s).

| part | ROC-AUC | PR-AUC | macro-F1 | recall@k | Brier | nodes | fraud |
|---|---|---|---|---|---|---|---|
{rows}

`probability` is Platt's map of the score, fitted on the validation nodes (test Brier score
{test["brier"]:.4f}); `label` is 1 from a probability of {manifest.threshold:.4f} on, the best
macro-F1 on the validation nodes. Scores mean something on graphs like the one above; the energy
percentile of an answer says how unlike them a graph is, as a hint and no more.
"""
