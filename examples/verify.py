"""Post a whole dataset to a running server and compare its test figures with the checkpoint's.

python -m examples.verify --url http://127.0.0.1:8000 --model cdat-tolokers
"""

from __future__ import annotations

import argparse
import json
from typing import Any

import httpx
import numpy as np
import safetensors.numpy
from sklearn.metrics import roc_auc_score

from training.datasets import load_node_dataset, random_splits

SAFETENSORS = "application/vnd.safetensors"


def served_roc_auc(url: str, model: str) -> dict[str, float]:
    """Test ROC-AUC by way of posting, JSON and safetensors, beside the one in the manifest; of a
    model that reads labels of neighbours also with those of the training nodes."""
    card = httpx.get(f"{url}/models/{model}").raise_for_status().json()
    training: dict[str, Any] = card["training"]
    dataset = load_node_dataset(training["dataset"].removesuffix("-single"))
    splits = dataset.official or random_splits(dataset, 0.4, 1)
    split = next(s for s in splits if s.name == training["split"])
    graph = dataset.graph
    # safetensors writes an array as it lies in memory: a transposed one must be laid out first.
    edges = np.ascontiguousarray(graph.edge_index, dtype=np.int32)
    as_json = {"model": model, "graph": {"x": graph.x.tolist(), "edge_index": edges.tolist()}}
    tensors = {"x": np.ascontiguousarray(graph.x), "edge_index": edges}
    request = {"request": json.dumps({"model": model})}
    bodies = {
        "json": (json.dumps(as_json).encode(), "application/json"),
        "safetensors": (safetensors.numpy.save(tensors, request), SAFETENSORS),
    }
    figures = {"manifest": float(card["metrics"]["test"]["roc_auc"])}
    if card["label_trees"] is not None:
        labels = np.full(graph.num_nodes, -1, np.int8)
        labels[split.train] = dataset.labels[split.train]
        with_labels = safetensors.numpy.save(tensors | {"labels": labels}, request)
        bodies["safetensors, with labels"] = with_labels, SAFETENSORS
        metrics = card["metrics"]["test_with_labels"]
        figures["manifest, with labels"] = float(metrics["roc_auc"])
    for name, (body, kind) in bodies.items():
        answer = httpx.post(
            f"{url}/anomaly/score", content=body, headers={"content-type": kind}, timeout=120
        )
        results = answer.raise_for_status().json()["results"]
        scores = np.array([result["score"] for result in results])
        figures[name] = float(roc_auc_score(dataset.labels[split.test], scores[split.test]))
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("--model", default="cdat-tolokers")
    asked = parser.parse_args()
    for name, value in served_roc_auc(asked.url, asked.model).items():
        print(f"{name:24} test ROC-AUC {value:.6f}")


if __name__ == "__main__":
    main()
