"""A network trained on transactions as a checkpoint that reads rows."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from models.checkpoint import Checkpoint, EnergyReference, Manifest, save_checkpoint
from models.inputs.graph import Column
from models.tasks.node_scorer import NodeScorer
from training.datasets.transactions import DescribedTransactions
from training.export import build_manifest, describe_columns, draw_sample
from training.tasks.anomaly.neighborhoods import compute_quantiles_by_degree
from training.tasks.anomaly.transactions.train import TransactionRun

_PROTOCOL = (
    "features of a transaction from its own row and the rows before it; encoders from the rows up "
    "to the last one to train on; weights from the training part; epoch, calibration and threshold "
    "from the validation part; the test part measured once, at the end"
)


def export_transaction_scorer(
    folder: Path, name: str, described: DescribedTransactions, run: TransactionRun, *, seed: int
) -> Checkpoint:
    """Write `folder`: weights, manifest and model card, read back and verified."""
    network, evaluation = run.network, run.evaluation
    split, data, recipe = described.split, described.data, described.recipe
    fitted = described.history.x_NF[: split.train[-1] + 1]
    manifest = build_manifest(
        network,
        data,
        split,
        run,
        name=name,
        seed=seed,
        unit="transactions",
        fingerprint=data.fingerprint(split),
        protocol=_PROTOCOL,
        features=describe_columns([Column(feature) for feature in recipe.features], fitted),
        threshold=evaluation.decision.threshold,
        decision=evaluation.decision,
        transactions=recipe,
        calibration=evaluation.calibration,
        energy=_compute_energy_reference(network, described),
        metrics={part: metrics.to_dict() for part, metrics in evaluation.parts.items()},
    )
    return save_checkpoint(folder, network, manifest, _card(manifest, described))


def _compute_energy_reference(
    network: NodeScorer, described: DescribedTransactions
) -> EnergyReference:
    """Quantiles of final energy per node over neighbourhoods of training transactions, which are
    what a server scores them in."""
    rows = draw_sample(described.split.train, 2000)
    graphs = (described.history.build_graph(np.array([row]))[0] for row in rows)
    return compute_quantiles_by_degree(network, (network.pack([graph]) for graph in graphs))


def _card(manifest: Manifest, described: DescribedTransactions) -> str:
    recipe, decision, training = described.recipe, manifest.decision, manifest.training
    assert decision is not None
    labels = described.data.labels
    rows = "\n".join(
        f"| {part} | "
        + " | ".join(
            f"{m[key]:.4f}"
            for key in (
                *("roc_auc", "pr_auc", "precision_at_1_percent", "recall_at_1_percent"),
                *("macro_f1", "brier"),
            )
        )
        + f" | {m['nodes']} | {m['frauds']} |"
        for part, m in manifest.metrics.items()
        if isinstance(m, dict)
    )
    value = "" if decision.value is None else f" {decision.value:g}"
    precision = "-" if decision.precision is None else f"{decision.precision:.4f}"
    linked = ", ".join(recipe.views)
    return f"""# {manifest.name}

{manifest.architecture.upper()} that scores transactions for fraud, each by its row and by the rows
before it.

- **Data**: {training["dataset"]}, {len(labels)} transactions, {int((labels >= 0).sum())} of them
  labelled, {100 * float((labels == 1).sum() / (labels >= 0).sum()):.2f} % of these fraud.
  {training["note"]}
- **Split**: `{training["split"]}`: {training["train_transactions"]} labelled transactions to train,
  {training["val_transactions"]} to validate, {training["test_transactions"]} to test.
- **Protocol**: {training["protocol"]}.
- **Columns**: time `{recipe.time}` ({"timestamps" if recipe.calendar else "numbers"}), source
  `{recipe.source}`, target `{recipe.target}`, amount `{recipe.amount}`; categories:
  {", ".join(recipe.categories) or "none"}; shared: {", ".join(recipe.shared) or "none"}; numbers:
  {", ".join(recipe.numbers) or "none"}.
- **Neighbourhood**: the last {recipe.neighbors} transactions of each of {linked}, over
  {recipe.hops} step(s); windows {", ".join(map(str, recipe.windows))}.
- **Dynamics**: {manifest.knobs.steps} steps of {manifest.knobs.step_size} in each of
  {len(manifest.knobs.beta)} block(s).
- **Decision**: `label` is 1 from a probability of {manifest.threshold:.4f} on, by the rule
  `{decision.rule}`{value} on the validation part: {100 * decision.alert_share:.2f} % of its
  transactions, precision {precision}, recall {decision.recall:.4f} of the labelled ones.

| part | ROC-AUC | PR-AUC | precision@1% | recall@1% | macro-F1 | Brier | labelled | fraud |
|---|---|---|---|---|---|---|---|---|
{rows}

`probability` is Platt's map of the score, fitted on the validation part. Where fraud becomes more
or less frequent than it was there, probabilities and the threshold are off; the order of the scores
is not concerned.
"""
