"""Readers of graph datasets, on files of the published layout, and their splits."""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from rdkit.Chem.Scaffolds import MurckoScaffold

from training.datasets import (
    GraphDataset,
    balanced_scaffold_split,
    k_folds,
    load_smiles,
    load_tu,
    random_split,
    scaffold_split,
)
from training.datasets.sources import data_folder
from training.datasets.tu import read_tu


def _zip(folder: Path, name: str, **parts: str) -> Path:
    with zipfile.ZipFile(folder / f"{name}.zip", "w") as archive:
        for part, text in parts.items():
            archive.writestr(f"{name}//{name}_{part}.txt", text)  # as in the published files
    return folder / f"{name}.zip"


def test_tu_files(tmp_path: Path) -> None:
    path = _zip(
        tmp_path,
        "MUTAG",
        A="1, 2\n2, 1\n4, 3\n3, 4\n",
        graph_indicator="1\n1\n2\n2\n2\n",
        graph_labels="-1\n1\n",
        node_labels="7\n3\n3\n7\n9\n",
        node_attributes="0.5, 1\n1.5, 2\n2.5, 3\n3.5, 4\n4.5, 5\n",
        edge_labels="0\n0\n2\n2\n",
    )
    dataset = load_tu("MUTAG", tmp_path)
    assert dataset.labels.tolist() == [[0], [1]]
    assert dataset.tasks[0].labels == ("-1", "1")
    assert [c.name for c in dataset.node_features] == ["label0", "attribute0", "attribute1"]
    assert dataset.node_features[0].values == ("3", "7", "9")
    first, second = dataset.graphs
    np.testing.assert_allclose(second.x, [[0, 2.5, 3], [1, 3.5, 4], [2, 4.5, 5]])
    assert first.edge_index.tolist() == [[0, 1], [1, 0]]
    assert second.edge_index.tolist() == [[1, 0], [0, 1]]
    assert second.edge_attr is not None
    assert second.edge_attr.tolist() == [[1], [1]]
    with pytest.raises(ValueError, match="not a TUDataset zip"):
        read_tu(path, "NCI1")
    with pytest.raises(ValueError, match="unknown dataset"):
        load_tu("nonsense", tmp_path)


def test_tu_files_that_do_not_fit(tmp_path: Path) -> None:
    path = _zip(tmp_path, "DD", A="1, 3\n", graph_indicator="1\n1\n2\n", graph_labels="1\n2\n")
    with pytest.raises(ValueError, match="do not fit each other"):
        read_tu(path, "DD")


@pytest.mark.skipif(not (data_folder() / "tu").is_dir(), reason="the datasets are not here")
@pytest.mark.parametrize(
    ("name", "graphs", "nodes", "classes"),
    [("MUTAG", 188, 3371, 2), ("ENZYMES", 600, 19580, 6), ("PROTEINS", 1113, 43471, 2)],
)
def test_real_tu_files(name: str, graphs: int, nodes: int, classes: int) -> None:
    dataset = load_tu(name)
    assert len(dataset.graphs) == graphs
    assert sum(graph.num_nodes for graph in dataset.graphs) == nodes
    assert len(dataset.tasks[0].labels) == classes


@pytest.fixture
def molecules(tmp_path: Path) -> GraphDataset:
    rings = ["c1ccccc1", "C1CCCCC1", "c1ccncc1", "C1CCNCC1", "c1ccoc1", "C1CC1", "c1ccc2ccccc2c1"]
    rows = [
        (ring + "C" * n, (i + n) % 2, None if n == 1 else "odd" if n % 2 else "even")
        for i, ring in enumerate(rings)
        for n in range(12 - i)
    ]
    rows += [("C" * n, n % 2, "odd") for n in range(1, 6)] + [
        ("not one", 1, "odd"),
        (None, 0, "odd"),
    ]
    table = pd.DataFrame(rows, columns=["smiles", "a", "b"])
    table.to_csv(tmp_path / "Mols.csv", index=False)
    return load_smiles(tmp_path / "Mols.csv", "smiles", ["a", "b"])


