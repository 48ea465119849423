"""The parser's child with poisons: xenon hangs it for ever, neon aborts it, argon slows it."""

import os
import sys
import time

from models.inputs.molecules import Molecule, MoleculeLimits, parse_smiles
from service.workers.smiles_worker import serve


def read(smiles: str, limits: MoleculeLimits) -> Molecule:
    while smiles == "[Xe]":
        time.sleep(0.01)
    if smiles == "[Ne]":
        os.abort()
    if smiles == "[Ar]":
        time.sleep(0.3)
    return parse_smiles(smiles, limits)


serve(sys.stdin.buffer, sys.stdout.buffer, read)
