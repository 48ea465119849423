"""Digests of stored graphs: each is of a revision and of all that led to it.

A new graph has SHA-256 of its tag, which is random, and of SHA-256 of its snapshot file; a change
has SHA-256 of the digest before it and of the bytes of the update. So two graphs that differ, or
came to be in another way, have other digests, also where their revisions have the same number.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

_SHORT = 16  # hexadecimal digits


def hash_snapshot(file: bytes) -> str:
    return hashlib.sha256(file).hexdigest()


def shorten_digest(digest: str) -> str:
    """Return a digest as clients see it."""
    return digest[:_SHORT]


def begin_digest(tag: str, snapshot: str) -> str:
    """Return the digest of a new graph.

    Args:
        snapshot: `hash_snapshot` of its file.
    """
    return hashlib.sha256(f"{tag} {snapshot}".encode()).hexdigest()


def extend_digest(before: str, update: bytes) -> str:
    """Return the digest after an update."""
    return hashlib.sha256(bytes.fromhex(before) + update).hexdigest()


def extend_over(before: str, updates: Iterable[bytes]) -> str:
    """Return the digest after some updates."""
    for update in updates:
        before = extend_digest(before, update)
    return before
