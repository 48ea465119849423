"""A stored graph of a million edges: how long does it take to score one new transaction?

A transaction is a new node with edges to five others, in one PATCH; then it is scored by what is up
to two edges away, 32 neighbours of each. Beside it the same neighbourhood is sent by hand, as JSON
and as bytes, and the whole graph is scored for it. Then as many transactions come as are asked for,
a thousand a second, while others score; no answer may show a part of one. At last the server is
killed: all that it answered is there.

The graph is made by chance, with degrees as in a market of few large and many small, and features
within the ranges of tolokers.

    python -m benchmarks.stored_graphs [edges] [transactions]
"""

from __future__ import annotations

import asyncio
import json
import signal
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx
import numpy as np
import psutil
from basin_client import Client, Graph

from benchmarks.client import Connection
from benchmarks.machine import describe
from benchmarks.server import process
from models import checkpoint

MODEL, ENDS, PAIRS = "cdat-tolokers", 5, 200
RATE, SECONDS, WRITERS = 1000, 20.0, 32
PARAMS = {"hops": 2, "max_neighbors": 32, "seed": 0}
JSON = "application/json"


def market(edges: int, features: Sequence[checkpoint.Feature], seed: int = 0) -> Graph:
    """A tenth as many nodes; the chance of an edge falls with the place of its ends."""
    chance = np.random.default_rng(seed)
    nodes = edges // 10
    ends = (nodes * chance.random((2, edges)) ** 2).astype(np.int64)
    low, high = (np.array([getattr(f, end) for f in features]) for end in ("minimum", "maximum"))
    x = (low + (high - low) * chance.random((nodes, len(features)))).astype(np.float32)
    return Graph(x, ends, node_ids=list(range(nodes)))


def told(name: str, seconds: Sequence[float]) -> None:
    p50, p99 = np.percentile(1e3 * np.array(seconds), [50, 99])
    print(f"{name:44}{p50:10.2f}{p99:10.2f} ms of {len(seconds)}")


def timed(send: Callable[[], Any]) -> tuple[Any, float]:
    start = time.perf_counter()
    found = send()
    return found, time.perf_counter() - start


def transaction(number: int, chance: np.random.Generator, graph: Graph) -> dict[str, Any]:
    row = graph.x[chance.integers(len(graph.x))]
    ends = (len(graph.x) * chance.random(ENDS) ** 2).astype(int).tolist()
    name = f"t{number}"
    nodes = [{"id": name, "x": row.tolist()}]
    return {"nodes": nodes, "edges": [{"source": name, "target": end} for end in ends]}


