"""A network trained on transactions as a checkpoint that reads rows."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from models.checkpoint import Checkpoint, save_checkpoint
from models.inputs.graph import Column
from models.manifest import Decision, EnergyReference, Manifest
from models.tasks.node_scorer import NodeScorer
from training.datasets.nodes import draw_sample
from training.datasets.transactions import DescribedTransactions
from training.export import build_manifest, describe_columns
from training.model_card import build_card
from training.tasks.anomaly.export import describe_kind
from training.tasks.anomaly.neighborhoods import compute_quantiles_by_degree
from training.tasks.anomaly.transactions.train import TransactionEvaluation, TransactionRun

_PROTOCOL = (
    "features of {what} before it; encoders from the rows up to the last one to train on, without "
    "other parts; weights from the training part; epoch, calibration and threshold from the "
    "validation part; the test part measured once, at the end"
)
_REFERENCES = 2000  # targets whose energies are compared with
_TREES_PROTOCOL = (
    "; trees in folds of the training part, weights of the network and the trees from the "
    "validation part"
)
_DESCRIBED_BY = {
    "transactions": "a transaction from its own row and the rows",
    "accounts": "an account from its last row of the part and the rows",
}


def export_transaction_scorer(
    folder: Path, name: str, described: DescribedTransactions, run: TransactionRun, *, seed: int
) -> Checkpoint:
    """Write `folder`: weights, manifest and model card, read back and verified."""
    network, evaluation = run.network, run.evaluation
    split, data, recipe = described.split, described.data, described.recipe
    columns = [Column(feature) for feature in recipe.features]
    fitted = described.history.list_columns(described.targets.numbers[described.fitted])
    unit = described.targets.unit
    protocol = _PROTOCOL.format(what=_DESCRIBED_BY[unit])
    if network.features.trees is not None:
        protocol += _TREES_PROTOCOL
    manifest = build_manifest(
        network,
        data,
        split,
        run,
        name=name,
        seed=seed,
        unit=unit,
        fingerprint=described.fingerprint,
        protocol=protocol,
        features=describe_columns(columns, fitted),
        threshold=evaluation.decision.threshold,
        decision=evaluation.decision,
        transactions=recipe,
        calibration=evaluation.calibration,
        energy=_compute_energy_reference(network, described),
        metrics={part: metrics.to_dict() for part, metrics in evaluation.parts.items()}
        | {"test_by_time": [asdict(period) for period in evaluation.by_time]},
    )
    return save_checkpoint(
        folder,
        network,
        manifest,
        build_card(manifest, _card(manifest, described, evaluation, network)),
    )


def describe_evaluation(evaluation: TransactionEvaluation, calendar: bool, unit: str) -> list[str]:
    """Return lines about the figures, the threshold, and how both hold over the test part."""
    lines = [
        f"{part:5} ROC-AUC {metrics.all.roc_auc:.4f}  PR-AUC {metrics.all.pr_auc:.4f}  "
        f"of the top 1 %: precision {metrics.precision_at_budget:.4f}  "
        f"recall {metrics.recall_at_budget:.4f}"
        for part, metrics in evaluation.parts.items()
    ]
    decision = evaluation.decision
    lines.append(
        f"label 1 from {decision.threshold:.4f} on ({decision.rule}), which gave "
        f"{_describe_decision(decision, unit)}"
    )
    for period in evaluation.by_time:
        lines.append(
            f"test from {show_time(period.begin, calendar)}: fraud {100 * period.fraud_share:.2f} "
            f"%, mean probability {100 * period.mean_probability:.2f} %, alerts "
            f"{100 * period.alert_share:.2f} %"
        )
    return lines


def _describe_decision(decision: Decision, unit: str) -> str:
    """What the threshold gave on the validation part."""
    precision = "-" if decision.precision is None else f"{decision.precision:.4f}"
    text = f"alerts on {100 * decision.alert_share:.2f} % of the {unit} of the validation part"
    if decision.daily is not None:
        text += f" ({decision.alert_share * decision.daily.inputs:.4g} a day)"
    text += f", precision {precision} and recall {decision.recall:.4f} of the labelled ones"
    if decision.loss is not None:
        text += f", and per 1,000 of these a loss of {decision.loss:.4g} missed frauds' cost"
    return text


def show_time(time: float, calendar: bool) -> str:
    """Return a time as ISO 8601, or as the number that it is."""
    if not calendar:
        return f"{time:.10g}"
    return datetime.fromtimestamp(time, UTC).isoformat(timespec="seconds")


def _compute_energy_reference(
    network: NodeScorer, described: DescribedTransactions
) -> EnergyReference:
    """Quantiles of final energy per node over neighbourhoods of training targets, which are what
    a server scores them in."""
    rows = draw_sample(described.split.train, _REFERENCES)
    graphs = (described.build_graph(np.array([row]))[0] for row in rows)
    return compute_quantiles_by_degree(network, ((network.pack([each]), None) for each in graphs))


def _card(
    manifest: Manifest,
    described: DescribedTransactions,
    evaluation: TransactionEvaluation,
    network: NodeScorer,
) -> str:
    recipe, decision, training = described.recipe, manifest.decision, manifest.training
    assert decision is not None
    labels, unit = described.targets.labels, described.targets.unit
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
    periods = "\n".join(
        f"| {show_time(period.begin, recipe.calendar)} | {period.labelled} | "
        f"{100 * period.fraud_share:.2f} | {100 * period.mean_probability:.2f} | "
        f"{100 * period.alert_share:.2f} |"
        for period in evaluation.by_time
    )
    linked = ", ".join(recipe.views)
    scores, scored_by = "transactions for fraud", "its row and by the rows\nbefore it"
    neighborhood = f"the last {recipe.neighbors} transactions of each of {linked}"
    if unit == "accounts":
        scores, scored_by = "accounts for fraud", "the transactions it sent\nand received"
        neighborhood = (
            f"the last {recipe.neighbors} transactions sent and received; of each, {neighborhood}"
        )
    return f"""# {manifest.name}

