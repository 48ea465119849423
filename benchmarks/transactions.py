"""A table of payments from training to live scores, at several sizes: seconds, memory, exponents.

Each stage is a process of its own: payments are simulated, a checkpoint is trained for two epochs,
the shipped `cdat-payments` scores the whole table without a server, and a server stores all but the
last rows and stores and scores these, one in a request.

    python -m benchmarks.transactions [10000 1000000 ...] [--stages simulate,train,bulk,live]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx
import numpy as np
import psutil
from pyarrow import csv

from benchmarks.machine import describe
from benchmarks.server import process

MODEL = "cdat-payments"
LIVE, BATCH, KEEP_S = 500, 10_000, 1e9
EPOCHS = 2  # of as many rows at any size, beyond 100,000 to train on
_NOT_SENT = ["is_fraud", "typology"]

Figures = dict[str, float]


def run(*arguments: str) -> Figures:
    """Seconds and peak GiB of a Python module as a command."""
    start = time.perf_counter()
    child = subprocess.Popen(
        [sys.executable, "-m", *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.STDOUT
    )
    _, status, usage = os.wait4(child.pid, 0)
    assert status == 0, arguments
    return {"seconds": time.perf_counter() - start, "gib": usage.ru_maxrss / 2**20}


def simulate(table: Path, size: int) -> Figures:
    return run("training", "payments", str(table), "--count", str(size))


def train(table: Path, size: int) -> Figures:
    folder = table.parent
    return run(
        *("training", "transactions", str(table), "--label", "is_fraud", "--id", "id"),
        *("--category", "type", "--shared", "device", "--drop", "typology", "--budget", "0.01"),
        *(
            "--epochs",
            str(EPOCHS),
            "--device",
            "cpu",
            "--name",
            "payments",
            "--out",
            str(folder / "trained"),
        ),
        *("--run-folder", str(folder / "run")),
    )


def bulk(table: Path, size: int) -> Figures:
    out = str(table.with_suffix(".parquet"))
    return run(
        *("basin", "score-transactions", str(table), "--model", MODEL, "--bulk", "--id", "id"),
        *("--drop", "*", "--out", out),
    )


def live(table: Path, size: int) -> Figures:
    """Load the table but its last rows, and then these one by one: one client, so no queue."""
    with TemporaryDirectory(dir=table.parent) as folder:
        settings = {"BASIN_GRAPH_STORE": f"{folder}/graphs.sqlite", "BASIN_MODELS": MODEL}
        settings |= {"BASIN_JOB_STORE": f"{folder}/jobs", "BASIN_DEFAULT_ANOMALY_MODEL": MODEL}
        settings["BASIN_MAX_STORED_NODES"] = str(2 * size)
        with process(**settings) as (server, client):
            graph = {"model": MODEL, "keep": KEEP_S}
            assert client.put("/graphs/g", json=graph).status_code == 201
            start = time.perf_counter()
            left = _load(client, _read_batches(table), size - LIVE)
            seconds = time.perf_counter() - start
            milliseconds = [1e3 * _post(client, [row]) for row in left]
            memory = psutil.Process(server.pid).memory_info().rss / 2**30
    p50, p99 = np.percentile(milliseconds, [50, 99]).tolist()
    return {"seconds": seconds, "gib": memory, "p50_ms": p50, "p99_ms": p99}


STAGES: dict[str, Callable[[Path, int], Figures]] = {
    "simulate": simulate,
    "train": train,
    "bulk": bulk,
    "live": live,
}


def _read_batches(table: Path) -> Iterator[list[dict[str, Any]]]:
    with csv.open_csv(table) as reader:
        for batch in reader:
            rows = batch.drop_columns(_NOT_SENT).to_pylist()
            for begin in range(0, len(rows), BATCH):
                yield rows[begin : begin + BATCH]


def _load(
    client: httpx.Client, batches: Iterator[list[dict[str, Any]]], count: int
) -> list[dict[str, Any]]:
    """Store the first `count` rows without scores, and return the others."""
    loaded, left = 0, list[dict[str, Any]]()
    for rows in batches:
        past, rest = np.split(np.array(rows, object), [max(count - loaded, 0)])
        if len(past):
            _post(client, past.tolist(), "?score=false")
        loaded += len(rows)
        left += rest.tolist()
    return left


def _post(client: httpx.Client, rows: list[dict[str, Any]], query: str = "") -> float:
    body = json.dumps({"transactions": rows}, default=lambda time: time.isoformat()).encode()
    start = time.perf_counter()
    response = client.post(
        f"/graphs/g/transactions{query}",
        content=body,
        headers={"content-type": "application/json"},
    )
    assert response.status_code == 200, response.text
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("sizes", type=int, nargs="*", default=[10_000, 1_000_000])
    parser.add_argument("--stages", default=",".join(STAGES))
    parser.add_argument("--folder", type=Path, help="where tables stay; else they are deleted")
    options = parser.parse_args()
    print(describe(), flush=True)
    results = dict[str, list[tuple[int, Figures]]]()
    with TemporaryDirectory() as temporary:
        for size in options.sizes:
            folder = (options.folder or Path(temporary)) / str(size)
            folder.mkdir(parents=True, exist_ok=True)
            for name in options.stages.split(","):
                figures = STAGES[name](folder / "payments.csv", size)
                results.setdefault(name, []).append((size, figures))
                text = ", ".join(f"{key} {value:.3g}" for key, value in figures.items())
                print(f"{size:>11,} {name:9} {text}", flush=True)
    for name, rows in results.items():
        for (small, before), (large, after) in pairwise(rows):
            ratio = np.log(large / small)
            exponents = ", ".join(
                f"{key}^{np.log(after[key] / before[key]) / ratio:.2f}" for key in after
            )
            print(f"{name}, from {small:,} to {large:,}: {exponents}")


if __name__ == "__main__":
    main()
