"""What each `include` costs: the time of a request with it over that of the plain one, over HTTP.

The request is the neighbourhood in examples/tolokers.json with three targets, and sixteen
molecules; a safetensors answer with all reasons comes beside the JSON ones. Rounds are interleaved,
so that what else the machine does falls on all alike; medians, and their ratio to the plain one.

    python -m benchmarks.include [rounds]
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import httpx

from benchmarks.machine import describe
from benchmarks.results_file import record
from benchmarks.server import serving

_MOLECULES = (
    *("CCO", "c1ccccc1N(=O)=O", "CC(=O)Oc1ccccc1C(=O)O", "C[C@H](N)C(=O)O"),
    *("Cc1ccccc1N", "O=C(O)c1ccccc1O", "CN1C=NC2=C1C(=O)N(C(=O)N2C)C", "ClCCl"),
)
_EVERYTHING = ["attention", "memories", "components", "resonance"]
_LOUD = {"resonance": {"strength": 0.3}}


def _cases() -> dict[str, tuple[dict, dict]]:
    """Fields and headers of each kind of request."""
    found: dict[str, tuple[dict, dict]] = {"plain": ({}, {})}
    for name in ("trace", "components", "attention", "memories", "explanation"):
        found[name] = {"include": [name]}, {}
    accept = {"accept": "application/vnd.safetensors"}
    found["all, as tensors"] = {"include": _EVERYTHING}, accept
    found["plain, resonating"] = {"dynamics": _LOUD}, {}
    found["resonance"] = {"include": ["resonance"], "dynamics": _LOUD}, {}
    return found


def _measure(client: httpx.Client, path: str, body: dict, rounds: int) -> None:
    took: dict[str, list[float]] = {}
    for _ in range(rounds + 1):
        for name, (fields, headers) in _cases().items():
            start = time.perf_counter()
            client.post(path, json=body | fields, headers=headers).raise_for_status()
            took.setdefault(name, []).append(time.perf_counter() - start)
    median = record(path, "plain", {name: times[1:] for name, times in took.items()})
    print(f"\n| POST {path} | ms | over plain |\n|---|---|---|")
    for name, seconds in median.items():
        base = median["plain, resonating" if name == "resonance" else "plain"]
        print(f"| {name} | {1e3 * seconds:.1f} | {seconds / base:.2f} |")


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 15
    example = Path(__file__).parents[1] / "examples" / "tolokers.json"
    graph = {k: v for k, v in json.loads(example.read_text()).items() if k != "include"}
    print(describe())
    with serving() as client:
        _measure(client, "/anomaly/score", graph, rounds)
        molecules = {"model": "cdat-ames", "smiles": [*_MOLECULES, *_MOLECULES]}
        _measure(client, "/classify", molecules, rounds)


if __name__ == "__main__":
    main()
