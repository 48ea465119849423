"""A graph with labels on its nodes, and how it is split."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from models.inputs.graph import Graph
from training.common.results_log import hash_arrays


@dataclass(frozen=True)
class Split:
    """Indices of the nodes to train on, to choose by, and to report on. They never overlap."""

    name: str
    train: np.ndarray
    val: np.ndarray
    test: np.ndarray

    def parts(self) -> dict[str, np.ndarray]:
        return {"train": self.train, "val": self.val, "test": self.test}

    def require_both_labels(self, labels: np.ndarray) -> None:
        """Raises ValueError unless each part has nodes of either label."""
        for part, nodes in self.parts().items():
            for label, name in ((0, "benign"), (1, "fraudulent")):
                if not (labels[nodes] == label).any():
                    raise ValueError(
                        f"split {self.name}: no {name} node among the {len(nodes)} of the part "
                        f"`{part}`. Label more nodes, or choose another --ratio or --split."
                    )


@dataclass(frozen=True)
class NodeDataset:
    """One graph with binary labels: 1 fraud, 0 benign, -1 not labelled (never used as a label).

    Attributes:
        official: splits that come with the data, or that its user has chosen.
        ids: (N,) of the nodes, where the data has some.
    """

    name: str
    graph: Graph
    labels: np.ndarray
    features: tuple[str, ...]
    relations: tuple[str, ...] = ("edge",)
    official: tuple[Split, ...] = ()
    note: str = ""
    edge_features: tuple[str, ...] = ()
    ids: np.ndarray | None = None

    def __post_init__(self) -> None:
        if self.graph.x.shape != (len(self.labels), len(self.features)):
            raise ValueError(f"{self.name}: features, labels and names do not fit each other")
        if not np.isfinite(self.graph.x).all():
            raise ValueError(f"{self.name}: a feature is not finite")
        if not np.isin(self.labels, (-1, 0, 1)).all():
            raise ValueError(f"{self.name}: labels must be 1, 0 or -1 for none")

    def fingerprint(self, split: Split) -> str:
        """SHA-256 of all that a result depends on beside its recipe."""
        graph = self.graph
        fields = graph.x, graph.edge_index, graph.edge_type, graph.edge_attr
        arrays = [array for array in fields if array is not None]
        return hash_arrays(*arrays, self.labels, *split.parts().values())


def draw_sample(items: np.ndarray, count: int = 512) -> np.ndarray:
    """No more than `count` of them, at random and always the same."""
    return np.random.default_rng(0).choice(items, min(count, len(items)), replace=False)


def random_splits(dataset: NodeDataset, ratio: float, count: int) -> tuple[Split, ...]:
    """`count` stratified splits: `ratio` of the labelled nodes to train, the rest 1 : 2 val : test.

    The protocol of Energy Transformer appendix C.2; split i is drawn with seed i.
    """
    if not 0 < ratio < 1:
        raise ValueError("the training ratio must lie between 0 and 1")
    splits = []
    for seed in range(count):
        rng = np.random.default_rng(seed)
        parts: tuple[list[np.ndarray], ...] = ([], [], [])
        for label in (0, 1):
            nodes = rng.permutation(np.flatnonzero(dataset.labels == label))
            train = max(1, round(ratio * len(nodes)))
            val = train + max(1, round((len(nodes) - train) / 3))
            for part, chosen in zip(parts, np.split(nodes, [train, val]), strict=True):
                part.append(chosen)
        name = f"{ratio:g}-{seed}"
        splits.append(Split(name, *(np.sort(np.concatenate(part)) for part in parts)))
    return tuple(splits)
