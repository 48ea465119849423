"""A stream of transactions into a stored graph: how long does storing and scoring one take, and are
the alerts those of scoring each transaction from scratch, over a kill -9 too?

The past is loaded first, without scores. Then transactions come at a fixed rate, whether the server
keeps up or not, one in a request; the time counts from when one was due. Then the server is killed
in the middle of more of them and started again, and all that was not answered is sent again. At
last each score is computed from the rows as they were stored, without a server: of all rows from
one history, and of a sample from a history of its own that ends with the row.

    python -m benchmarks.live_transactions [--stored 1000000] [--rate 200] [--seconds 600]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx
import numpy as np
import psutil

from benchmarks.client import Connection
from benchmarks.machine import describe
from benchmarks.server import process
from models.base import DynamicsParams
from models.checkpoint import load_checkpoint
from models.inputs.transactions import TransactionHistory, Transactions
from models.tasks.node_scorer import NodeScorer
from service.storage.graphs import GraphKey, SqliteGraphLog, TransactionGraph
from service.storage.graphs.snapshot_file import restore_graph
from training.datasets.payments import simulate_payments

MODEL, FOLDER = "cdat-payments", Path("checkpoints")
CONNECTIONS, BATCH, SAMPLE = 32, 10_000, 10
KILL_S, KEEP_S = 20.0, 1e9
JSON = "application/json"
Row = dict[str, Any]


def to_body(rows: list[Row]) -> bytes:
    return json.dumps({"transactions": rows}).encode()


def load(client: httpx.Client, server: subprocess.Popen[bytes], rows: list[Row]) -> None:
    before = psutil.Process(server.pid).memory_info().rss
    start = time.perf_counter()
    for begin in range(0, len(rows), BATCH):
        response = client.post(
            "/graphs/g/transactions?score=false", content=to_body(rows[begin : begin + BATCH]),
            headers={"content-type": JSON},
        )  # fmt: skip
        assert response.status_code == 200, response.text
    seconds = time.perf_counter() - start
    grown = (psutil.Process(server.pid).memory_info().rss - before) / 2**20
    print(f"{len(rows)} transactions loaded in {seconds:.1f} s, {grown:.0f} MiB more memory")


class Stream:
    """Sends rows at a rate over several connections, and again what was not answered."""

    def __init__(self, rows: list[Row], rate: float) -> None:
        self._rows, self._rate = rows, rate
        self.seconds = list[float]()
        self.unanswered = list[Row]()

    async def run(self, port: int) -> None:
        begun = time.perf_counter()
        turns = iter(enumerate(self._rows))
        await asyncio.gather(*(self._send(port, begun, turns) for _ in range(CONNECTIONS)))

    async def _send(self, port: int, begun: float, turns: Iterator[tuple[int, Row]]) -> None:
        connection = Connection(port)
        for number, row in turns:
            due = begun + number / self._rate
            if (wait := due - time.perf_counter()) > 0:
                await asyncio.sleep(wait)
            try:
                reply = await connection.post("/graphs/g/transactions", to_body([row]), JSON)
            except OSError:  # it was killed
                self.unanswered.append(row)
                connection.close()
                continue
            assert reply.status == 200, reply.body
            self.seconds.append(time.perf_counter() - due)
        connection.close()


def kill_within(server: subprocess.Popen[bytes], stream: Stream, port: int) -> None:
    async def play() -> None:
        running = asyncio.create_task(stream.run(port))
        await asyncio.sleep(KILL_S / 2)
        server.send_signal(signal.SIGKILL)
        await running

    asyncio.run(play())


def list_alerts(client: httpx.Client) -> list[str]:
    found, after = list[str](), ""
    while True:
        page = client.get("/graphs/g/alerts", params={"after": after, "limit": 1000}).json()
        if not page["alerts"]:
            return found
        found += [alert["node_id"] for alert in page["alerts"]]
        after = page["last_event_id"]


def restore(path: str) -> TransactionGraph:
    """Read the stored graph, of which no server has the file any more."""
    log = SqliteGraphLog(Path(path))
    log.open()
    with log.batch():
        stored = log.read(GraphKey("", "g"), None)
    log.close()
    assert stored is not None
    graph = restore_graph(stored)
    assert isinstance(graph, TransactionGraph)
    return graph


def score_from_scratch(graph: TransactionGraph, first: int) -> tuple[list[Any], np.ndarray]:
    """Ids and probabilities of the rows from `first` on, from the rows as they were stored."""
    loaded = load_checkpoint(FOLDER / MODEL)
    network, manifest = loaded.network, loaded.manifest
    assert isinstance(network, NodeScorer)
    recipe = manifest.transactions
    assert recipe is not None
    stored = graph.list_all()
    rows = stored.rows

    def score(history: TransactionHistory, places: np.ndarray) -> np.ndarray:
        built, _, own = history.build_graph(places)
        output = network.infer(network.pack([built]), [DynamicsParams()])
        return manifest.calibration(output.logits.numpy()[own])

    def build(rows: Transactions) -> TransactionHistory:
        history = TransactionHistory(recipe)
        history.append(rows)
        return history

    whole = build(rows)
    parts = np.array_split(np.arange(first, len(rows)), max((len(rows) - first) // 1000, 1))
    probabilities = np.concatenate([score(whole, part) for part in parts])
    largest = 0.0
    for row in np.random.default_rng(0).integers(first, len(rows), SAMPLE).tolist():
        alone = score(build(rows.take(np.arange(row + 1))), np.array([row]))[0]
        largest = max(largest, abs(float(alone) - float(probabilities[row - first])))
    print(f"{SAMPLE} prefixes scored from scratch: largest difference {largest:.1e}")
    return stored.node_ids[first:], probabilities


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--stored", type=int, default=1_000_000)
    parser.add_argument("--rate", type=float, default=200.0)
    parser.add_argument("--seconds", type=float, default=600.0)
    options = parser.parse_args()
    print(describe())
    more = int(options.rate * (options.seconds + KILL_S))
    frame = simulate_payments(options.stored + more, seed=3)
    rows = frame.drop(columns=["is_fraud", "typology"]).to_dict("records")
    past, live = rows[: options.stored], rows[options.stored :]
    timed, killed = np.split(np.arange(more), [int(options.rate * options.seconds)])
    with TemporaryDirectory() as folder:
        path = f"{folder}/graphs.sqlite"
        settings = {"BASIN_GRAPH_STORE": path, "BASIN_JOB_STORE": f"{folder}/jobs"}
        settings |= {"BASIN_MODELS": MODEL, "BASIN_DEFAULT_ANOMALY_MODEL": MODEL}
        with process(**settings) as (server, client):
            graph = {"model": MODEL, "keep": KEEP_S}
            assert client.put("/graphs/g", json=graph).status_code == 201
            load(client, server, past)
            stream = Stream([live[i] for i in timed], options.rate)
            port = client.base_url.port
            assert port is not None
            start = time.perf_counter()
            asyncio.run(stream.run(port))
            seconds = time.perf_counter() - start
            ms = 1e3 * np.array(stream.seconds)
            p50, p99, most = np.percentile(ms, [50, 99, 100])
            print(
                f"{len(ms)} transactions, {len(ms) / seconds:.0f} a second: stored and scored in "
                f"p50 {p50:.1f}, p99 {p99:.1f}, at most {most:.0f} ms; "
                f"{psutil.Process(server.pid).memory_info().rss / 2**20:.0f} MiB"
            )
            again = Stream([live[i] for i in killed], options.rate)
            kill_within(server, again, port)
        start = time.perf_counter()
        with process(**settings) as (server, client):
            client.get("/graphs/g/alerts")
            for row in again.unanswered:
                response = client.post("/graphs/g/transactions", json={"transactions": [row]})
                if response.status_code != 200:  # too late by now, as later ones were scored
                    print(response.json()["errors"][0]["detail"])
            print(
                f"killed with {len(again.unanswered)} not answered: served again and these sent in "
                f"{time.perf_counter() - start:.1f} s"
            )
            time.sleep(5)
            alerts = list_alerts(client)
        ids, probabilities = score_from_scratch(restore(path), len(past))
    threshold = load_checkpoint(FOLDER / MODEL).manifest.threshold
    expected = [i for i, p in zip(ids, probabilities, strict=True) if p >= threshold]
    near = int((np.abs(probabilities - threshold) < 1e-5).sum())
    twice = len(alerts) - len(set(alerts))
    apart = len(set(alerts) ^ set(expected))
    print(
        f"{len(alerts)} alerts of {len(ids)}: {twice} twice, {apart} other than from scratch "
        f"({near} within 1e-5 of the threshold)"
    )


if __name__ == "__main__":
    main()
