"""Frames of the pipes to the SMILES processes: a JSON header and raw arrays.

A frame is two little-endian uint32, the lengths of header and body, then both; there is no pickle
in it. This module does not import torch, so that the child starts in a fraction of a second.
"""

from __future__ import annotations

import json
import struct
from typing import Any

import numpy as np

from models.inputs.graph import Graph
from models.inputs.molecules import Molecule

FRAME_PREFIX = struct.Struct("<II")


def encode_frame(header: dict[str, Any], body: bytes = b"") -> bytes:
    """Encode a frame."""
    encoded = json.dumps(header).encode()
    return FRAME_PREFIX.pack(len(encoded), len(body)) + encoded + body


def pack_molecule(molecule: Molecule) -> bytes:
    """Encode a molecule: x as float32, edge_attr as bytes (there are few categories), edge_index as
    uint16."""
    graph = molecule.graph
    assert graph.edge_attr is not None
    header = {"smiles": molecule.smiles, "x": graph.x.shape, "edge_attr": graph.edge_attr.shape}
    arrays = (graph.x.astype("<f4"), graph.edge_attr.astype("u1"), graph.edge_index.astype("<u2"))
    return encode_frame(header, b"".join(array.tobytes() for array in arrays))


def unpack_molecule(header: dict[str, Any], body: bytes) -> Molecule:
    """The molecule of a frame.

    Raises:
        ValueError: the frame does not fit itself.
    """
    nodes, columns = header["x"]
    edges, bond_columns = header["edge_attr"]
    at = 4 * nodes * columns
    ends = at + edges * bond_columns
    if len(body) != ends + 4 * edges:
        raise ValueError("a frame of the wrong length")
    graph = Graph(
        np.frombuffer(body, "<f4", nodes * columns).reshape(nodes, columns).astype(np.float32),
        np.frombuffer(body, "<u2", 2 * edges, ends).reshape(2, edges).astype(np.int64),
        None,
        np.frombuffer(body, "u1", ends - at, at).reshape(edges, bond_columns).astype(np.float32),
    )
    return Molecule(header["smiles"], graph)