def one_by_one(client: httpx.Client, basin: Client, graph: Graph, count: int) -> None:
    """Store and score one transaction after the other, and send its neighbourhood by hand."""
    from service.storage.graphs import DynamicGraph, GraphSnapshot, Schema, Update

    assert graph.node_ids is not None
    names = ("",) * graph.x.shape[1]
    whole = GraphSnapshot(_plain(graph), list(graph.node_ids), 1)
    own = DynamicGraph(Schema(names, ("",)), whole)
    chance = np.random.default_rng(1)
    seconds: dict[str, list[float]] = {
        name: [] for name in ("PATCH", "by graph_id", "sent as JSON", "sent as bytes")
    }
    sizes, apart = list[tuple[int, int]](), 0.0
    for number in range(-20, count):  # the first ones warm up
        made = transaction(number, chance, graph)
        [node] = made["nodes"]
        edges = tuple((e["source"], e["target"], 0) for e in made["edges"])
        update = Update((node["id"],), np.array([node["x"]], np.float32), edges)
        change = own.plan(update)
        assert change is not None
        own.commit(change, own.revision + 1)
        near = own.sample_neighborhood([node["id"]], **PARAMS, max_nodes=1 << 20, max_edges=1 << 24)
        arrays = {"x": near.graph.x.tolist(), "edge_index": near.graph.edge_index.tolist()}
        as_json = {"model": MODEL, "graph": arrays, "targets": [0]}
        stored = {"model": MODEL, "graph_id": "market", "targets": [node["id"]]}
        stored["neighborhood"] = PARAMS
        took = {}
        answer, took["PATCH"] = timed(lambda: client.patch("/graphs/market", json=made))  # noqa: B023
        assert answer.status_code == 200, answer.text
        body = json.dumps(stored).encode()
        answer, took["by graph_id"] = timed(lambda: _post(client, body))  # noqa: B023
        by_hand = json.dumps(as_json).encode()
        other, took["sent as JSON"] = timed(lambda: _post(client, by_hand))  # noqa: B023
        nearby = Graph(near.graph.x, near.graph.edge_index)
        third, took["sent as bytes"] = timed(lambda: basin.score(nearby, [0], model=MODEL))  # noqa: B023
        scores = [answer["results"][0]["score"], other["results"][0]["score"], third.score[0]]
        apart = max(apart, max(scores) - min(scores))
        if number >= 0:
            sizes.append((answer["graph"]["num_nodes"], answer["graph"]["num_edges"]))
            for name, one in took.items():
                seconds[name].append(one)
    nodes, edges = (statistics.median(each) for each in zip(*sizes, strict=True))
    print(f"neighbourhoods of {nodes:g} nodes and {edges:g} edges, the median")
    print(f"{'':44}{'p50':>10}{'p99':>10}")
    told("a transaction is stored", seconds["PATCH"])
    told("it is scored by graph_id", seconds["by graph_id"])
    told("its neighbourhood sent by hand, as JSON", seconds["sent as JSON"])
    told("its neighbourhood sent by hand, as bytes", seconds["sent as bytes"])
    print(
        "largest difference of the scores by graph_id and by hand, which is not described as in "
        f"the whole graph: {apart:.1e}"
    )
    everything = own.snapshot()
    sent = Graph(everything.graph.x, everything.graph.edge_index)
    row = everything.node_ids.index(f"t{count - 1}")
    wholes = [timed(lambda: basin.score(sent, [row], model=MODEL))[1] for _ in range(3)]
    told("the whole graph is sent and scored for one", wholes)


def _plain(graph: Graph) -> Any:
    from models.inputs.graph import Graph as Plain

    return Plain(graph.x, graph.edge_index)


def _post(client: httpx.Client, body: bytes) -> dict[str, Any]:
    answer = client.post("/anomaly/score", content=body, headers={"content-type": JSON})
    assert answer.status_code == 200, answer.text
    return answer.json()


class Crowd:
    """Writers that add a node with edges to both of a pair, and readers that look at a pair: each
    neighbour of one is to be one of the other."""

    def __init__(self, port: int, width: int, per_patch: int, first: int) -> None:
        self._port, self._width, self._per, self._first = port, width, per_patch, first
        self._chance = np.random.default_rng(2)
        self.written, self.looked = list[float](), list[float]()
        self.torn, self._next, self.revision, self.changes = 0, first, 0, 0

    async def prepare(self) -> None:
        ends = [{"id": f"{end}{i}", "x": [0] * self._width} for i in range(PAIRS) for end in "ab"]
        body = json.dumps({"nodes": ends}).encode()
        reply = await Connection(self._port).post("/graphs/market/nodes", body, JSON)
        assert reply.status == 200

    async def run(self, seconds: float) -> None:
        self._end, self._begun = time.perf_counter() + seconds, time.perf_counter()
        await asyncio.gather(*(self._write() for _ in range(WRITERS)), self._look())

    async def _write(self) -> None:
        connection = Connection(self._port)
        while (now := time.perf_counter()) < self._end:
            due = self._begun + (self._next - self._first) * self._per / RATE
            number, self._next = self._next, self._next + 1
            if due > now:
                await asyncio.sleep(due - now)
            nodes, edges = [], []
            for part in range(self._per):
                name, pair = f"w{number}-{part}", int(self._chance.integers(PAIRS))
                nodes.append({"id": name, "x": [0] * self._width})
                edges += [{"source": name, "target": f"{end}{pair}"} for end in "ab"]
            body = json.dumps({"nodes": nodes, "edges": edges}).encode()
            try:
                reply = await connection.ask(
                    "PATCH", "/graphs/market", body, {"content-type": JSON}
                )
            except OSError:  # it was killed
                return
            assert reply.status == 200, reply.body
            self.written.append(reply.seconds)
            self.changes += self._per
            self.revision = max(self.revision, json.loads(reply.body)["revision"])

    async def _look(self) -> None:
        connection = Connection(self._port)
        while time.perf_counter() < self._end:
            pair = int(self._chance.integers(PAIRS))
            asked = {"model": MODEL, "graph_id": "market", "targets": [f"a{pair}", f"b{pair}"]}
            asked["neighborhood"] = {"hops": 1, "max_neighbors": 100_000}
            try:
                reply = await connection.post("/anomaly/score", json.dumps(asked).encode(), JSON)
            except OSError:
                return
            assert reply.status == 200, reply.body
            graph = json.loads(reply.body)["graph"]
            self.torn += graph["num_edges"] != 2 * (graph["num_nodes"] - 2)
            self.looked.append(reply.seconds)


