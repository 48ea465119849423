"""`python -m service.workers.smiles_worker`: read SMILES from stdin, write molecules or drawings of
them to stdout."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import BinaryIO

from models.inputs.molecules import Molecule, MoleculeError, MoleculeLimits, parse_smiles
from models.interpret.molecule_svg import draw_molecule
from service.workers.smiles_frames import FRAME_PREFIX, encode_frame, pack_molecule

_MEMORY = 4 << 30  # bytes of address space: a molecule that needs more ends this process only


def serve(
    source: BinaryIO, sink: BinaryIO, read: Callable[[str, MoleculeLimits], Molecule] = parse_smiles
) -> None:
    """Answer requests until `source` ends: a frame for each SMILES, in order, once it is read.

    Should the parent be gone while a molecule hangs, an alarm ends the process: its default
    action needs no Python, which would not get to run.
    """
    sink.write(encode_frame({"ready": True}))
    sink.flush()
    while prefix := source.read(FRAME_PREFIX.size):
        request = json.loads(source.read(sum(FRAME_PREFIX.unpack(prefix))))
        limits = MoleculeLimits(**request["limits"])
        effects = request["effects"] or [None] * len(request["smiles"])
        for smiles, of_atoms in zip(request["smiles"], effects, strict=True):
            signal.setitimer(signal.ITIMER_REAL, request["alarm_s"])
            try:
                if of_atoms is None:
                    answer = pack_molecule(read(smiles, limits))
                else:
                    answer = encode_frame(
                        {"svg": True}, draw_molecule(smiles, of_atoms, limits).encode()
                    )
            except MoleculeError as error:
                answer = encode_frame({"error": error.code})
            signal.setitimer(signal.ITIMER_REAL, 0)
            sink.write(answer)
            sink.flush()


if __name__ == "__main__":
    with suppress(ImportError, ValueError, OSError):  # not every system lets this be set
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    # Ctrl-C in a terminal goes to the whole group; the parent decides when this one ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    serve(sys.stdin.buffer, sys.stdout.buffer)
