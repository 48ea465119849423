"""A molecule with its atoms coloured by what they did, through RDKit. Needs no torch."""

from __future__ import annotations

from collections.abc import Sequence

from rdkit import rdBase
from rdkit.Chem.Draw import rdMolDraw2D

from models.inputs.molecules import MoleculeLimits, smiles_to_rdkit

_SIZE = 400, 300
_FOR, _AGAINST = (0.95, 0.35, 0.25), (0.3, 0.5, 0.95)
_FAINT = 0.05  # of the largest effect: below it an atom keeps its white


def draw_molecule(
    smiles: str, attributions: Sequence[float], limits: MoleculeLimits | None = None
) -> str:
    """SVG of a molecule; an atom is the redder the higher its effect, the bluer the lower.

    Args:
        effects: of each atom, in the order of the SMILES; the largest in size has the full colour.

    Raises:
        MoleculeError: as of `models.inputs.molecules.parse`.
        ValueError: there is not one effect for each atom.
    """
    mol = smiles_to_rdkit(smiles, limits or MoleculeLimits())
    if mol.GetNumAtoms() != len(attributions):
        raise ValueError("there must be one effect for each atom")
    largest = max(map(abs, attributions)) or 1.0
    shades = {i: effect / largest for i, effect in enumerate(attributions)}
    colours = {i: _shade(share) for i, share in shades.items() if abs(share) >= _FAINT}
    with rdBase.BlockLogs():
        drawer = rdMolDraw2D.MolDraw2DSVG(*_SIZE)
        options = drawer.drawOptions()
        options.useBWAtomPalette()
        options.fillHighlights = True
        rdMolDraw2D.PrepareAndDrawMolecule(
            drawer, mol, highlightAtoms=list(colours), highlightAtomColors=colours
        )
        drawer.FinishDrawing()
        return drawer.GetDrawingText()


def _shade(share: float) -> tuple[float, ...]:
    """From white to the colour of its side."""
    return tuple(1 - abs(share) * (1 - part) for part in (_FOR if share > 0 else _AGAINST))
