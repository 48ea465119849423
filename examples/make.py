"""Write the example requests beside this file.

`tolokers.json` is a real neighbourhood from tolokers (needs the dataset); the other graphs are
random within the feature ranges that the checkpoints' manifests state. `scene.png` is the first
test picture of Sort-of-CLEVR, four times as large.

    python -m examples.make
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from PIL import Image

from models.checkpoint import load_checkpoint
from models.inputs.graph_batch import pack_graphs
from training.datasets import load_node_dataset as load_dataset
from training.datasets.clevr import random_scenes, render_scene
from training.tasks.anomaly.neighbor_sampler import NeighborSampler

HERE = Path(__file__).parent
CHECKPOINTS = HERE.parent / "checkpoints"


def _write(name: str, request: dict) -> None:
    text = json.dumps(request, separators=(",", ":"))
    (HERE / f"{name}.json").write_text(text + "\n")


def tolokers() -> None:
    """A fraudulent test node with a dozen neighbours and some of theirs, in both shapes."""
    dataset = load_dataset("tolokers")
    split = dataset.official[0]
    whole = pack_graphs([dataset.graph])
    degree = whole.relations[0].degree_N.numpy()[split.test]
    seed = int(split.test[(dataset.labels[split.test] == 1) & (degree >= 12)][0])
    batch, nodes = NeighborSampler(whole, (12, 4)).sample(np.array([seed]), seed=0)
    edges = batch.relations[0]
    receivers = np.repeat(np.arange(len(nodes)), edges.degree_N.numpy())
    sources = edges.indices_E.numpy()
    once = sources < receivers
    x = [[round(float(value), 6) for value in row] for row in batch.x_NF]
    ids = [f"worker-{node}" for node in nodes]
    index = [sources[once].tolist(), receivers[once].tolist()]
    _write(
        "tolokers",
        {
            "model": "cdat-tolokers",
            "graph": {"x": x, "edge_index": index, "node_ids": ids},
            "targets": ids[:3],
            "include": ["trace", "components"],
        },
    )
    _write(
        "tolokers-rows",
        {
            "model": "et-tolokers",
            "nodes": [
                {"id": node_id, **dict(zip(dataset.features, row, strict=True))}
                for node_id, row in zip(ids, x, strict=True)
            ],
            "edges": [{"source": ids[a], "target": ids[b]} for a, b in zip(*index, strict=True)],
            "dynamics": {"steps": 8, "tolerance": 0.05},
        },
    )


def scene() -> None:
    """Six objects, one of each colour."""
    pixels_CHW = render_scene(random_scenes(1, (0, 2))[0])
    large = pixels_CHW.transpose(1, 2, 0).repeat(4, 0).repeat(4, 1)
    Image.fromarray(large).save(HERE / "scene.png", optimize=True)


def synthetic(name: str, nodes: int = 12) -> None:
    """A random graph for checkpoint `name`."""
    rng = np.random.default_rng(0)
    features = load_checkpoint(CHECKPOINTS / name).manifest.features
    mean = np.array([f.mean for f in features])
    top = np.array([f.maximum for f in features])
    x = np.minimum(rng.exponential(np.maximum(mean, 1e-3), (nodes, len(features))), top).round(4)
    edges = rng.integers(0, nodes, (2, 2 * nodes))
    _write(
        name.removeprefix("cdat-"),
        {"model": name, "graph": {"x": x.tolist(), "edge_index": edges.tolist()}},
    )


if __name__ == "__main__":
    tolokers()
    scene()
    synthetic("cdat-amazon")
    synthetic("cdat-yelpchi")
