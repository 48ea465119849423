"""Numbers by chance that are the same wherever a node is: an order, and a choice of neighbours."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b

import numpy as np
import orjson

from service.validation.ids import NodeId


def hash_node(id: NodeId) -> int:
    """Return 64 bits that depend on the id alone."""
    return int.from_bytes(blake2b(orjson.dumps(id), digest_size=8).digest(), "little")


def hash_nodes(ids: Sequence[NodeId]) -> np.ndarray:
    """Return `hash_node` of each id, uint64."""
    return np.fromiter(map(hash_node, ids), np.uint64, len(ids))


def mix(values: np.ndarray) -> np.ndarray:
    """Spread values over all 64 bits (the finaliser of SplitMix64)."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
