"""Basin beside LitServe, BentoML and Ray Serve: the same checkpoint, each with its own batching.

Scores of `examples/tolokers.json` by `cdat-tolokers`; and completions of pictures of the model's
own size by an Energy Transformer of random weights (64 patches, 128 wide), with a number of steps
between 1 and 48 and, every other one, a tolerance, as in `benchmarks.throughput`. One torch thread
computes, on either side; 1, 8 and 64 clients ask again as soon as they are answered. Basin is
measured twice, the second time kept to one core (docs/operations.md). What a peer answers is a part
of what Basin does. Printed are requests a second and the 99th percentile of
latency, and both over Basin's.

The peers are no dependencies of the project. In an environment that has them and the project:

    pip install litserve bentoml "ray[serve]"
    python -m benchmarks.peers [seconds]
"""

from __future__ import annotations

import asyncio
import base64
import importlib.util
import io
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from PIL import Image

from benchmarks.client import Connection, example
from benchmarks.machine import describe
from benchmarks.server import free_port, serving
from benchmarks.throughput import trained_tolerance, untrained
from models import checkpoint
from models.manifest import EnergyReference, Manifest
from models.tasks.image_completer import ImageCompleter

REPO = Path(__file__).parents[2]
PEERS = {
    "litserve": ("benchmarks.peers.with_litserve",),
    "bentoml": ("bentoml", "serve", "benchmarks.peers.with_bentoml:Peer", "--port"),
    "ray": ("benchmarks.peers.with_ray",),
}
CLIENTS, SECONDS, WARM_S, STEPS = (1, 8, 64), 20.0, 3.0, 48
_JSON = "application/json"


def _picture(pixels: np.ndarray) -> str:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return base64.b64encode(file.getvalue()).decode()


def _completions(tolerance: float) -> list[bytes]:
    rng = np.random.default_rng(1)
    bodies = []
    for place in range(256):
        mask = (rng.random((8, 8)) < 0.5).repeat(8, 0).repeat(8, 1).astype(np.uint8) * 255
        dynamics = {
            "steps": int(rng.integers(1, STEPS + 1)),
            "tolerance": tolerance * (place % 2),
        }
        image = _picture(rng.integers(0, 256, (64, 64, 3), np.uint8))
        body = {"image": image, "mask": _picture(mask), "dynamics": dynamics}
        bodies.append(json.dumps(body).encode())
    return bodies


def _save(network: ImageCompleter, folder: Path) -> None:
    manifest = Manifest(
        name=folder.name,
        version="0",
        architecture=network.name,
        task=network.task,
        config=network.config.model_dump(mode="json"),
        knobs=checkpoint.read_trained_params(network),
        features=(),
        energy=EnergyReference(levels=(0.0, 0.5, 1.0), values=(-30.0, -5.0, 10.0)),
        training={"data": "none"},
        metrics={},
    )
    checkpoint.save_checkpoint(folder, network, manifest, "# Untrained\n")


async def _load(port: int, path: str, bodies: list[bytes], clients: int, seconds: float):
    """Latencies of clients that retry immediately."""
    took, place = list[float](), iter(range(10**9))
    end = time.perf_counter() + seconds

    async def ask() -> None:
        connection = Connection(port)
        while time.perf_counter() < end:
            reply = await connection.post(path, bodies[next(place) % len(bodies)], _JSON)
            assert reply.status == 200, reply.body[:500]
            took.append(reply.seconds)
        connection.close()

    await asyncio.gather(*(ask() for _ in range(clients)))
    return took


@contextmanager
def _peer(module: tuple[str, ...], work: str, folder: Path, body: bytes) -> Iterator[int]:
    port = free_port()
    env = os.environ | {
        "PEER_WORK": work,
        "PEER_CHECKPOINT": str(folder),
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(REPO),
        "BENTOML_DO_NOT_TRACK": "1",
        "RAY_USAGE_STATS_ENABLED": "0",
    }
    command = [sys.executable, "-m", *module, str(port)]
    with tempfile.TemporaryFile() as log:
        server = subprocess.Popen(
            command, cwd=REPO, env=env, stdout=log, stderr=log, start_new_session=True
        )
        try:
            asyncio.run(_ready(port, body, server))
            yield port
        except BaseException:
            log.seek(0)
            sys.stderr.write(log.read().decode(errors="replace")[-3000:])
            raise
        finally:
            os.killpg(server.pid, signal.SIGTERM)
            try:
                server.wait(20)
            except subprocess.TimeoutExpired:
                os.killpg(server.pid, signal.SIGKILL)


async def _ready(port: int, body: bytes, server: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + 120
    while time.monotonic() < end and server.poll() is None:
        try:
            if (await Connection(port).post("/predict", body, _JSON)).status == 200:
                return
        except OSError:
            pass
        await asyncio.sleep(0.5)
    raise TimeoutError("the peer is not ready")


def _measure(
    port: int, path: str, bodies: list[bytes], seconds: float
) -> list[tuple[float, float]]:
    asyncio.run(_load(port, path, bodies, 8, WARM_S))
    found = []
    for clients in CLIENTS:
        took = asyncio.run(_load(port, path, bodies, clients, seconds))
        found.append((len(took) / seconds, 1e3 * float(np.percentile(took, 99))))
    return found


def main() -> None:
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else SECONDS
    print(describe())
    there = {name: m for name, m in PEERS.items() if importlib.util.find_spec(name)}
    for name in PEERS.keys() - there.keys():
        print(f"{name} is not installed")
    scored, cores = example(), os.sched_getaffinity(0)
    with tempfile.TemporaryDirectory() as made:
        folder, network = Path(made) / "et-untrained", untrained()
        _save(network, folder)
        cases = {
            "scores": (REPO / "checkpoints" / "cdat-tolokers", "/anomaly/score", [scored]),
            "completions": (folder, "/complete", _completions(trained_tolerance(network))),
        }
        for work, (checkpoint_folder, route, bodies) in cases.items():
            rows = {}
            own = {"BASIN_CHECKPOINTS": str(checkpoint_folder.parent), "BASIN_THREADS": "1"}
            own |= {"BASIN_DEFAULT_COMPLETION_MODEL": folder.name, "BASIN_QUEUE_SIZE": "128"}
            for name, kept in ("basin", cores), ("basin, one core", {min(cores)}):
                os.sched_setaffinity(0, kept)  # what is started has the same
                with serving(**own) as client:
                    os.sched_setaffinity(0, cores)
                    rows[name] = _measure(client.base_url.port or 0, route, bodies, seconds)
            for name, module in there.items():
                sent = bodies
                if name == "bentoml":  # takes the requests of a client as a list
                    sent = [b'{"requests": [' + body + b"]}" for body in bodies]
                with _peer(module, work, checkpoint_folder, sent[0]) as port:
                    rows[name] = _measure(port, "/predict", sent, seconds)
            clients = " | ".join(f"{n} client(s)/s | p99" for n in CLIENTS)
            print(f"\n| {work} | {clients} |\n|---|" + "---|---|" * len(CLIENTS))
            for name, found in rows.items():
                cells = [
                    f"{rate:.1f} ({rate / ours:.2f}) | {p99:.0f} ms ({p99 / late:.2f})"
                    for (rate, p99), (ours, late) in zip(found, rows["basin"], strict=True)
                ]
                print(f"| {name} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