def test_smiles_tables(molecules: GraphDataset, tmp_path: Path) -> None:
    assert molecules.name == "mols"
    assert molecules.note == "Left out: 1 empty, 1 not_smiles."
    assert [task.labels for task in molecules.tasks] == [("0", "1"), ("even", "odd")]
    assert molecules.labels[1].tolist() == [1, -1]
    assert molecules.smiles is not None
    assert len(molecules.smiles) == len(molecules.graphs) == 68
    with pytest.raises(ValueError, match="no column 'c'"):
        load_smiles(tmp_path / "Mols.csv", "smiles", ["c"])


def _is_a_partition(dataset: GraphDataset, split) -> None:
    every = np.concatenate([split.train, split.val, split.test])
    assert sorted(every.tolist()) == list(range(len(dataset.graphs)))


def test_molecules_that_come_again_count_once(tmp_path: Path) -> None:
    rows = [
        *(("CCO", 1, "a"), ("OCC", 1, None), ("C(O)C", 1, "b")),  # ethanol: b contradicts a
        *(("CC", 0, "a"), ("C", 1, "b"), ("C", 0, "b"), ("?", 0, "b")),
    ]
    pd.DataFrame(rows, columns=["smi", "y", "z"]).to_csv(tmp_path / "m.csv", index=False)
    dataset = load_smiles(tmp_path / "m.csv", "smi", ["y", "z"])
    assert dataset.smiles == ("CCO", "CC", "C")
    assert dataset.labels.tolist() == [[1, -1], [0, 0], [-1, 1]]
    assert dataset.note == (
        "Left out: 1 not_smiles, 3 that came again. 2 had contradicting labels, which do not count."
    )


def test_numbers_are_no_labels(tmp_path: Path) -> None:
    rows = [("C" * (i + 1), i / 7) for i in range(60)]
    pd.DataFrame(rows, columns=["smi", "y"]).to_csv(tmp_path / "m.csv", index=False)
    with pytest.raises(ValueError, match="'y' holds numbers with decimals"):
        load_smiles(tmp_path / "m.csv", "smi", ["y"])


def test_scaffold_splits_share_no_scaffold(molecules: GraphDataset) -> None:
    assert molecules.smiles is not None
    scaffolds = np.array([MurckoScaffold.MurckoScaffoldSmiles(s) for s in molecules.smiles])
    splits = [scaffold_split(molecules), *(balanced_scaffold_split(molecules, s) for s in (0, 1))]
    for split in splits:
        _is_a_partition(molecules, split)
        parts = [set(scaffolds[part]) for part in (split.train, split.val, split.test)]
        assert not parts[0] & parts[1]
        assert not parts[0] & parts[2]
        assert not parts[1] & parts[2]
        assert len(split.train) <= 0.8 * len(molecules.graphs)
    assert "c1ccccc1" in set(scaffolds[splits[0].train])  # the largest set comes first
    again = scaffold_split(molecules)
    assert np.array_equal(again.test, splits[0].test)
    assert not np.array_equal(splits[1].train, splits[2].train)


def test_folds_are_stratified_and_hold_out_some_to_choose_by(molecules: GraphDataset) -> None:
    splits = k_folds(molecules, 5)
    tests = np.concatenate([split.test for split in splits])
    assert sorted(tests.tolist()) == list(range(len(molecules.graphs)))
    for split in splits:
        _is_a_partition(molecules, split)
        assert abs(molecules.labels[split.test, 0].mean() - molecules.labels[:, 0].mean()) < 0.1
    _is_a_partition(molecules, random_split(molecules))


def test_only_molecules_have_scaffolds(molecules: GraphDataset) -> None:
    from dataclasses import replace

    with pytest.raises(ValueError, match="only molecules"):
        scaffold_split(replace(molecules, smiles=None))