{describe_kind(network)} that scores {scores}, each by {scored_by}.

- **Data**: {training["dataset"]}, {len(labels)} {unit}, {int((labels >= 0).sum())} of them
  labelled, {100 * float((labels == 1).sum() / (labels >= 0).sum()):.2f} % of these fraud.
  {training["note"]}
- **Split**: `{training["split"]}`: {training[f"train_{unit}"]} labelled {unit} to train,
  {training[f"val_{unit}"]} to validate, {training[f"test_{unit}"]} to test.
- **Protocol**: {training["protocol"]}.
- **Columns**: time `{recipe.time}` ({"timestamps" if recipe.calendar else "numbers"}), source
  `{recipe.source}`, target `{recipe.target}`, amount `{recipe.amount}`; categories:
  {", ".join(recipe.categories) or "none"}; shared: {", ".join(recipe.shared) or "none"}; numbers:
  {", ".join(recipe.numbers) or "none"}.
- **Neighbourhood**: {neighborhood}, over
  {recipe.hops} step(s); windows {", ".join(map(str, recipe.windows))}.
- **Dynamics**: {manifest.knobs.steps} steps of {manifest.knobs.step_size} in each of
  {len(manifest.knobs.beta)} block(s).
- **Decision**: `label` is 1 from a probability of {manifest.threshold:.4f} on, by the rule
  `{decision.rule}`{value}: {_describe_decision(decision, unit)}.

| part | ROC-AUC | PR-AUC | precision@1% | recall@1% | macro-F1 | Brier | labelled | fraud |
|---|---|---|---|---|---|---|---|---|
{rows}

The test part in order of time:

| from | labelled | fraud % | mean probability % | alerts % |
|---|---|---|---|---|
{periods}

`probability` is Platt's map of the score, fitted on the validation part. Where fraud becomes more
or less frequent than it was there, probabilities and the threshold are off; the order of the scores
is not concerned.
"""
