"""SMILES as RDKit reads them, the schema of their features, and every SMILES of the datasets."""

from __future__ import annotations

import csv

import numpy as np
import pytest
from rdkit import Chem

from models.base import DynamicsParams
from models.inputs.molecules import (
    ATOM_COLUMNS,
    BOND_COLUMNS,
    MoleculeError,
    MoleculeLimits,
    parse_smiles,
)
from models.registry import find_architectures
from models.tasks.graph_classifier import GraphClassifier
from tests.support.paths import DATA


def _named(smiles: str) -> tuple[list[dict[str, str]], list[dict[str, str]]]:
    graph = parse_smiles(smiles).graph
    assert graph.edge_attr is not None

    def rows(table: np.ndarray, columns) -> list[dict[str, str]]:
        return [
            {c.name: c.values[int(v)] for c, v in zip(columns, row, strict=True) if c.values}
            for row in table
        ]

    return rows(graph.x, ATOM_COLUMNS), rows(graph.edge_attr, BOND_COLUMNS)


def test_named_features() -> None:
    atoms, bonds = _named("C[C@H](N)C(=O)[O-]")
    assert atoms[1] == {
        "element": "C",
        "degree": "3",
        "formal charge": "0",
        "hybridisation": "SP3",
        "aromatic": "no",
        "hydrogens": "1",
        "chirality": "S",
        "smallest ring": "none",
    }
    assert atoms[5]["formal charge"] == "-1"
    assert bonds[3] == {"bond": "DOUBLE", "conjugated": "yes", "in ring": "no", "stereo": "none"}
    atoms, bonds = _named("F/C=C\\Cc1ccccc1")
    assert [bond["stereo"] for bond in bonds][:3] == ["none", "Z", "none"]
    assert atoms[-1]["aromatic"] == "yes"
    assert atoms[-1]["smallest ring"] == "6"
    assert _named("[U]")[0][0]["element"] == "other"


def test_numbers_of_atoms() -> None:
    columns = [column.name for column in ATOM_COLUMNS]
    x = parse_smiles("CC(=O)Oc1ccccc1C(=O)[O-]").graph.x
    assert x[:, columns.index("polar surface")].sum() == pytest.approx(66.43, abs=0.01)
    assert x[:, columns.index("partial charge")].argmin() in (11, 12)  # of the carboxylate
    aromatic, aliphatic = (parse_smiles(text).graph.x.sum(0) for text in ("c1ccccc1", "O"))
    at = columns.index("lipophilicity")
    assert aromatic[at] > 0 > aliphatic[at]
    for strange in ("[U]", "C[Hg]C", "[Na+].[Cl-]", "F[Pt](F)F", "[H][H]"):
        assert np.isfinite(parse_smiles(strange).graph.x).all()


@pytest.mark.parametrize(
    ("smiles", "canonical", "atoms"),
    [
        ("[Na+].[Cl-]", "[Cl-].[Na+]", 2),  # a salt stays together
        ("[H]C([H])([H])O", "CO", 2),  # explicit hydrogens become implicit
        ("[2H]C", "[2H]C", 2),  # an isotope does not
        ("[H][H]", "[H][H]", 2),
        ("OC(=O)[C@@H](N)C", "C[C@H](N)C(=O)O", 6),
        (" CCO ", "CCO", 3),
    ],
)
def test_as_rdkit_does(smiles: str, canonical: str, atoms: int) -> None:
    molecule = parse_smiles(smiles)
    assert molecule.smiles == canonical == Chem.MolToSmiles(Chem.MolFromSmiles(smiles))
    assert molecule.graph.num_nodes == atoms


@pytest.mark.parametrize(
    ("smiles", "code"),
    [
        ("", "empty"),
        ("   ", "empty"),
        ("not a molecule", "not_smiles"),
        ("CCO ethanol", "not_smiles"),
        ("C1CC", "not_smiles"),
        ("C\x00C", "not_smiles"),
        ("\ud800", "not_smiles"),
        ("Café", "not_smiles"),
        ("c1cccc1", "impossible_molecule"),
        ("C(C)(C)(C)(C)C", "impossible_molecule"),
        ("C" * 21, "too_long"),
        ("C" * 15, "too_many_atoms"),
    ],
)
def test_errors_name_the_cause_and_not_the_input(smiles: str, code: str, capfd) -> None:
    with pytest.raises(MoleculeError) as caught:
        parse_smiles(smiles, MoleculeLimits(max_characters=20, max_atoms=14))
    assert caught.value.code == code
    assert smiles.strip() not in str(caught.value) or not smiles.strip()
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("name", ["cdat-graph", "et-graph"])
def test_the_way_a_smiles_is_written_changes_nothing(name: str) -> None:
    """Another order of atoms and bonds of the same molecule, stereo and all."""
    kind = find_architectures()[name]
    small = {"dim": 16, "heads": 2, "head_dim": 8, "memories": 8, "blocks": 2}
    config = {"node_features": ATOM_COLUMNS, "edge_features": BOND_COLUMNS, **small}
    config["tasks"] = [{"name": "t", "labels": ["0", "1"]}]
    network = kind(kind.config_type.model_validate(config)).eval()  # type: ignore[call-arg]
    assert isinstance(network, GraphClassifier)
    for smiles in (
        "C[C@H](N)C(=O)N1CCC[C@H]1C(=O)O",
        "O=[N+]([O-])c1ccc2ccccc2c1",
        "C/C=C/c1ccncc1.Cl",
        "CC12CCC3C(CCC4=CC(=O)CCC34C)C1CCC2O",
    ):
        mol = Chem.MolFromSmiles(smiles)
        written = Chem.MolToRandomSmilesVect(mol, 6, randomSeed=1)
        graphs = [parse_smiles(text).graph for text in (smiles, *written)]
        logits = network.infer(network.pack(graphs), [DynamicsParams()] * len(graphs)).logits
        assert (logits - logits[0]).abs().max() < 1e-5


@pytest.mark.parametrize("name", ["AMES", "BBBP", "HIV"])
def test_every_smiles_gives_a_graph_or_a_clear_error(name: str) -> None:
    path = DATA / "molecules" / f"{name}.csv"
    if not path.is_file():
        pytest.skip("the datasets are not here; set BASIN_DATA")
    with path.open(newline="") as file:
        smiles = [row["smiles"] for row in csv.DictReader(file)]
    errors = 0
    for text in smiles[:: max(1, len(smiles) // 500)]:
        try:
            graph = parse_smiles(text).graph
        except MoleculeError:
            errors += 1
            continue
        assert graph.edge_attr is not None
        for table, columns in ((graph.x, ATOM_COLUMNS), (graph.edge_attr, BOND_COLUMNS)):
            assert np.isfinite(table).all()
            named = [i for i, column in enumerate(columns) if column.values]
            assert (table[:, named] >= 0).all()
            assert (table[:, named] < [len(columns[i].values or ()) for i in named]).all()
    assert errors <= 5
