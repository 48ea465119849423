"""Where the replicas can be watched: each has numbers of its own, behind one address."""

from __future__ import annotations

import json
import time
from functools import cache
from pathlib import Path
from typing import Any, final

import ray

_FORGOTTEN_S = 60.0


@final
class Roster:
    """Who has told of itself of late."""

    def __init__(self) -> None:
        self._told: dict[str, tuple[str, float]] = {}

    def enter(self, replica: str, address: str) -> None:
        self._told[replica] = address, time.monotonic()

    def targets(self) -> list[dict[str, Any]]:
        """As Prometheus reads them from a file."""
        since = time.monotonic() - _FORGOTTEN_S
        self._told = {name: told for name, told in self._told.items() if told[1] > since}
        return [
            {"targets": [address], "labels": {"replica": name}}
            for name, (address, _) in sorted(self._told.items())
        ]


@cache
def roster() -> Any:
    """The one of the cluster."""
    remote = ray.remote(num_cpus=0, max_restarts=-1)(Roster)
    about = {"name": "roster", "namespace": "basin", "lifetime": "detached", "get_if_exists": True}
    return remote.options(**about).remote()


def write(path: Path) -> int:
    """Tell Prometheus where the replicas are; how many there are."""
    found = ray.get(roster().targets.remote())
    told = path.with_suffix(".tmp")
    told.write_text(json.dumps(found, indent=1) + "\n")
    told.replace(path)
    return len(found)
