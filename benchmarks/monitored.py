"""A server under a load that changes, watched by a Prometheus, and its dashboards as pictures.

    PYTHONPATH=docker/grafana python -m benchmarks.monitored 6 docs/figures

Requests come in waves; in the last third molecules come that are unlike those of training, and more
than the queue holds. Needs `prometheus` and `redis-server`.
"""

from __future__ import annotations

import json
import math
import random
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import matplotlib as mpl

from benchmarks.server import free_port, redis, serving

REPO = Path(__file__).resolve().parents[1]
_SETTINGS = {"BASIN_CACHE_BYTES": "1000000", "BASIN_QUEUE_SIZE": "6"}
_LIKE = ("CC(=O)Oc1ccccc1C(=O)O", "c1ccc2ccccc2c1", "O=[N+]([O-])c1ccc(N)cc1", "CCN(CC)CC", "CCO")
_UNLIKE = ("C" * 60, "[Na+].[Cl-]", "F" + "C(F)(F)" * 20 + "F", "OCC(O)C(O)C(O)C(O)CO")


@contextmanager
def prometheus(target: str, every: str = "2s") -> Iterator[httpx.Client]:
    """One with our rules, that asks `target` so often."""
    address = f"127.0.0.1:{free_port()}"
    config = {
        "global": {"scrape_interval": every, "evaluation_interval": every},
        "rule_files": [str(REPO / "docker/prometheus/rules/*.yml")],
        "scrape_configs": [{"job_name": "basin", "static_configs": [{"targets": [target]}]}],
    }
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "prometheus.yml"
        path.write_text(json.dumps(config))
        process = subprocess.Popen(
            [
                "prometheus",
                f"--config.file={path}",
                f"--storage.tsdb.path={folder}/data",
                f"--web.listen-address={address}",
            ],
            stderr=subprocess.DEVNULL,
        )
        try:
            with httpx.Client(base_url=f"http://{address}", timeout=30) as client:
                yield client
        finally:
            process.terminate()
            process.wait()


def load(url: str, seconds: float, seed: int) -> None:
    """One client, which asks more often and less often."""
    chance, graph = random.Random(seed), json.loads((REPO / "examples/tolokers.json").read_bytes())
    begun = time.monotonic()
    with httpx.Client(base_url=url, timeout=60) as client:
        while (passed := (time.monotonic() - begun) / seconds) < 1:
            late = passed > 2 / 3
            with suppress(httpx.HTTPError):
                client.post(**_request(chance, graph, late))
            pause_s = 0.02 if late else 0.15 * (1.2 + math.sin(12 * passed))
            time.sleep(pause_s * chance.random())


def _request(chance: random.Random, graph: dict[str, Any], late: bool) -> dict[str, Any]:
    kind = chance.random()
    if kind < 0.5:
        dynamics = {"steps": 64, "tolerance": 0.3} if chance.random() < 0.3 else {}
        # Half of them were asked before, and come from the cache.
        params = {} if chance.random() < 0.5 else {"timeout_ms": chance.randrange(9000, 60_000)}
        return {"url": "/anomaly/score", "json": graph | {"dynamics": dynamics}, "params": params}
    if kind < 0.85:
        smiles = chance.choices(_UNLIKE if late else _LIKE, k=4)
        return {"url": "/classify", "json": {"smiles": smiles}}
    if kind < 0.93:
        asked = {"memory": "mnist-3", "steps": 200, "thin": 20, "seed": chance.randrange(99)}
        asked |= {"method": chance.choice(("ula", "mala"))}
        later = {"prefer": "respond-async"} if chance.random() < 0.5 else {}
        return {"url": "/sample", "json": asked, "headers": later}
    return {"url": "/classify", "json": {"smiles": ["no"]}}


def main() -> None:
    minutes, out = float(sys.argv[1]), Path(sys.argv[2])
    for needed in ("prometheus", "redis-server"):
        if shutil.which(needed) is None:
            sys.exit(f"there is no {needed} on the path")
    from dashboards import DASHBOARDS
    from pictures import draw

    mpl.use("agg")
    with redis() as kept, serving(BASIN_REDIS_URL=kept, **_SETTINGS) as server:
        url = str(server.base_url)
        with prometheus(url.removeprefix("http://").rstrip("/")) as asked:
            clients = [
                threading.Thread(target=load, args=(url, 60 * minutes, i)) for i in range(10)
            ]
            for client in clients:
                client.start()
            for client in clients:
                client.join()
            for page in DASHBOARDS.values():
                print(draw(page, asked, 60 * minutes, out))


if __name__ == "__main__":
    main()
