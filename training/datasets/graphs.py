"""Many graphs with labels, and how they are split."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
from rdkit.Chem.Scaffolds import MurckoScaffold
from sklearn.model_selection import StratifiedKFold, train_test_split

from models.inputs.graph import Column, Graph
from models.inputs.molecules import MoleculeLimits, smiles_to_rdkit
from models.inputs.tokens import GraphTokenizer, GraphTokens
from models.tasks.graph_classifier import ClassificationTask
from training.common.results_log import hash_arrays
from training.datasets.nodes import Split


@dataclass(frozen=True)
class GraphDataset:
    """Graphs with a label for each task (G, T): the place in `Task.labels`, or -1 for none."""

    name: str
    graphs: tuple[Graph, ...]
    labels: np.ndarray
    tasks: tuple[ClassificationTask, ...]
    node_features: tuple[Column, ...]
    edge_features: tuple[Column, ...] = ()
    smiles: tuple[str, ...] | None = None
    note: str = ""
    _tokens: dict[GraphTokenizer, list[GraphTokens]] = field(
        default_factory=dict, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        if self.labels.shape != (len(self.graphs), len(self.tasks)):
            raise ValueError(f"{self.name}: labels and graphs do not fit each other")
        for task, column in zip(self.tasks, self.labels.T, strict=True):
            if not ((column >= -1) & (column < len(task.labels))).all():
                raise ValueError(f"{self.name}: {task.name} has a label that is not one of its own")

    def tokens(self, tokeniser: GraphTokenizer) -> list[GraphTokens]:
        """Every graph prepared, once for each tokeniser."""
        if tokeniser not in self._tokens:
            self._tokens[tokeniser] = [tokeniser(graph) for graph in self.graphs]
        return self._tokens[tokeniser]

    def require_labels(self, split: Split) -> None:
        """
        Raises:
            ValueError: a part of `split` has graphs of one label only, by which nothing can be
                learned, chosen or measured.
        """
        for part, graphs in split.parts().items():
            for task, labels in zip(self.tasks, self.labels[graphs].T, strict=True):
                if len(np.unique(labels[labels >= 0])) < 2:
                    raise ValueError(
                        f"split {split.name}: the graphs to {part} have less than two labels of "
                        f"{task.name}; take another split"
                        + (", as balanced-scaffold" if split.name == "scaffold" else "")
                    )

    def fingerprint(self, split: Split) -> str:
        """SHA-256 of all that a result depends on beside its recipe."""
        names = repr((self.tasks, self.node_features, self.edge_features))
        # Checkpoints hold fingerprints of when the class had this name.
        names = names.replace(f"{ClassificationTask.__name__}(", "Task(").encode()
        arrays = (a for g in self.graphs for a in (g.x, g.edge_index, g.edge_attr) if a is not None)
        parts = split.parts().values()
        return hash_arrays(np.frombuffer(names, np.uint8), *arrays, self.labels, *parts)

    def strata(self) -> np.ndarray:
        """What splits are stratified by: the labels of the first task; graphs without this label
        are drawn with those of the most frequent one."""
        strata = self.labels[:, 0].copy()
        if (strata >= 0).any():
            strata[strata < 0] = np.bincount(strata[strata >= 0]).argmax()
        return strata


@contextmanager
def _explain_few(dataset: GraphDataset) -> Iterator[None]:
    """Say of a split that cannot be stratified which label is rare.

    Raises:
        ValueError: likewise.
    """
    try:
        yield
    except ValueError as error:
        counts = np.bincount(dataset.strata())
        task, rarest = dataset.tasks[0], counts.argmin()
        raise ValueError(
            f"{dataset.name}: {len(dataset.graphs)} graphs, {counts[rarest]} with the label "
            f"{task.labels[rarest]} of {task.name}, are too few for a split with all labels in "
            "each part. Label more, or choose another --split."
        ) from error


def k_folds(dataset: GraphDataset, folds: int, *, inner: float = 0.1) -> tuple[Split, ...]:
    """Stratified folds for testing; a stratified share `inner` of the rest to choose by.

    The epoch and the setting are chosen inside each training fold; its test fold is measured once
    (the protocol of Errica et al. 2020, with a holdout for model selection).
    """
    strata = dataset.strata()
    splitter = StratifiedKFold(folds, shuffle=True, random_state=0)
    splits = []
    with _explain_few(dataset):
        for fold, (rest, test) in enumerate(splitter.split(strata, strata)):
            train, val = train_test_split(
                rest, test_size=inner, random_state=fold, stratify=strata[rest]
            )
            splits.append(Split(f"fold-{fold}-of-{folds}", np.sort(train), np.sort(val), test))
    return tuple(splits)


def as_published_split(dataset: GraphDataset) -> Split:
    """Train, choose and test on every graph, which is what the papers' code measures."""
    every = np.arange(len(dataset.graphs))
    return Split("as-published", every, every, every)


def random_split(dataset: GraphDataset, seed: int = 0) -> Split:
    """80/10/10, stratified by the first task."""
    strata = dataset.strata()
    with _explain_few(dataset):
        train, rest = train_test_split(
            np.arange(len(strata)), test_size=0.2, random_state=seed, stratify=strata
        )
        val, test = train_test_split(rest, test_size=0.5, random_state=seed, stratify=strata[rest])
    return Split(f"random-{seed}", np.sort(train), np.sort(val), np.sort(test))


def scaffold_split(dataset: GraphDataset) -> Split:
    """80/10/10 by Bemis-Murcko scaffold, the largest sets first: always the same.

    Sets of one size stay in the order of their first molecules. No scaffold is in two parts.
    """
    groups = sorted(_scaffolds(dataset), key=len, reverse=True)
    return _fill("scaffold", groups, len(dataset.graphs))


def balanced_scaffold_split(dataset: GraphDataset, seed: int = 0) -> Split:
    """80/10/10 by scaffold in a random order, those too large for val or test in train.

    Where the deterministic split would leave one class in the test part (Yang et al. 2019).
    """
    total = len(dataset.graphs)
    groups = sorted(_scaffolds(dataset))
    np.random.default_rng(seed).shuffle(groups)  # type: ignore[arg-type]
    large = [g for g in groups if len(g) > total / 20]
    return _fill(
        f"balanced-scaffold-{seed}", large + [g for g in groups if len(g) <= total / 20], total
    )


def _scaffolds(dataset: GraphDataset) -> list[list[int]]:
    if dataset.smiles is None:
        raise ValueError(f"{dataset.name}: only molecules have scaffolds")
    groups: dict[str, list[int]] = {}
    for index, smiles in enumerate(dataset.smiles):
        mol = smiles_to_rdkit(smiles, MoleculeLimits(max_characters=10_000, max_atoms=10_000))
        groups.setdefault(MurckoScaffold.MurckoScaffoldSmiles(mol=mol), []).append(index)
    return list(groups.values())


def _fill(name: str, groups: Sequence[Sequence[int]], total: int) -> Split:
    train: list[int] = []
    val: list[int] = []
    test: list[int] = []
    for group in groups:
        if len(train) + len(group) <= 0.8 * total:
            train += group
        elif len(train) + len(val) + len(group) <= 0.9 * total:
            val += group
        else:
            test += group
    return Split(name, *(np.sort(np.array(part, np.int64)) for part in (train, val, test)))
