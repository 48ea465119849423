"""The digest by which a damaged manifest.json is noticed.

It is the SHA-256 of the file without the line in which it is written, the last one before the
closing brace. Every other byte counts, so a manifest that is only formatted anew must be sealed
anew too. By hand:

    grep -v '^ "digest": ' manifest.json | sha256sum
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from typing import Any

_LINE = re.compile(rb'^ "digest": "([0-9a-f]{64})"\n(?=\}\n\Z)', re.MULTILINE)


def write_with_digest(manifest: Mapping[str, Any]) -> bytes:
    """Return the bytes of manifest.json, with the digest of `manifest` as it is now."""
    fields = {name: value for name, value in manifest.items() if name != "digest"}
    text = json.dumps(fields | {"digest": "0" * 64}, indent=1, ensure_ascii=False) + "\n"
    raw = text.encode()
    line = _LINE.search(raw)
    assert line is not None
    return raw[: line.start(1)] + _compute_digest(raw, line).encode() + raw[line.end(1) :]


def has_intact_digest(raw: bytes) -> bool:
    """Whether the bytes of manifest.json have a digest, which is theirs."""
    line = _LINE.search(raw)
    return line is not None and line[1].decode() == _compute_digest(raw, line)


def _compute_digest(raw: bytes, line: re.Match[bytes]) -> str:
    return hashlib.sha256(raw[: line.start()] + raw[line.end() :]).hexdigest()
