"""Model cards as hubs read them: metadata in YAML, the description, and the terms of the data.

The metadata are those of https://github.com/huggingface/hub-docs/blob/main/modelcard.md. All values
come from the manifest; the description in Markdown is written by the export of each task.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple, cast

import yaml

from models.checkpoint import CARD, load_checkpoint, seal_checkpoint
from models.manifest import CheckpointError, Manifest
from training.datasets.terms import MEANING, DatasetTerms

_FENCE = "---\n"
_TERMS_HEADING = "## Data and terms\n"
_OWN_TERMS = "data-terms-apply"

_METRICS = {
    "accuracy": ("accuracy", "Accuracy"),
    "macro_f1": ("f1", "Macro F1"),
    "roc_auc": ("roc_auc", "ROC-AUC"),
    "pr_auc": ("average_precision", "PR-AUC"),
    "recall_at_k": ("recall", "Recall in the top k, k the number of frauds"),
    "precision_at_1_percent": ("precision", "Precision in the top 1 %"),
    "recall_at_1_percent": ("recall", "Recall in the top 1 %"),
    "cross_entropy": ("cross_entropy", "Cross entropy"),
    "brier": ("brier_score", "Brier score"),
    "mse": ("mse", "MSE of hidden patches"),
    "psnr": ("psnr", "PSNR of hidden patches, dB"),
    "ssim": ("ssim", "SSIM of hidden patches"),
    "whole_mse": ("mse", "MSE of whole images"),
    "whole_psnr": ("psnr", "PSNR of whole images, dB"),
    "whole_ssim": ("ssim", "SSIM of whole images"),
    "doubt": ("spearmanr", "Rank correlation of expected and true error of hidden pixels"),
}
"""Type, of https://huggingface.co/metrics where it has one, and name of each figure."""

_KINDS_OF_HOLES = "psnr_"


class _Task(NamedTuple):
    """`pipeline` is one of https://huggingface.co/tasks."""

    pipeline: str
    name: str


def build_card(manifest: Manifest, description: str, terms: DatasetTerms | None = None) -> str:
    """Return the text of README.md in a checkpoint.

    Args:
        description: Markdown that starts with a title.
        terms: of the data that it was trained on; None where they are not known to this repository,
            which the card then says.
    """
    front = yaml.safe_dump(
        build_metadata(manifest, terms), sort_keys=False, allow_unicode=True, width=100
    )
    return f"{_FENCE}{front}{_FENCE}\n{description.strip()}\n\n{_describe_terms(manifest, terms)}"


def build_metadata(manifest: Manifest, terms: DatasetTerms | None = None) -> dict[str, Any]:
    """Return the metadata of a card; figures are those of the test part, or of the validation part
    where there are no others."""
    task = _find_task(manifest)
    dataset = str(manifest.training["dataset"])
    part = "test" if "test" in manifest.metrics else "val"
    results = [
        {
            "task": {"type": task.pipeline, "name": task.name},
            "dataset": {
                "type": dataset,
                "name": terms.title if terms else dataset,
                **({"config": label} if label else {}),
                "split": "validation" if part == "val" else part,
                "args": {"split_method": manifest.training["split"]},
            },
            "metrics": metrics,
        }
        for label, metrics in _list_metrics(manifest, part)
    ]
    kinds = dict.fromkeys(metric["type"] for result in results for metric in result["metrics"])
    return {
        **_describe_licence(terms),
        "library_name": "basin",
        "pipeline_tag": task.pipeline,
        "tags": ["basin", "energy-transformer", manifest.architecture, manifest.task],
        "datasets": [dataset],
        "metrics": list(kinds),
        "model-index": [{"name": manifest.name, "results": results}],
    }


