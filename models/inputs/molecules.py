"""Convert SMILES to graphs with RDKit, for training and serving alike; needs no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
from rdkit import Chem, rdBase
from rdkit.Chem import rdMolDescriptors, rdPartialCharges

from models.inputs.graph import Column, Graph

MoleculeErrorCode = Literal[
    "empty",
    "too_long",
    "not_smiles",
    "impossible_molecule",
    "no_atoms",
    "too_many_atoms",
    "timeout",
    "not_reached",
    "parser_crashed",
]

_DETAILS: dict[MoleculeErrorCode, str] = {
    "empty": "The SMILES is empty.",
    "too_long": "The SMILES has more characters than allowed (BASIN_MAX_SMILES_LENGTH).",
    "not_smiles": "The text is not valid SMILES. Check its brackets, ring numbers and atoms, and "
    "send it without spaces or a name.",
    "impossible_molecule": "RDKit rejects a valence, a charge or an aromatic ring of the molecule.",
    "no_atoms": "The molecule has no atoms.",
    "too_many_atoms": "The molecule has more atoms than allowed (BASIN_MAX_ATOMS).",
    "timeout": "Reading the SMILES took longer than allowed (BASIN_SMILES_TIMEOUT_S).",
    "not_reached": "The time to read the SMILES of one request (BASIN_SMILES_BUDGET_S) ended "
    "before this one was read. Send fewer SMILES, or retry.",
    "parser_crashed": "The parser process crashed while it read this SMILES.",
}
assert set(_DETAILS) == set(get_args(MoleculeErrorCode))


class MoleculeError(ValueError):
    """A SMILES that gives no graph. The message states the reason and never repeats the input."""

    def __init__(self, code: MoleculeErrorCode) -> None:
        super().__init__(_DETAILS[code])
        self.code: MoleculeErrorCode = code


@dataclass(frozen=True)
class MoleculeLimits:
    """Limits of one SMILES; hydrogens that RDKit makes implicit do not count as atoms."""

    max_characters: int = 2_000
    max_atoms: int = 500


@dataclass(frozen=True)
class Molecule:
    """Canonical SMILES, and the graph of the atoms in the order of the SMILES that was read."""

    smiles: str
    graph: Graph


_ELEMENTS = (
    *("H", "Li", "B", "C", "N", "O", "F", "Na", "Mg", "Al", "Si", "P", "S", "Cl", "K", "Ca"),
    *("Cr", "Mn", "Fe", "Co", "Ni", "Cu", "Zn", "As", "Se", "Br", "Ag", "Sn", "Te", "I"),
    *("Pt", "Au", "Hg", "other"),
)
_CHARGES = ("-2 or less", "-1", "0", "+1", "+2 or more")
_HYBRIDS = ("S", "SP", "SP2", "SP3", "SP3D", "SP3D2", "other")
_CHIRALITY = ("none", "R", "S")
_RINGS = ("none", "3", "4", "5", "6", "7", "8 or more")
_BONDS = ("SINGLE", "DOUBLE", "TRIPLE", "AROMATIC", "other")
_STEREO = ("none", "Z", "E")
_NO_YES = ("no", "yes")

ATOM_COLUMNS = (
    Column("element", _ELEMENTS),
    Column("degree", ("0", "1", "2", "3", "4", "5", "6 or more")),
    Column("formal charge", _CHARGES),
    Column("hybridisation", _HYBRIDS),
    Column("aromatic", _NO_YES),
    Column("hydrogens", ("0", "1", "2", "3", "4 or more")),
    Column("chirality", _CHIRALITY),
    Column("smallest ring", _RINGS),
    Column("partial charge"),  # Gasteiger and Marsili 1980, in e
    Column("lipophilicity"),  # share of logP, Wildman and Crippen 1999
    Column("refractivity"),  # share of the molar refractivity, the same, in cm3/mol
    Column("polar surface"),  # share of the topological polar surface, Ertl et al. 2000, in A2
)
BOND_COLUMNS = (
    Column("bond", _BONDS),
    Column("conjugated", _NO_YES),
    Column("in ring", _NO_YES),
    Column("stereo", _STEREO),
)


def _index_values(values: tuple[str, ...]) -> dict[str, int]:
    return {value: index for index, value in enumerate(values)}


_ELEMENT_INDEX = _index_values(_ELEMENTS)
_HYBRID_INDEX = _index_values(_HYBRIDS)
_CHIRALITY_INDEX = _index_values(_CHIRALITY)
_BOND_INDEX = _index_values(_BONDS)
_STEREO_INDEX = {Chem.BondStereo.STEREOZ: 1, Chem.BondStereo.STEREOE: 2}


def check_smiles_text(smiles: str, limits: MoleculeLimits) -> str:
    """Return the SMILES without surrounding white space.

    Raises:
        MoleculeError: `empty`, `too_long`, or `not_smiles` for a character that no SMILES has.
    """
    smiles = smiles.strip()
    if not smiles:
        raise MoleculeError("empty")
    if len(smiles) > limits.max_characters:
        raise MoleculeError("too_long")
    # RDKit would take the text after a space for a name or an extension; neither is allowed here.
    if not smiles.isascii() or not smiles.isprintable() or " " in smiles:
        raise MoleculeError("not_smiles")
    return smiles


def smiles_to_rdkit(smiles: str, limits: MoleculeLimits) -> Any:
    """Return RDKit's molecule of a SMILES.

    Salts stay together as parts of one molecule. Isotopes are accepted but are no feature.
    Explicit hydrogens become implicit where RDKit makes them so.

    Raises:
        MoleculeError: the SMILES gives no molecule; RDKit's own messages are silenced.
    """
    smiles = check_smiles_text(smiles, limits)
    with rdBase.BlockLogs():
        mol = Chem.MolFromSmiles(smiles)
        if mol is None:
            is_valid_syntax = Chem.MolFromSmiles(smiles, sanitize=False) is not None
            raise MoleculeError("impossible_molecule" if is_valid_syntax else "not_smiles")
    if mol.GetNumAtoms() == 0:
        raise MoleculeError("no_atoms")
    if mol.GetNumAtoms() > limits.max_atoms:
        raise MoleculeError("too_many_atoms")
    return mol


def parse_smiles(smiles: str, limits: MoleculeLimits | None = None) -> Molecule:
    """Return canonical SMILES and graph: x by `ATOM_COLUMNS`, edge_attr by `BOND_COLUMNS`.

    Each bond is one edge; networks use it in both directions. Chirality and stereo are CIP labels
    (R, S, E, Z), which, unlike RDKit's tags, do not depend on how the atoms are numbered.

    Raises:
        MoleculeError: the SMILES gives no molecule.
    """
    mol = smiles_to_rdkit(smiles, limits or MoleculeLimits())
    rings = mol.GetRingInfo()
    atoms = [_encode_atom(atom, rings.MinAtomRingSize(i)) for i, atom in enumerate(mol.GetAtoms())]
    bonds = [_encode_bond(bond) for bond in mol.GetBonds()]
    ends = [(bond.GetBeginAtomIdx(), bond.GetEndAtomIdx()) for bond in mol.GetBonds()]
    graph = Graph(
        np.hstack([np.array(atoms, np.float32), _compute_atom_numbers(mol)]),
        np.array(ends, np.int64).reshape(-1, 2).T,
        None,
        np.array(bonds, np.float32).reshape(-1, len(BOND_COLUMNS)),
    )
    with rdBase.BlockLogs():
        return Molecule(Chem.MolToSmiles(mol), graph)


def _encode_atom(atom: Any, ring_size: int) -> tuple[int, ...]:
    """Return the indices of the categorical `ATOM_COLUMNS`."""
    label = atom.GetProp("_CIPCode") if atom.HasProp("_CIPCode") else "none"
    return (
        _ELEMENT_INDEX.get(atom.GetSymbol(), len(_ELEMENTS) - 1),
        min(atom.GetDegree(), 6),
        min(max(atom.GetFormalCharge(), -2), 2) + 2,
        _HYBRID_INDEX.get(atom.GetHybridization().name, len(_HYBRIDS) - 1),
        int(atom.GetIsAromatic()),
        min(atom.GetTotalNumHs(), 4),
        _CHIRALITY_INDEX.get(label, 0),
        min(ring_size, 8) - 2 if ring_size else 0,
    )


def _compute_atom_numbers(mol: Any) -> np.ndarray:
    """Return the numerical `ATOM_COLUMNS`, float32 (atoms, 4)."""
    with rdBase.BlockLogs():
        rdPartialCharges.ComputeGasteigerCharges(mol)
        crippen = np.array(rdMolDescriptors._CalcCrippenContribs(mol))
        polar = rdMolDescriptors._CalcTPSAContribs(mol)
    # Metals have no Gasteiger parameters; the charges of their neighbours become NaN or infinite.
    charges = [atom.GetDoubleProp("_GasteigerCharge") for atom in mol.GetAtoms()]
    charges = np.nan_to_num(charges, nan=0, posinf=0, neginf=0).clip(-2, 2)
    return np.c_[charges, crippen, polar].astype(np.float32)


def _encode_bond(bond: Any) -> tuple[int, ...]:
    """Return the indices of `BOND_COLUMNS`."""
    return (
        _BOND_INDEX.get(bond.GetBondType().name, len(_BONDS) - 1),
        int(bond.GetIsConjugated()),
        int(bond.IsInRing()),
        _STEREO_INDEX.get(bond.GetStereo(), 0),
    )
