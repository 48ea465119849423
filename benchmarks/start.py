"""How long a server takes until it answers, and how much memory each model has.

A server of all shipped checkpoints, one of each alone and one of none are started in turn, each as
`python -m service` with its files in the page cache: seconds until /health/live and until
/health/ready, resident memory of the server then, without the processes that read SMILES, and how
much more that is than with no model. The limit is what `import torch` takes alone.

    python -m benchmarks.start [rounds]
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import httpx
import psutil

from benchmarks.machine import describe
from benchmarks.results_file import record
from benchmarks.server import started

SHIPPED = Path(__file__).parents[1] / "checkpoints"
EVERY_S = 0.01


def _imported() -> float:
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", "import torch"], check=True)
    return time.perf_counter() - start


def _started(names: Sequence[str]) -> tuple[float, float, float]:
    """Seconds until live, until ready, and MiB then."""
    with TemporaryDirectory() as folder:
        for name in names:
            (Path(folder) / name).symlink_to(SHIPPED / name)
        start = time.perf_counter()
        with started(BASIN_CHECKPOINTS=folder) as (server, client):
            live = _until(server, client, "/health/live", start)
            # A server of no models is never ready.
            ready = _until(server, client, "/health/ready", start) if names else live
            return live, ready, psutil.Process(server.pid).memory_info().rss / 2**20


def _until(server: subprocess.Popen[bytes], client: httpx.Client, path: str, start: float) -> float:
    while server.poll() is None:
        with suppress(httpx.TransportError):
            if client.get(path).status_code == 200:
                return time.perf_counter() - start
        time.sleep(EVERY_S)
    raise RuntimeError(f"the server ended with {server.returncode}")


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    print(describe())
    every = sorted(path.name for path in SHIPPED.iterdir())
    cases: dict[str, Sequence[str]] = {"none": [], "all": every} | {name: [name] for name in every}
    found: dict[str, list[tuple[float, float, float]]] = {}
    imports = list[float]()
    for _ in range(rounds):
        imports.append(_imported())
        for case, names in cases.items():
            found.setdefault(case, []).append(_started(names))
    median = {
        case: [sorted(column)[rounds // 2] for column in zip(*each, strict=True)]
        for case, each in found.items()
    }
    ready = {case: [one[1] for one in each] for case, each in found.items()}
    record("until ready", "import torch", ready | {"import torch": imports})
    print(f"import torch: {sorted(imports)[rounds // 2]:.2f} s")
    print("| models | live, s | ready, s | MiB | more than none |")
    print("|---|---|---|---|---|")
    for case, (live, until, mib) in median.items():
        print(f"| {case} | {live:.2f} | {until:.2f} | {mib:.0f} | {mib - median['none'][2]:.0f} |")


if __name__ == "__main__":
    main()