def at_once(port: int, width: int, per_patch: int) -> None:
    crowd = Crowd(port, width, per_patch, per_patch << 30)  # of names that none has had
    asyncio.run(crowd.prepare())
    asyncio.run(crowd.run(SECONDS))
    rate = crowd.changes / SECONDS
    print(f"{RATE} transactions a second asked for, {per_patch} in a PATCH: {rate:.0f} made")
    told(f"a PATCH, of {WRITERS} writers", crowd.written)
    told("a score meanwhile", crowd.looked)
    print(f"answers that saw a part of one: {crowd.torn} of {len(crowd.looked)}")


def killed(started: Any, port: int, width: int, again: Callable[[], Client], before: int) -> None:
    crowd = Crowd(port, width, 1, 0)

    async def play() -> None:
        running = asyncio.create_task(crowd.run(60))
        await asyncio.sleep(3)
        started.send_signal(signal.SIGKILL)
        await running

    asyncio.run(play())
    began = time.perf_counter()
    basin = again()
    found = basin.graph("market")
    nodes = found["num_nodes"] - before
    near = basin.score_nodes("market", ["a0"], model=MODEL)
    seconds = time.perf_counter() - began
    print(
        f"killed after {crowd.changes} answered: {nodes} there, revision {found['revision']} of "
        f"at least {crowd.revision}; served and scored {seconds:.1f} s later ({len(near)})"
    )
    assert nodes >= crowd.changes
    assert found["revision"] >= crowd.revision


def main() -> None:
    edges = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    count = int(sys.argv[2]) if len(sys.argv) > 2 else 500
    print(describe())
    manifest = checkpoint.load_checkpoint(Path("checkpoints") / MODEL).manifest
    graph, width = market(edges, manifest.features), len(manifest.features)
    with ExitStack() as held:
        folder = held.enter_context(TemporaryDirectory())
        settings = {"BASIN_GRAPH_STORE": f"{folder}/graphs", "BASIN_JOB_STORE": f"{folder}/jobs"}
        settings["BASIN_THREADS"] = "1"
        started, client = held.enter_context(process(**settings))
        basin = held.enter_context(Client(str(client.base_url)))
        memory = psutil.Process(started.pid).memory_info().rss
        stored, seconds = timed(lambda: basin.store_graph("market", graph, model=MODEL))
        grown = (psutil.Process(started.pid).memory_info().rss - memory) / 2**20
        print(
            f"{stored['num_nodes']} nodes, {stored['num_edges']} edges: stored in {seconds:.1f} s, "
            f"{grown:.0f} MiB more memory, {Path(folder, 'graphs').stat().st_size / 2**20:.0f} MiB "
            "of disk with what is still in the log"
        )
        one_by_one(client, basin, graph, count)
        port = client.base_url.port
        assert port is not None
        for per_patch in (1, 10):
            at_once(port, width, per_patch)
        before = basin.graph("market")["num_nodes"]

        def again() -> Client:
            _, other = held.enter_context(process(**settings))
            return held.enter_context(Client(str(other.base_url)))

        killed(started, port, width, again, before)


if __name__ == "__main__":
    main()
