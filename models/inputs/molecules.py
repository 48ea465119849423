"""SMILES to graph, through RDKit; the same code in training and serving. Needs no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
from rdkit import Chem, rdBase
from rdkit.Chem import rdMolDescriptors, rdPartialCharges

from models.inputs.graph import Column, Graph

Code = Literal[
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

_DETAILS: dict[Code, str] = {
    "empty": "there is nothing to read",
    "too_long": "more characters than are accepted",
    "not_smiles": "not the syntax of SMILES",
    "impossible_molecule": "a valence, charge or aromatic ring that RDKit does not accept",
    "no_atoms": "it has no atoms",
    "too_many_atoms": "more atoms than are accepted",
    "timeout": "it took longer to read than is allowed",
    "not_reached": "the time to read the molecules of one request was over before it",
    "parser_crashed": "reading it ended the parser",
}
assert set(_DETAILS) == set(get_args(Code))


class MoleculeError(ValueError):
    """A SMILES that gives no graph; says why and never repeats it."""

    def __init__(self, code: Code) -> None:
        super().__init__(_DETAILS[code])
        self.code: Code = code


@dataclass(frozen=True)
class Limits:
    """What is read at all; hydrogens that RDKit makes implicit do not count as atoms."""

    max_characters: int = 2_000
    max_atoms: int = 500


@dataclass(frozen=True)
class Molecule:
    """Canonical SMILES, and the graph of the atoms in their order in the SMILES that was read."""

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

_PLACE = {
    name: {value: i for i, value in enumerate(values)}
    for name, values in (
        ("element", _ELEMENTS),
        ("hybrid", _HYBRIDS),
        ("chirality", _CHIRALITY),
        ("bond", _BONDS),
    )
}


def check_text(smiles: str, limits: Limits) -> str:
    """The SMILES without the white space around it.

    Raises:
        MoleculeError: `empty`, `too_long`, or `not_smiles` where a character can be in none.
    """
    smiles = smiles.strip()
    if not smiles:
        raise MoleculeError("empty")
    if len(smiles) > limits.max_characters:
        raise MoleculeError("too_long")
    # RDKit takes what follows a space for a name or an extension: neither is read here.
    if not smiles.isascii() or not smiles.isprintable() or " " in smiles:
        raise MoleculeError("not_smiles")
    return smiles


def read(smiles: str, limits: Limits) -> Any:
    """RDKit's molecule of a SMILES.

    Salts stay together as parts of one molecule; isotopes are kept but are no feature; explicit
    hydrogens become implicit where RDKit makes them so.

    Raises:
        MoleculeError: with its code; RDKit's own messages are silenced.
    """
    smiles = check_text(smiles, limits)
    with rdBase.BlockLogs():
        mol = Chem.MolFromSmiles(smiles)
        if mol is None:
            known = Chem.MolFromSmiles(smiles, sanitize=False) is not None
            raise MoleculeError("impossible_molecule" if known else "not_smiles")
    if mol.GetNumAtoms() == 0:
        raise MoleculeError("no_atoms")
    if mol.GetNumAtoms() > limits.max_atoms:
        raise MoleculeError("too_many_atoms")
    return mol


def parse(smiles: str, limits: Limits | None = None) -> Molecule:
    """Canonical SMILES and graph: x by `ATOM_COLUMNS`, edge_attr by `BOND_COLUMNS`.

    Each bond is one edge; networks see it from both ends. Chirality and stereo are CIP labels (R,
    S, E, Z), which do not depend on how the atoms are numbered as RDKit's tags do.

    Raises:
        MoleculeError: with its code.
    """
    mol = read(smiles, limits or Limits())
    rings = mol.GetRingInfo()
    names = [_atom(atom, rings.MinAtomRingSize(i)) for i, atom in enumerate(mol.GetAtoms())]
    bonds = [_bond(bond) for bond in mol.GetBonds()]
    ends = [(bond.GetBeginAtomIdx(), bond.GetEndAtomIdx()) for bond in mol.GetBonds()]
    graph = Graph(
        np.hstack([np.array(names, np.float32), _numbers(mol)]),
        np.array(ends, np.int64).reshape(-1, 2).T,
        None,
        np.array(bonds, np.float32).reshape(-1, len(BOND_COLUMNS)),
    )
    with rdBase.BlockLogs():
        return Molecule(Chem.MolToSmiles(mol), graph)


def _atom(atom: Any, ring: int) -> tuple[int, ...]:
    label = atom.GetProp("_CIPCode") if atom.HasProp("_CIPCode") else "none"
    return (
        _PLACE["element"].get(atom.GetSymbol(), len(_ELEMENTS) - 1),
        min(atom.GetDegree(), 6),
        min(max(atom.GetFormalCharge(), -2), 2) + 2,
        _PLACE["hybrid"].get(atom.GetHybridization().name, len(_HYBRIDS) - 1),
        int(atom.GetIsAromatic()),
        min(atom.GetTotalNumHs(), 4),
        _PLACE["chirality"].get(label, 0),
        min(ring, 8) - 2 if ring else 0,
    )


def _numbers(mol: Any) -> np.ndarray:
    """What is known of each atom beyond its names, float32 (atoms, 4)."""
    with rdBase.BlockLogs():
        rdPartialCharges.ComputeGasteigerCharges(mol)
        crippen = np.array(rdMolDescriptors._CalcCrippenContribs(mol))
        polar = rdMolDescriptors._CalcTPSAContribs(mol)
    # Metals have no parameters, and spoil the charges of what they touch.
    charges = [atom.GetDoubleProp("_GasteigerCharge") for atom in mol.GetAtoms()]
    charges = np.nan_to_num(charges, nan=0, posinf=0, neginf=0).clip(-2, 2)
    return np.c_[charges, crippen, polar].astype(np.float32)


def _bond(bond: Any) -> tuple[int, ...]:
    stereo = bond.GetStereo()
    return (
        _PLACE["bond"].get(bond.GetBondType().name, len(_BONDS) - 1),
        int(bond.GetIsConjugated()),
        int(bond.IsInRing()),
        {Chem.BondStereo.STEREOZ: 1, Chem.BondStereo.STEREOE: 2}.get(stereo, 0),
    )
