"""What one API key at its limits costs another: latency of small scores, alone and beside it.

Key B scores `examples/tolokers.json` (60 nodes, as JSON) over one connection, a request every
`PERIOD_S` on average or as soon as the last is answered, while key A, from a process of its own:

- slow bodies: begins 100 bodies of 60 MiB, of each 4 MiB and then 1 KiB a second, so that its share
  of `BASIN_MAX_BUFFERED_BYTES` is full;
- huge bodies: sends graphs of 64 MiB as safetensors and as JSON, the largest that are accepted, one
  after the other of each;
- medium bodies: the same of 4 MiB as JSON, the largest that are parsed in the server's process;
- explanations: has 4 targets of a graph of 400 nodes explained, 8 requests at a time;
- jobs: keeps as many jobs in the queue as it may have, scores of 5,000 nodes;
- connections: sends small scores over 200 connections without a pause;
- all together.

The server runs with default limits and without a cache. Rounds alone and rounds of each kind take
turns, so that a drift of the machine meets all alike. Printed are for each kind p50 and p99 of B,
and each of the two over the same of the rounds alone; what B and A were answered, and how many
requests of A had no answer when a round ended; and with `--profile` the phases of the slowest
hundredth of B's requests, as the server measured them. The exit status is 1 if a request of B had
another answer than 200.

With `--other-server` key A sends to a second server on the same machine, and the two servers share
nothing but its cores: what B waits for then, no fairness of a server can take away.

A's process is niced, so that on a machine of few cores what is measured is the server.

    python -m benchmarks.fairness [--seconds 20] [--rounds 3] [--only KIND ...] [--profile]
        [--other-server]
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
import socket
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import count
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Event
from pathlib import Path

import httpx
import numpy as np

from benchmarks.client import Line, Reply, example
from benchmarks.machine import describe
from benchmarks.overhead import body_of, graph_of
from benchmarks.server import serving
from service.auth.keys import ApiKey, hash_secret, new_secret
from service.settings import Settings
from service.workers.large_json import LARGE_BODY_BYTES

PATH = "/anomaly/score"
JSON, SAFETENSORS = "application/json", "application/vnd.safetensors"
PERIOD_S = 0.02
WARM_S = 2.0  # of a kind of load, before B is measured
SLOW_BYTES, SLOW_TOTAL_BYTES = 4 << 20, 60 << 20
ALONE, ALL = "alone", "all together"
UNFINISHED, BROKEN = "unfinished", "broken"


class Load:
    """Key A: threads that send until they are stopped, and count the statuses of the responses."""

    def __init__(self, port: int, secret: str, stop: Event) -> None:
        self.port, self.secret, self.stop = port, secret, stop
        self._statuses = Counter[str]()
        self._counting = threading.Lock()

    def repeat(self, body: bytes, media_type: str, **headers: str) -> None:
        """Send a request after the other over one connection."""
        own = {"content-type": media_type, "authorization": f"Bearer {self.secret}"} | headers
        line = None
        while not self.stop.is_set():
            self.begin()
            try:
                line = line or Line(self.port)
                reply = line.post(PATH, body, own)
            except OSError:
                self.end(BROKEN)
                line = None
                time.sleep(0.1)
                continue
            self.end(str(reply.status))

    def drip(self, size: int) -> None:
        """Send `SLOW_BYTES` of a body of `size` bytes, and then 1 KiB a second."""
        lines = [f"POST {PATH} HTTP/1.1", "host: 127.0.0.1", f"content-type: {SAFETENSORS}"]
        lines += [f"authorization: Bearer {self.secret}", f"content-length: {size}", "", ""]
        while not self.stop.is_set():
            self.begin()
            try:
                with socket.create_connection(("127.0.0.1", self.port), 1.0) as connection:
                    connection.sendall("\r\n".join(lines).encode())
                    connection.sendall(bytes(SLOW_BYTES))
                    self.end(self._drip_until_answered(connection))
            except OSError:
                self.end(BROKEN)

    def _drip_until_answered(self, connection: socket.socket) -> str:
        while True:
            try:
                head = connection.recv(1 << 12)
            except TimeoutError:
                connection.sendall(bytes(1 << 10))
            else:
                return head.split(b" ", 2)[1].decode() if head else BROKEN

    def begin(self) -> None:
        with self._counting:
            self._statuses[UNFINISHED] += 1

    def end(self, status: str) -> None:
        with self._counting:
            self._statuses[UNFINISHED] -= 1
            self._statuses[status] += 1

    def copy_statuses(self) -> Counter[str]:
        with self._counting:
            return self._statuses.copy()


def _make_largest(max_bytes: int, media_type: str) -> bytes:
    """A body of at most `max_bytes`, and of no less than 97 hundredths of them."""
    nodes = 1000
    while True:
        body, _ = body_of(graph_of(nodes, 10), media_type)
        if 0.97 * max_bytes <= len(body) <= max_bytes:
            return body
        nodes = int(0.985 * nodes * max_bytes / len(body))


def _slow_bodies(load: Load) -> list[Callable[[], None]]:
    return [lambda: load.drip(SLOW_TOTAL_BYTES)] * 100


def _huge_bodies(load: Load) -> list[Callable[[], None]]:
    size = Settings().max_body_bytes
    bodies = {media_type: _make_largest(size, media_type) for media_type in (SAFETENSORS, JSON)}
    return [lambda body=body, kind=kind: load.repeat(body, kind) for kind, body in bodies.items()]


def _medium_bodies(load: Load) -> list[Callable[[], None]]:
    body = _make_largest(LARGE_BODY_BYTES, JSON)
    return [lambda: load.repeat(body, JSON)] * 2


def _explanations(load: Load) -> list[Callable[[], None]]:
    request = json.loads(body_of(graph_of(400, 10), JSON)[0])
    body = json.dumps(request | {"targets": list(range(4)), "include": ["explanation"]}).encode()
    return [lambda: load.repeat(body, JSON)] * 8


def _jobs(load: Load) -> list[Callable[[], None]]:
    body, media_type = body_of(graph_of(5000, 10), SAFETENSORS)
    return [lambda: load.repeat(body, media_type, prefer="respond-async")] * 4


def _connections(load: Load) -> list[Callable[[], None]]:
    body = example()
    return [lambda: load.repeat(body, JSON)] * 200


KINDS: Mapping[str, Callable[[Load], list[Callable[[], None]]]] = {
    "slow bodies": _slow_bodies,
    "huge bodies": _huge_bodies,
    "medium bodies": _medium_bodies,
    "explanations": _explanations,
    "jobs": _jobs,
    "connections": _connections,
}


def _run_load(
    kind: str, port: int, secret: str, ready: Event, stop: Event, statuses: Queue[Counter[str]]
) -> None:
    """Process of key A."""
    os.nice(10)
    load = Load(port, secret, stop)
    works = [work for name in KINDS if kind in (name, ALL) for work in KINDS[name](load)]
    threads = [threading.Thread(target=work, daemon=True) for work in works]
    for thread in threads:
        thread.start()
    ready.set()
    stop.wait()
    statuses.put(load.copy_statuses())


@contextmanager
def _loaded(kind: str, port: int, secret: str, statuses: Counter[str]) -> Iterator[None]:
    """Key A sends requests of this kind while the context lasts."""
    spawn = multiprocessing.get_context("spawn")
    ready, stop, results = spawn.Event(), spawn.Event(), spawn.Queue()
    arguments = kind, port, secret, ready, stop, results
    process = spawn.Process(target=_run_load, args=arguments, daemon=True)
    process.start()
    try:
        ready.wait()
        time.sleep(WARM_S)
        yield
    finally:
        stop.set()
        statuses.update(results.get())
        process.kill()
        process.join()


@dataclass
class Latencies:
    """Replies of key B beside one kind of load, and statuses of what key A was answered."""

    replies: list[Reply] = field(default_factory=list)
    statuses: Counter[str] = field(default_factory=Counter[str])
    num_broken: int = 0

    def measure(self, port: int, secret: str, seconds: float) -> None:
        line, body, jitter = Line(port), example(), random.Random(0)
        headers = {"content-type": JSON, "authorization": f"Bearer {secret}"}
        end = time.perf_counter() + seconds
        for number in count():
            if (now := time.perf_counter()) >= end:
                return
            try:
                self.replies.append(line.post(PATH, body, headers))
            except OSError:
                self.num_broken += 1
                line = Line(port)
            # A fixed period could meet another one of the server or of key A at the same point.
            period_s = PERIOD_S * jitter.uniform(0.5, 1.5)
            time.sleep(max(period_s - (time.perf_counter() - now), 0.0) if number else 0.0)

    @property
    def ms(self) -> list[float]:
        return [1e3 * reply.seconds for reply in self.replies if reply.status == 200]

    @property
    def own_statuses(self) -> Counter[str]:
        """What key B was answered."""
        return Counter(str(reply.status) for reply in self.replies) + Counter(
            {BROKEN: self.num_broken}
        )

    def percentiles_ms(self) -> tuple[float, float]:
        p50, p99 = np.percentile(self.ms or [np.nan], (50, 99))
        return float(p50), float(p99)

    def describe_slowest(self) -> str:
        """Mean milliseconds of the phases of the slowest hundredth, and of what is in none."""
        answered = sorted(
            (reply for reply in self.replies if reply.status == 200), key=lambda r: r.seconds
        )
        slowest = answered[-max(len(answered) // 100, 1) :]
        phases = dict[str, float]()
        for reply in slowest:
            for part in reply.headers["server-timing"].split(", "):
                name, _, ms = part.partition(";dur=")
                phases[name] = phases.get(name, 0.0) + float(ms) / len(slowest)
        total = sum(1e3 * reply.seconds for reply in slowest) / len(slowest)
        inside = phases.pop("total", 0.0)
        parts = [f"{name} {ms:.1f}" for name, ms in phases.items()]
        return ", ".join([*parts, f"outside {total - inside:.1f}"])


def _write_keys(path: Path) -> dict[str, str]:
    """Write a file of keys A and B and one for the metrics; return their secrets."""
    secrets = {name: new_secret() for name in ("a", "b", "watcher")}
    hashes = {name: (hash_secret(secret),) for name, secret in secrets.items()}
    keys = [
        *(ApiKey(name=name, sha256=hashes[name], routes="*", models="*") for name in ("a", "b")),
        ApiKey(name="watcher", sha256=hashes["watcher"], routes=("/metrics",), models="*"),
    ]
    entries = [key.model_dump(mode="json", exclude_none=True) for key in keys]
    path.write_text(json.dumps({"keys": entries}))
    return secrets


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fairness", description=__doc__)
    parser.add_argument("--seconds", type=float, default=20.0, help="of each measurement")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", nargs="+", choices=[*KINDS, ALL], default=[*KINDS, ALL])
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--other-server", action="store_true", help="key A sends to one of its own")
    args = parser.parse_args()
    print(describe())
    seen = {kind: Latencies() for kind in (ALONE, *args.only)}
    with tempfile.TemporaryDirectory() as folder:
        keys = Path(folder) / "keys.json"
        secrets = _write_keys(keys)
        with ExitStack() as servers:
            own = servers.enter_context(_serving(Path(folder) / "own", keys))
            loaded = own
            if args.other_server:
                loaded = servers.enter_context(_serving(Path(folder) / "other", keys))
            port, loaded_port = own.base_url.port, loaded.base_url.port
            assert port is not None
            assert loaded_port is not None
            Latencies().measure(port, secrets["b"], WARM_S)
            for _ in range(args.rounds):
                for kind in args.only:
                    seen[ALONE].measure(port, secrets["b"], args.seconds / len(args.only))
                    with _loaded(kind, loaded_port, secrets["a"], seen[kind].statuses):
                        seen[kind].measure(port, secrets["b"], args.seconds)
                    _wait_until_idle(loaded, secrets["watcher"])
    _print(seen, args.profile)
    sys.exit(any(latencies.own_statuses.keys() != {"200"} for latencies in seen.values()))


@contextmanager
def _serving(folder: Path, keys: Path) -> Iterator[httpx.Client]:
    """A server with these keys and stores of its own."""
    folder.mkdir()
    stores = {f"BASIN_{name}_STORE": str(folder / name) for name in ("JOB", "GRAPH", "MEMORY")}
    with serving(BASIN_KEYS=str(keys), BASIN_DEVICE="cpu", **stores) as client:
        yield client


def _wait_until_idle(client: httpx.Client, secret: str) -> None:
    """Wait until nothing of key A is left to compute."""
    headers = {"authorization": f"Bearer {secret}"}
    while True:
        metrics = client.get("/metrics", headers=headers).raise_for_status().text
        if {"basin_queue_depth 0.0", "basin_jobs_unfinished 0.0"} <= set(metrics.splitlines()):
            return
        time.sleep(0.5)


def _print(seen: Mapping[str, Latencies], is_profiled: bool) -> None:
    alone_p50, alone_p99 = seen[ALONE].percentiles_ms()
    print("| beside | p50, ms | over alone | p99, ms | over alone | answers of B | answers of A |")
    print("|---|---|---|---|---|---|---|")
    for kind, latencies in seen.items():
        p50, p99 = latencies.percentiles_ms()
        answers = " | ".join(map(_describe, (latencies.own_statuses, latencies.statuses)))
        print(
            f"| {kind} | {p50:.1f} | {p50 / alone_p50:.2f} | {p99:.1f} | {p99 / alone_p99:.2f} "
            f"| {answers} |"
        )
    if is_profiled:
        for kind, latencies in seen.items():
            print(f"slowest hundredth, {kind}: {latencies.describe_slowest()} ms")


def _describe(statuses: Counter[str]) -> str:
    return ", ".join(f"{n} x {status}" for status, n in sorted(statuses.items()) if n)


if __name__ == "__main__":
    main()
