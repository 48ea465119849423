"""The parser's child with two poisons: xenon hangs it for ever, neon aborts it."""

import os
import sys
import time

from models.molecules import Limits, Molecule, parse
from service.molecules.child import serve


def read(smiles: str, limits: Limits) -> Molecule:
    while smiles == "[Xe]":
        time.sleep(0.01)
    if smiles == "[Ne]":
        os.abort()
    return parse(smiles, limits)


serve(sys.stdin.buffer, sys.stdout.buffer, read)
