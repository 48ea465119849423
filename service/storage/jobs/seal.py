"""Version, length and digest of what is stored, so that damage is noticed when it is read."""

from __future__ import annotations

import hashlib

_VERSION = b"1"  # of the form in which jobs are stored


def make_seal(*parts: bytes) -> bytes:
    """Return version, length in bytes and SHA-256 of `parts`; where one ends counts."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(len(part).to_bytes(8))
        digest.update(part)
    length = sum(len(part) for part in parts)
    return b"%b %d %b" % (_VERSION, length, digest.hexdigest().encode())


def find_damage(seal: bytes | None, *parts: bytes | None) -> str | None:
    """Return why `parts` are not those that `seal` was made of, or None."""
    given = [part for part in parts if part is not None]
    if seal is None or len(given) < len(parts):
        return "a field is missing"
    if seal == (expected := make_seal(*given)):
        return None
    version, *length = seal.split(b" ")[:2]
    if version != _VERSION:
        return "it is of another version"
    if length != expected.split(b" ")[1:2]:
        return "its length differs"
    return "its digest differs"
