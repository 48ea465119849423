"""Kill a server under writes, again and again: what it acknowledged is there, nothing half done.

    python -m tests.support.kill_rounds --rounds 50 --seed 1

Four writers change stored graphs, transactions, memories and jobs, one change after the other each,
until SIGKILL at a random moment; then the server is started again in its folder, and all contents
are compared: they are those of the acknowledged changes, with or without the one that was on its
way. The seed sets the changes and the moments; it is printed.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import httpx
import numpy as np

from models.memories import Memory
from service.storage.graphs import GraphLimits
from tests.support.graph_stores import in_sqlite
from tests.support.server_process import ServerProcess

SCORER, STREAM = "et-tolokers", "cdat-payments"
SETTINGS = {
    **{"models": f'["{SCORER}", "{STREAM}"]', "default_anomaly_model": SCORER},
    **{"cache_bytes": 0, "max_jobs": 10_000, "shutdown_timeout_s": 1},
}
_ROOM = GraphLimits(100, 1_000_000, 1_000_000)
_WIDTH = 10  # features of `SCORER`
Content = dict[str, Any]


@dataclass
class Writer:
    """Changes objects of one kind, and knows what they hold.

    Attributes:
        contents: by id, as acknowledged; `next_contents` with the change that is on its way.
        next_contents: None where no change is on its way.
    """

    rng: Random
    contents: Content = field(default_factory=dict)
    next_contents: Content | None = None
    changes: int = 0

    def write(self, client: httpx.Client) -> None:
        """Make one change; the server may be killed in the middle."""
        method, path, body, headers, after = self.draw()
        self.next_contents = after
        response = client.request(method, path, json=body, headers=headers)
        assert response.status_code < 300, f"{method} {path}: {response.text}"
        self.acknowledge(response)
        self.next_contents = None
        self.changes += 1

    def draw(self) -> tuple[str, str, Any, dict[str, str], Content]:
        """Return the method, path, body and headers of a change, and all contents after it."""
        raise NotImplementedError

    def acknowledge(self, response: httpx.Response) -> None:
        assert self.next_contents is not None
        self.contents = self.next_contents

    def settle(self, contents: Content, what: str) -> None:
        """Check what is there after a kill, and go on from it."""
        expected = [self.contents] + [self.next_contents] * (self.next_contents is not None)
        assert contents in expected, f"{what}: {contents} is none of {expected}"
        self.contents, self.next_contents = contents, None


class GraphWriter(Writer):
    """Nodes with features and edges: stored, replaced, changed, deleted."""

    def draw(self) -> tuple[str, str, Any, dict[str, str], Content]:
        rng, id = self.rng, f"g{self.rng.randrange(3)}"
        nodes, edges = self.contents.get(id, ({}, frozenset()))
        kind = rng.random()
        if id not in self.contents or kind < 0.1:
            nodes = {f"n{i}": self._features() for i in range(rng.randint(2, 60))}
            edges = frozenset(self._edges(list(nodes), 40))
            body = {"model": SCORER, "nodes": _rows(nodes), "edges": _ends(edges)}
            return "PUT", f"/graphs/{id}", body, {}, self.contents | {id: (nodes, edges)}
        if kind < 0.15:
            left = {name: content for name, content in self.contents.items() if name != id}
            return "DELETE", f"/graphs/{id}", None, {}, left
        gone = rng.sample(list(nodes), min(rng.randint(0, 2), len(nodes) - 1))
        changed = {f"n{rng.randrange(200)}": self._features() for _ in range(rng.randint(1, 5))}
        after = {name: x for name, x in nodes.items() if name not in gone} | changed
        remaining = {edge for edge in edges if not set(edge) & set(gone)}
        added = self._edges(list(after), 4)
        body = {"delete_nodes": gone, "nodes": _rows(changed), "edges": _ends(added)}
        content = (after, frozenset(remaining | added))
        return "PATCH", f"/graphs/{id}", body, {}, self.contents | {id: content}

    def _features(self) -> tuple[float, ...]:
        return tuple(float(np.float32(self.rng.gauss(0, 1))) for _ in range(_WIDTH))

    def _edges(self, names: list[str], count: int) -> set[tuple[str, str]]:
        return {tuple(self.rng.choices(names, k=2)) for _ in range(count)}

    def read(self, client: httpx.Client, files: Path) -> Content:
        """Read the graphs from a copy of the files, and compare what the server says of them."""
        contents = Content()

        async def work() -> None:
            async with in_sqlite(files / "graphs.sqlite", _ROOM, 1 << 30) as store:
                for id in (await store.list_metadata()).graphs:
                    if id[0] == "g":
                        whole = (await store.get_nodes_and_edges(id)).snapshot()
                        ids, x = whole.node_ids, whole.graph.x.tolist()
                        pairs = whole.graph.edge_index.T.tolist()
                        edges = frozenset((ids[a], ids[b]) for a, b in pairs)
                        assert len(edges) == len(pairs)
                        contents[id] = (dict(zip(ids, map(tuple, x), strict=True)), edges)

        asyncio.run(work())
        for id, (nodes, edges) in contents.items():
            detail = client.get(f"/graphs/{id}").json()
            assert (detail["num_nodes"], detail["num_edges"]) == (len(nodes), len(edges))
            stored = {"graph_id": id, "model": SCORER, "targets": [next(iter(nodes))]}
            scored = client.post("/anomaly/score", json=stored)
            assert scored.status_code in (200, 429), scored.text
        listed = {graph["id"] for graph in client.get("/graphs").json()["graphs"]}
        assert {id for id in listed if id[0] == "g"} == contents.keys()
        return contents


class TransactionWriter(Writer):
    """Rows of one graph of transactions; the same row again changes nothing, another is refused."""

    def draw(self) -> tuple[str, str, Any, dict[str, str], Content]:
        if not self.contents:
            return "PUT", "/graphs/t", {"model": STREAM}, {}, {"rows": ()}
        rows = self.contents["rows"]
        new = tuple(self._row(len(rows) + i) for i in range(self.rng.randint(1, 20)))
        path = "/graphs/t/transactions?score=" + self.rng.choice(("true", "false"))
        return "POST", path, {"transactions": list(new)}, {}, {"rows": rows + new}

    def _row(self, number: int) -> dict[str, Any]:
        ends = {"source": f"a{self.rng.randrange(50)}", "target": f"b{self.rng.randrange(50)}"}
        amount = round(self.rng.uniform(1, 999), 2)
        more = {"type": "transfer", "device": f"d{self.rng.randrange(20)}"}
        return {"id": f"t{number}", "time": 60.0 * number, **ends, "amount": amount, **more}

    def read(self, client: httpx.Client, files: Path) -> Content:
        response = client.get("/graphs/t")
        if response.status_code == 404:
            return {}
        count, revision = response.json()["num_nodes"], response.json()["revision"]
        rows = (self.next_contents or self.contents)["rows"][:count]
        for start in range(0, len(rows), 1000):
            part = {"transactions": list(rows[start : start + 1000])}
            again = client.post("/graphs/t/transactions?score=false", json=part)
            assert again.status_code == 200, again.text
        assert client.get("/graphs/t").json()["revision"] == revision
        return {"rows": rows} if len(rows) == count else {"rows": count}


class MemoryWriter(Writer):
    """Memories: stored, replaced, deleted. Their content is the digest of their patterns."""

    def draw(self) -> tuple[str, str, Any, dict[str, str], Content]:
        id = f"m{self.rng.randrange(4)}"
        if id in self.contents and self.rng.random() < 0.2:
            left = {name: content for name, content in self.contents.items() if name != id}
            return "DELETE", f"/memories/{id}", None, {}, left
        rows = [[self.rng.gauss(0, 1) for _ in range(20)] for _ in range(self.rng.randint(2, 40))]
        digest = Memory.from_items("vectors", np.array(rows, np.float32)).sha256
        return "PUT", f"/memories/{id}", {"patterns": rows}, {}, self.contents | {id: digest}

    def read(self, client: httpx.Client, files: Path) -> Content:
        contents = Content()
        for card in client.get("/memories").json()["memories"]:
            if card["id"][0] == "m" and card["id"][1:].isdecimal():
                body = {"memory": card["id"], "beta": 5, "steps": 5, "num_samples": 1}
                sampled = _answer(client, body)["memory"]["sha256"]
                assert sampled == card["sha256"]
                contents[card["id"]] = sampled
        return contents


class JobWriter(Writer):
    """Jobs: each that was accepted has an answer, that of the same request without a job."""

    def draw(self) -> tuple[str, str, Any, dict[str, str], Content]:
        patterns = [[self.rng.gauss(0, 1) for _ in range(6)] for _ in range(4)]
        steps = self.rng.choice((10, 200, 2000))
        body = {"memory": {"patterns": patterns}, "beta": 5, "num_samples": 2, "steps": steps}
        return "POST", "/sample", body, {"prefer": "respond-async"}, {"body": body}

    def acknowledge(self, response: httpx.Response) -> None:
        assert self.next_contents is not None
        self.contents = self.contents | {response.json()["id"]: self.next_contents["body"]}

    def settle(self, contents: Content, what: str) -> None:
        assert contents == self.contents, what
        self.contents, self.next_contents = {}, None

    def read(self, client: httpx.Client, files: Path) -> Content:
        contents = Content()
        for id, body in self.contents.items():
            end = time.monotonic() + 60
            while (job := client.get(f"/jobs/{id}").json()).get("status") == "running":
                assert time.monotonic() < end, f"{id} does not end"
                time.sleep(0.01)
            assert job.get("status") == "done", job
            answer = client.get(f"/jobs/{id}/result").json()
            direct = _answer(client, body)
            assert answer["samples"] == direct["samples"]
            contents[id] = body
        return contents


KINDS: tuple[type[Writer], ...] = (GraphWriter, TransactionWriter, MemoryWriter, JobWriter)


def _answer(client: httpx.Client, body: dict[str, Any]) -> dict[str, Any]:
    """Sample, beside the jobs that the last kill left, which may fill the queue for a while."""
    end = time.monotonic() + 60
    while (response := client.post("/sample", json=body)).status_code == 429:
        assert time.monotonic() < end, response.text
        time.sleep(0.2)
    assert response.status_code == 200, response.text
    return response.json()


def _rows(nodes: dict[str, tuple[float, ...]]) -> list[dict[str, Any]]:
    return [{"id": n, **{f"f{i}": v for i, v in enumerate(x)}} for n, x in nodes.items()]


def _ends(edges: Any) -> list[dict[str, str]]:
    return [{"source": source, "target": target} for source, target in sorted(edges)]


def run_rounds(
    folder: Path, rounds: int, seed: int, report: Callable[[str], None] = print
) -> Counter[str]:
    """Kill a server in `folder` as often as that; return the acknowledged changes by kind.

    Raises:
        AssertionError: something is not as it was acknowledged; the message has seed and round.
    """
    writers = [kind(Random(f"{seed}/{kind.__name__}")) for kind in KINDS]
    server = ServerProcess(folder, **SETTINGS)
    moments = Random(f"{seed}/moments")
    try:
        for number in range(rounds + 1):
            files = folder / "copy"
            shutil.rmtree(files, ignore_errors=True)
            files.mkdir()
            for file in folder.glob("graphs.sqlite*"):  # as the kill left them
                shutil.copyfile(file, files / file.name)
            server.start()
            with httpx.Client(base_url=server.url, timeout=60) as client:
                for writer in writers:
                    where = f"seed {seed}, round {number}, {type(writer).__name__}"
                    try:
                        writer.settle(writer.read(client, files), where)
                    except (AssertionError, KeyError) as error:
                        log = server.log.read_text()[-2000:]
                        raise AssertionError(f"{where}: {error!r}\n{log}") from error
            if number < rounds:
                _write_until_killed(server, writers, moments.uniform(0.0, 1.5))
                report(f"round {number + 1}: {sum(w.changes for w in writers)} changes so far")
    finally:
        server.kill()
    return Counter({type(writer).__name__: writer.changes for writer in writers})


def _write_until_killed(server: ServerProcess, writers: list[Writer], after_s: float) -> None:
    failures = list[BaseException]()

    def work(writer: Writer) -> None:
        with suppress(httpx.TransportError), httpx.Client(base_url=server.url) as client:
            while True:
                try:
                    writer.write(client)
                except AssertionError as error:
                    failures.append(error)
                    return

    threads = [threading.Thread(target=work, args=[writer]) for writer in writers]
    for thread in threads:
        thread.start()
    time.sleep(after_s)
    server.kill()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    print(f"seed {options.seed}")
    with tempfile.TemporaryDirectory() as folder:
        counts = run_rounds(Path(folder), options.rounds, options.seed)
    print(f"{options.rounds} kills, changes that were acknowledged and are there: {dict(counts)}")


if __name__ == "__main__":
    main()
