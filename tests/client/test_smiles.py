"""Molecules from files and from Python, and which arguments of a command are files."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from basin_client import InputError
from basin_client.operations import classify
from basin_client.smiles import looks_like_file, read_smiles, to_smiles_list
from rdkit import Chem

from training.datasets import load_smiles, random_split


@pytest.mark.parametrize(
    ("name", "content", "smiles", "names"),
    [
        ("a.smi", "CCO ethanol\nC\tmethane gas\n", ["CCO", "C"], ["ethanol", "methane gas"]),
        ("a.smi", "\ufeffCCO ethanol\r\nC methane\r\n", ["CCO", "C"], ["ethanol", "methane"]),
        ("a.smi", "smiles name\nCCO ethanol\n", ["CCO"], ["ethanol"]),
        ("a.smi", "SMILES\tname\nCCO\tethanol\n", ["CCO"], ["ethanol"]),
        ("a.smi", "# two\nCCO\n\nC\n", ["CCO", "C"], None),
        ("a.smi", "CCO |$a;b;c$| ethanol\nC |^1:0|\n", ["CCO", "C"], ["ethanol", ""]),
        ("a.smi.gz", "CCO ethanol\n", ["CCO"], ["ethanol"]),
        ("a.txt", "smiles,name\nCCO,ethanol\n", ["CCO"], ["ethanol"]),
        ("a.csv", 'Smiles;name\nCCO;"eth\nanol"\n;x\n', ["CCO", ""], ["eth\nanol", "x"]),
        ("a.csv", "smiles\nNA\nnull\n\n", ["NA", "null", ""], None),
        ("a.smi", "CCO eth\u2028anol\nC m\n", ["CCO", "C"], ["eth\u2028anol", "m"]),
        ("a.txt", "# two\nsmiles,name\nCCO,x\n", ["CCO"], ["x"]),
        ("a.smi", " # c\nCCO ethanol\n", ["CCO"], ["ethanol"]),
        ("a.json", '[{"smiles": "C", "name": "x"}, {"smiles": null}]', ["C", ""], ["x", None]),
    ],
)
def test_files(tmp_path: Path, name: str, content: str, smiles: list, names: list | None) -> None:
    raw = content.encode()
    (tmp_path / name).write_bytes(gzip.compress(raw) if name.endswith(".gz") else raw)
    table = read_smiles(tmp_path / name)
    assert table.smiles == smiles
    assert len(table.columns) == len(smiles)
    if names is None:
        assert table.columns.columns.empty
    else:
        column = table.columns["name"]
        assert [None if pd.isna(text) else text for text in column] == names
    assert all(tmp_path.name in note for note in table.notes)


def test_what_is_no_file_of_molecules(tmp_path: Path) -> None:
    for name, message in (("none.smi", "no such file"), ("none.csv", "no such file")):
        with pytest.raises(InputError, match=message):
            read_smiles(tmp_path / name)
    (tmp_path / "a.csv").write_text("structure\nCCO\n")
    with pytest.raises(InputError, match=r"Columns: structure\. .* --column"):
        read_smiles(tmp_path / "a.csv")
    (tmp_path / "two.smi").write_text("smiles,id,smiles\nCCO,1,CC\n")
    with pytest.raises(InputError, match="two columns are called 'smiles'"):
        read_smiles(tmp_path / "two.smi")
    (tmp_path / "b.csv").write_text("smiles,SMILES\nC,C\n")
    assert read_smiles(tmp_path / "b.csv").smiles == ["C"]  # the one that is called so exactly


@pytest.mark.parametrize(
    ("argument", "expected"),
    [
        *(("CCO", False), ("C/C=C/C", False), ("CC.Cl", False), ("C" * 5000, False)),
        *(("none.smi", True), ("none.CSV", True), ("none.smi.gz", True), ("-", True)),
        ("README.md", True),  # there is such a file
    ],
)
def test_arguments_that_are_files(argument: str, expected: bool) -> None:
    assert looks_like_file(argument) == expected


def test_python_objects() -> None:
    molecule = Chem.MolFromSmiles("OCC")
    assert to_smiles_list(["C", None, float("nan"), pd.NA, molecule]) == ["C", "", "", "", "OCC"]
    assert to_smiles_list([1]) is None
    for inputs in (pd.Series(["C", None]), np.array(["C", ""]), (s for s in ["C", ""]), ("C", "")):
        assert b'"smiles": ["C", ""]' in classify(inputs).content
    assert b'"smiles": ["CCO"]' in classify("CCO").content


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        (["0", "1", "", "1.0"], ("0", "1")),
        (["2", "10", "1", "2"], ("1", "2", "10")),
        (["no", "yes", "", "no"], ("no", "yes")),
        (["False", "True", "True", ""], ("False", "True")),
    ],
)
def test_labels_of_molecules(tmp_path: Path, labels: list[str], expected: tuple) -> None:
    rows = [f"{'C' * (i + 1)},{label}\n" for i, label in enumerate(labels)]
    (tmp_path / "m.csv").write_text("smiles,y\n" + "".join(rows))
    dataset = load_smiles(tmp_path / "m.csv", "smiles", ["y"])
    assert dataset.tasks[0].labels == expected
    blank = [label == "" for label in labels]
    assert ((dataset.labels[:, 0] == -1) == blank).all()


def test_a_label_too_rare_for_a_split_is_named(tmp_path: Path) -> None:
    rows = [f"{'C' * (i + 1)},{int(i == 3)}\n" for i in range(20)]
    (tmp_path / "m.csv").write_text("smiles,y\n" + "".join(rows))
    with pytest.raises(ValueError, match="1 with the label 1 of y, are too few for a split"):
        random_split(load_smiles(tmp_path / "m.csv", "smiles", ["y"]))
    # Molecules without the label are drawn like the others.
    rows = [f"{'C' * (i + 1)},{'' if i == 3 else i % 2}\n" for i in range(20)]
    (tmp_path / "m.csv").write_text("smiles,y\n" + "".join(rows))
    split = random_split(load_smiles(tmp_path / "m.csv", "smiles", ["y"]))
    assert sum(map(len, split.parts().values())) == 20
