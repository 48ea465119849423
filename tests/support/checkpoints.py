"""Small checkpoints with random weights, and graphs to send to them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy
import torch

from models import checkpoint
from models.architectures.cdat import CDAT, CDATConfig, CDATGraph
from models.architectures.et import ET, ETConfig, ETGraph, ETImage, ETWindow
from models.base import temporary_seed
from models.inputs.graph import Column, Graph
from models.inputs.molecules import ATOM_COLUMNS, BOND_COLUMNS, parse_smiles
from models.manifest import (
    Calibration,
    EnergyReference,
    Feature,
    HiddenReference,
    Manifest,
    NeighborhoodDefaults,
)
from models.tasks.completer import CompletionNetwork
from models.tasks.graph_classifier import GraphClassifier
from models.tasks.window_completer import WindowConfig
from tests.support.image_models import save_recognisers

FEATURES = ("age", "degree", "rate", "volume", "x")  # one is called x, to be awkward
RELATIONS = ("follows", "pays")
EDGE_FEATURES = ("amount", "hour")
SMALL = {"dim": 12, "heads": 2, "head_dim": 4, "memories": 10, "bins": 4, "hidden": 8, "steps": 4}


@dataclass(frozen=True)
class Sample:
    """A graph, and the three ways to send it."""

    x: np.ndarray
    edge_index: np.ndarray
    edge_type: np.ndarray | None
    node_ids: list[str]
    edge_attr: np.ndarray | None = None

    def graph(self) -> Graph:
        return Graph(self.x, self.edge_index, self.edge_type, self.edge_attr)

    def arrays(self, **rest: Any) -> dict[str, Any]:
        graph = {
            "x": self.x.tolist(),
            "edge_index": self.edge_index.tolist(),
            "node_ids": self.node_ids,
        }
        if self.edge_type is not None:
            graph["edge_type"] = self.edge_type.tolist()
        if self.edge_attr is not None:
            graph["edge_attr"] = self.edge_attr.tolist()
        return {"graph": graph, **rest}

    def rows(self, **rest: Any) -> dict[str, Any]:
        nodes = [
            {"id": name, **dict(zip(FEATURES, row, strict=True))}
            for name, row in zip(self.node_ids, self.x.tolist(), strict=True)
        ]
        edges: list[dict[str, Any]] = [
            {"source": self.node_ids[i], "target": self.node_ids[j]} for i, j in self.edge_index.T
        ]
        if self.edge_type is not None:
            for edge, relation in zip(edges, self.edge_type, strict=True):
                edge["type"] = RELATIONS[relation]
        if self.edge_attr is not None:
            for edge, row in zip(edges, self.edge_attr.tolist(), strict=True):
                edge |= dict(zip(EDGE_FEATURES, row, strict=True))
        return {"nodes": nodes, "edges": edges, **rest}

    def tensors(self, targets: np.ndarray | None = None, **rest: Any) -> bytes:
        arrays = {"x": self.x, "edge_index": self.edge_index}
        if self.edge_type is not None:
            arrays["edge_type"] = self.edge_type
        if self.edge_attr is not None:
            arrays["edge_attr"] = self.edge_attr
        if targets is not None:
            arrays["targets"] = targets
        request = json.dumps({"node_ids": self.node_ids, **rest})
        return safetensors.numpy.save(arrays, metadata={"request": request})


def make_sample(seed: int, relations: int = 1, nodes: int = 40, edge_features: int = 0) -> Sample:
    rng = np.random.default_rng(seed)
    edge_index = rng.integers(0, nodes, (2, 3 * nodes))
    return Sample(
        rng.standard_normal((nodes, len(FEATURES))).astype(np.float32),
        edge_index,
        rng.integers(0, relations, 3 * nodes) if relations > 1 else None,
        [f"n{i}" for i in rng.permutation(nodes)],
        rng.standard_normal((3 * nodes, edge_features)).astype(np.float32)
        if edge_features
        else None,
    )


_REACH = NeighborhoodDefaults(
    hops=2,
    max_neighbors=32,
    labels_equal=1.0,
    nodes=200,
    energy=EnergyReference(levels=(0.0, 0.5, 1.0), values=(-60.0, -20.0, 0.0)),
)


def save_checkpoints(folder: Path) -> None:
    """Write `et-small` (one relation), `cdat-small` (two) and `et-edges` (two, and features of
    edges), which score nodes, `cdat-mol` (reads SMILES) and `et-shape` (reads graphs alone), which
    classify graphs, `et-tile` (RGB), `et-grey` and `et-pane` (prefilled windows), which complete
    images, and those of `save_recognisers`."""
    et = ETConfig.model_validate({"features": FEATURES, "step_size": 0.1, **SMALL})
    cdat = CDATConfig.model_validate(
        {"features": FEATURES, "relations": RELATIONS, "combine": "concat", "blocks": 2, **SMALL}
    )
    edges = et.model_copy(update={"relations": RELATIONS, "edge_features": EDGE_FEATURES})
    for name, kind, config in (
        ("et-small", ET, et),
        ("cdat-small", CDAT, cdat),
        ("et-edges", ET, edges),
    ):
        known = make_sample(0, len(config.relations), 200, len(config.edge_features))
        network, _ = kind.from_data(config, [known.graph()], seed=1)
        for parameter_name, parameter in network.named_parameters():
            if parameter_name.startswith("edge_bias"):  # hardly any before training
                torch.nn.init.normal_(parameter)
        manifest = Manifest(
            name=name,
            version="1.2.3",
            architecture=kind.name,
            task="anomaly",
            config=network.config.model_dump(mode="json"),
            knobs=checkpoint.read_trained_params(network),
            features=tuple(Feature(name=f, minimum=-4, maximum=4, mean=0) for f in FEATURES),
            threshold=0.5,
            calibration=Calibration(slope=2.0, intercept=0.1),
            edge_features=tuple(
                Feature(name=f, minimum=-4, maximum=4, mean=0) for f in config.edge_features
            ),
            energy=EnergyReference(levels=(0.0, 0.5, 1.0), values=(-50.0, -10.0, 10.0)),
            neighborhood=_REACH if name == "et-small" else None,
            training={"data": "random"},
            metrics={},
        )
        checkpoint.save_checkpoint(folder / name, network, manifest, "# A test model\n")
    for name, network in classifiers().items():
        save_classifier(folder / name, network)
    for name, channels in (("et-tile", 3), ("et-grey", 1)):
        save_completer(folder / name, image_completer(channels))
    save_completer(folder / "et-pane", window_completer())
    save_recognisers(folder)


MOLECULES = ("CCO", "c1ccccc1N(=O)=O", "CC(=O)Oc1ccccc1C(=O)O", "C[C@H](N)C(=O)O", "[Na+].[Cl-]")
SHAPE_COLUMNS = (Column("kind", ("a", "b", "c")), Column("size"))


def classifiers() -> dict[str, GraphClassifier]:
    """Two small ones with random weights: of molecules with two tasks, and of plain graphs."""
    small = {"dim": 12, "heads": 2, "head_dim": 4, "memories": 10, "hidden": 8, "steps": 3}
    shared = {**small, "step_size": 0.2, "position_length": 4}
    molecules = CDATGraph.config_type.model_validate(
        {
            **shared,
            "blocks": 2,
            "node_features": ATOM_COLUMNS,
            "edge_features": BOND_COLUMNS,
            "tasks": (
                {"name": "mutagen", "labels": ("no", "yes")},
                {"name": "colour", "labels": ("red", "green", "blue")},
            ),
        }
    )
    shapes = ETGraph.config_type.model_validate(
        {
            **shared,
            "node_features": SHAPE_COLUMNS,
            "tasks": ({"name": "shape", "labels": ("star", "ring")},),
        }
    )
    return {
        "cdat-mol": CDATGraph.from_data(
            molecules, [parse_smiles(text).graph for text in MOLECULES], 1
        ),
        "et-shape": ETGraph.from_data(shapes, make_shapes(0, 20), 2),
    }


def make_shapes(seed: int, count: int) -> list[Graph]:
    """Graphs for `et-shape`: some alone, some without edges."""
    rng = np.random.default_rng(seed)
    graphs = []
    for i in range(count):
        nodes = int(rng.integers(1, 12))
        edges = int(rng.integers(0, 3 * nodes)) if i % 3 else 0
        x = np.c_[rng.integers(0, 3, nodes), rng.standard_normal(nodes)].astype(np.float32)
        graphs.append(Graph(x, rng.integers(0, nodes, (2, edges))))
    return graphs


def save_classifier(folder: Path, network: GraphClassifier) -> None:
    """Write a checkpoint that the server takes."""

    def described(columns: tuple[Column, ...]) -> tuple[Feature, ...]:
        return tuple(
            Feature(name=c.name, minimum=0, maximum=9, mean=1, values=c.values) for c in columns
        )

    config = network.config
    manifest = Manifest(
        name=folder.name,
        version="2.0",
        architecture=network.name,
        task=network.task,
        config=config.model_dump(mode="json"),
        knobs=checkpoint.read_trained_params(network),
        features=described(config.node_features),
        edge_features=described(config.edge_features),
        temperatures=(0.5, 2.0)[: len(config.tasks)],
        energy=EnergyReference(levels=(0.0, 0.5, 1.0), values=(-30.0, -5.0, 10.0)),
        training={"data": "random"},
        metrics={},
    )
    checkpoint.save_checkpoint(folder, network, manifest, "# A test model\n")


_TILES = {
    **{"dim": 12, "heads": 2, "head_dim": 4, "memories": 10, "steps": 3},
    **{"size": 16, "patch": 4, "blocks": 2},
}


def image_completer(channels: int) -> ETImage:
    """A small one with random weights, of 16 x 16 pixels in patches of 4 x 4."""
    config = ETImage.config_type.model_validate(_TILES | {"channels": channels})
    images = np.random.default_rng(3).integers(0, 256, (20, 16, 16, channels), np.uint8)
    network = ETImage.from_data(config, images, 3)
    assert isinstance(network, ETImage)
    return network


def window_completer() -> ETWindow:
    """The same of prefilled windows."""
    with temporary_seed(3):
        network = ETWindow(WindowConfig.model_validate(_TILES | {"stem": 4, "features": 8}))
        for head in (network.codec.head2, network.codec.doubt):  # zero before training
            torch.nn.init.normal_(head.weight, std=0.3)
    return network


def save_completer(folder: Path, network: CompletionNetwork) -> None:
    """Write a checkpoint of a completer."""
    manifest = Manifest(
        name=folder.name,
        version="3.0",
        architecture=network.name,
        task=network.task,
        config=network.config.model_dump(mode="json"),
        knobs=checkpoint.read_trained_params(network),
        features=(),
        energy=EnergyReference(
            levels=(0.0, 0.5, 1.0),
            values=(-30.0, -5.0, 10.0),
            by_hidden=(
                HiddenReference(share=0.0, values=(-40.0, -9.0, 20.0)),
                HiddenReference(share=1.0, values=(-50.0, -2.0, 30.0)),
            ),
        ),
        training={"data": "random"},
        metrics={},
    )
    checkpoint.save_checkpoint(folder, network, manifest, "# A test model\n")
