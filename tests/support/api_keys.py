"""Keys for tests, and a file of them that changes while a server runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from service.auth.keys import hash_secret, new_secret


class Ring:
    """A file of keys, and their secrets by name."""

    def __init__(self, path: Path) -> None:
        self.path, self.secrets = path, {}
        self._entries: dict[str, dict[str, Any]] = {}

    def add(self, name: str, **entry: Any) -> dict[str, str]:
        """Headers with a new key of this name, which is in the file by now."""
        secret = self.secrets[name] = new_secret()
        self._entries[name] = {
            "name": name,
            "sha256": [hash_secret(secret)],
            "routes": "*",
            "models": "*",
        } | entry
        self.write()
        return bearer(secret)

    def turn(self, name: str, keep: bool) -> dict[str, str]:
        """The same with another secret of that name, beside those it had or in their place."""
        secret = self.secrets[name] = new_secret()
        known = self._entries[name]["sha256"] if keep else []
        self._entries[name]["sha256"] = [*known, hash_secret(secret)]
        self.write()
        return bearer(secret)

    def drop(self, name: str) -> None:
        del self._entries[name]
        self.write()

    def write(self) -> None:
        new = self.path.with_suffix(".new")
        new.write_text(json.dumps({"keys": list(self._entries.values())}))
        new.replace(self.path)


def bearer(secret: str) -> dict[str, str]:
    return {"authorization": f"Bearer {secret}"}
