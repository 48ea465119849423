"""A trained network as a checkpoint that the server loads."""

from __future__ import annotations

from pathlib import Path

from models.checkpoint import Checkpoint, save_checkpoint
from models.inputs.graph import Column
from models.manifest import Manifest
from models.tasks.node_scorer import NodeScorer
from training.datasets import NodeDataset, Split
from training.export import build_manifest, describe_columns
from training.model_card import build_card
from training.tasks.anomaly.neighborhoods import choose_neighborhood, compute_request_energies
from training.tasks.anomaly.train import NodeRun

_PROTOCOL = (
    "weights from the training nodes; epoch, calibration and threshold from the validation nodes; "
    "feature bins from all nodes without labels; test nodes measured once, at the end"
)
_WITH_LABELS = "test_with_labels"
"""Name of the metrics of test nodes where the labels of the training nodes are known."""
_LABELS_PROTOCOL = (
    "and with labels of neighbours, those of the training nodes, in `test_with_labels`: trees in "
    "the same folds, weights of all parts from the validation nodes, and the calibration and the "
    "threshold that the score without labels has"
)
_HYBRID_PROTOCOL = (
    "features, no labels of neighbours; trees in folds of the training nodes; weights of the "
    f"network and the trees from the validation nodes; {_PROTOCOL}"
)


def export_node_scorer(
    folder: Path,
    name: str,
    dataset: NodeDataset,
    split: Split,
    run: NodeRun,
    *,
    seed: int,
    tried: int = 0,
) -> Checkpoint:
    """Write `folder`: weights, manifest and model card, read back and verified.

    Args:
        tried: recipes of which this was the best on the validation nodes.
    """
    network, evaluation = run.network, run.evaluation
    protocol = _PROTOCOL if network.features.trees is None else _HYBRID_PROTOCOL
    if tried:
        protocol = f"recipe: of {tried} the best by ROC-AUC on the validation nodes; {protocol}"
    metrics = {part: metrics.to_dict() for part, metrics in evaluation.parts.items()}
    if run.with_labels is not None:
        protocol = f"{protocol}; {_LABELS_PROTOCOL}"
        metrics[_WITH_LABELS] = run.with_labels.parts["test"].to_dict()
    graph, threshold = dataset.graph, evaluation.threshold
    reach = choose_neighborhood(network, graph, split.train, threshold, evaluation.calibration)
    manifest = build_manifest(
        network,
        dataset,
        split,
        run,
        name=name,
        seed=seed,
        unit="nodes",
        fingerprint=dataset.fingerprint(split),
        protocol=protocol,
        features=describe_columns([Column(name) for name in dataset.features], dataset.graph.x.T),
        edge_features=()
        if graph.edge_attr is None
        else describe_columns([Column(name) for name in dataset.edge_features], graph.edge_attr.T),
        threshold=evaluation.threshold,
        calibration=evaluation.calibration,
        energy=compute_request_energies(network, graph, split.train, reach),
        neighborhood=reach,
        metrics=metrics,
    )
    return save_checkpoint(
        folder, network, manifest, build_card(manifest, _card(manifest, dataset, network))
    )


def describe_kind(network: NodeScorer) -> str:
    """Return what a network is, and how much of its trees is in its score."""
    kind, members = network.name.upper(), network.config.members
    if members > 1:
        kind = f"{members} {kind} networks"
    if (trees := network.features.trees) is None:
        return kind if members == 1 else f"Ensemble of {kind}, the mean of their log-odds,"
    of_network, of_trees = network.part_weights.tolist()
    kind = (
        f"Hybrid of {kind} and {trees.shape.trees} boosted trees, {of_network:.2f} and "
        f"{of_trees:.2f} of their log-odds,"
    )
    if network.label_trees is None:
        return kind
    return f"{kind} and {network.label_trees.shape.trees} that read labels of neighbours,"


def _card(manifest: Manifest, dataset: NodeDataset, network: NodeScorer) -> str:
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

{describe_kind(network)} that scores the nodes of a graph for fraud.

- **Data**: {t["dataset"]}, {dataset.graph.num_nodes} nodes, {dataset.graph.edge_index.shape[1]}
  edges as stored, {len(manifest.features)} features of nodes,
  {len(manifest.edge_features)} of edges, {100 * fraud:.2f} % fraud of the labelled
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