def rewrite_card(folder: Path, terms: DatasetTerms | None = None) -> None:
    """Write metadata and terms of a checkpoint's card anew; its description stays.

    The manifest gets the new hash of the card and a new digest, and is otherwise the same.

    Raises:
        CheckpointError: the folder is not a checkpoint.
    """
    manifest = load_checkpoint(folder).manifest
    if CARD not in manifest.files:
        raise CheckpointError(f"{folder}: the manifest lists no {CARD}")
    card = build_card(manifest, read_description((folder / CARD).read_text("utf-8")), terms)
    (folder / CARD).write_text(card, encoding="utf-8")
    seal_checkpoint(folder)


def read_description(card: str) -> str:
    """Return what of a card is neither metadata nor terms."""
    if card.startswith(_FENCE):
        _, _, card = card.removeprefix(_FENCE).partition(f"\n{_FENCE}")
    return card.partition(_TERMS_HEADING)[0].strip()


def _find_task(manifest: Manifest) -> _Task:
    if manifest.task == "anomaly":
        if manifest.transactions is None:
            return _Task("graph-ml", "Fraud among the nodes of a graph")
        return _Task("tabular-classification", f"Fraud among {manifest.transactions.scores}")
    if manifest.task == "classification":
        return _Task("graph-ml", "Classification of graphs")
    if manifest.task == "completion":
        return _Task("image-to-image", "Completion of images with holes")
    if manifest.config.get("question"):
        return _Task("visual-question-answering", "Questions about images")
    return _Task("image-classification", "Classification of images")


def _list_metrics(manifest: Manifest, part: str) -> list[tuple[str, list[dict[str, Any]]]]:
    """Return pairs of the label that a classifier predicts, "" without one, and its metrics."""
    figures = cast(dict[str, Any], manifest.metrics[part])
    by_label = figures if manifest.task in ("classification", "images") else {"": figures}
    return [
        (label, [metric for name, value in each.items() for metric in _convert(name, value)])
        for label, each in by_label.items()
    ]


def _convert(figure: str, value: Any) -> list[dict[str, Any]]:
    """Return the metric of a figure; none of counts and spreads."""
    if value is None:  # where a class is missing
        return []
    if figure.startswith(_KINDS_OF_HOLES) and not figure.endswith("_std"):
        holes = figure.removeprefix(_KINDS_OF_HOLES).replace("_", " ")
        return [{"type": "psnr", "value": value, "name": f"PSNR of hidden pixels, {holes}, dB"}]
    if figure not in _METRICS:
        return []
    kind, name = _METRICS[figure]
    args = {"args": {"average": "macro"}} if figure == "macro_f1" else {}
    return [{"type": kind, "value": value, "name": name, **args}]


def _describe_licence(terms: DatasetTerms | None) -> dict[str, str]:
    """Return the keys of the licence: that of this repository, unless the data are less free."""
    if terms is None:
        return {"license": "unknown"}
    if terms.kind in ("generated", "permissive"):
        return {"license": "apache-2.0"}
    return {"license": "other", "license_name": _OWN_TERMS, "license_link": CARD}


def _describe_terms(manifest: Manifest, terms: DatasetTerms | None) -> str:
    if terms is None:
        return (
            f"{_TERMS_HEADING}\nThe terms of `{manifest.training['dataset']}` are those of its "
            "publisher, or your own. They are not known to\nthe program that wrote this card: "
            "before you pass the checkpoint on, write them here, and the\nlicence of the weights "
            "into `license` above.\n"
        )
    name = manifest.training["dataset"]
    source = f" From {terms.url}." if terms.url else ""
    return (
        f"{_TERMS_HEADING}\n"
        f"- **Data**: `{name}`, {terms.title}.{source} No data are in the checkpoint.\n"
        f"- **Licence stated**: {terms.stated}\n"
        f"- **What it means for a server with this model**: {MEANING[terms.kind]}\n"
        "- **Licence of the weights**: Apache-2.0, as all of this repository, as far as it is the "
        "repository's to give.\n\n"
        "These are notes on the terms, not legal advice.\n"
    )
