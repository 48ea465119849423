"""What serving adds to a forward pass: an unloaded request over the same network called directly.

Scores of random graphs by the shipped `cdat-tolokers`, of 30 nodes as JSON, of 500 and 5,000 as
safetensors, with ten edges a node, one request at a time over one connection. Requests, bare
passes (the same graph, packed before, as many torch threads), requests to a minimal server of the
network (`benchmarks.minimal_server`), and the same bytes sent to a server that reads them and
answers as many (`benchmarks.echo_server`) take turns. Printed are medians, what each server takes
over the pass, and the phases that the server reports.

    python -m benchmarks.overhead [requests]
"""

from __future__ import annotations

import json
import statistics
import sys
import time

import numpy as np
import safetensors.numpy
import torch

from benchmarks.client import Line
from benchmarks.machine import describe, keep_what_is_freed
from benchmarks.minimal_server import MODEL, network
from benchmarks.server import bare, serving
from models.base import DynamicsParams
from models.inputs.graph import Graph

CASES = ((30, "application/json"), (500, "safetensors"), (5000, "safetensors"))
EDGES, REQUESTS, WARM = 10, 300, 20
SAFETENSORS = "application/vnd.safetensors"


def graph_of(nodes: int, features: int) -> Graph:
    rng = np.random.default_rng(nodes)
    x = rng.random((nodes, features)).astype(np.float32)
    return Graph(x, rng.integers(0, nodes, (2, EDGES * nodes)))


def body_of(graph: Graph, form: str) -> tuple[bytes, str]:
    if form == "application/json":
        arrays = {"x": graph.x.round(4).tolist(), "edge_index": graph.edge_index.tolist()}
        return json.dumps({"model": MODEL, "graph": arrays}).encode(), form
    arrays = {"x": graph.x, "edge_index": graph.edge_index}
    request = json.dumps({"model": MODEL})
    return safetensors.numpy.save(arrays, metadata={"request": request}), SAFETENSORS


@torch.inference_mode()  # as the servers
def _compare(
    client: Line,
    least: Line,
    floor: Line,
    nodes: int,
    form: str,
    count: int,
) -> str:
    graph = graph_of(nodes, len(network.config.features))
    content, media_type = body_of(graph, form)
    batch, headers = network.pack([graph]), {"content-type": media_type}
    if form != "application/json":
        headers["accept"] = SAFETENSORS
    asked, direct, minimal, empty = (list[float]() for _ in range(4))
    phases: dict[str, list[float]] = {}
    for turn in range(count + WARM):
        answer = client.post("/anomaly/score", content, headers)
        assert answer.status == 200, answer.body
        start = time.perf_counter()
        network.infer(batch, [DynamicsParams()])
        end = time.perf_counter()
        told = least.post("/", content, headers)
        nothing = floor.post(f"/?bytes={len(answer.body)}", content, headers)
        if turn >= WARM:
            asked.append(1e3 * answer.seconds)
            direct.append(1e3 * (end - start))
            minimal.append(1e3 * told.seconds)
            empty.append(1e3 * nothing.seconds)
            for part in answer.headers["server-timing"].split(", "):
                name, _, ms = part.partition(";dur=")
                phases.setdefault(name, []).append(float(ms))
    p50, forward, other, bottom = map(statistics.median, (asked, direct, minimal, empty))
    parts = ", ".join(f"{name} {statistics.median(ms):.2f}" for name, ms in phases.items())
    over = f"{p50 - forward:.2f} | {other - forward:.2f} | {bottom:.2f}"
    return f"| {nodes} | {form} | {p50:.2f} | {forward:.2f} | {over} | {parts} |"


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else REQUESTS
    torch.set_num_threads(1)
    keep_what_is_freed()
    print(describe())
    print(
        "| nodes | body | request, ms | forward, ms | overhead, ms | of the least, ms | floor, ms "
        "| phases told, ms |"
    )
    print("|---|---|---|---|---|---|---|---|")
    own = {"BASIN_THREADS": "1", "BASIN_DEVICE": "cpu"}
    with (
        serving(**own) as server,
        bare("benchmarks.minimal_server:app") as least,
        bare("benchmarks.echo_server:app") as floor,
    ):
        assert server.base_url.port is not None
        lines = [Line(port) for port in (server.base_url.port, least, floor)]
        for nodes, form in CASES:
            print(_compare(*lines, nodes, form, count))


if __name__ == "__main__":
    main()
