"""The least that can serve a network from Python: uvicorn, one thread that computes, and between
them what cannot be left out. Nothing is checked, measured, counted or told but the scores.

uvicorn benchmarks.minimal_server:app
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
import orjson
import safetensors.numpy
import torch
from starlette.types import Receive, Scope, Send

from models.base import DynamicsParams
from models.inputs.graph import Graph
from models.tasks.node_scorer import NodeScorer
from service.registry.loader import ModelLoader
from service.settings import Settings

MODEL = "cdat-tolokers"


async def app(scope: Scope, receive: Receive, send: Send) -> None:
    """ASGI: a graph as JSON arrays or a safetensors file, and its logits as the same."""
    if scope["type"] != "http":
        return
    body, more = b"", True
    while more:
        message = await receive()
        body += message.get("body", b"")
        more = message.get("more_body", False)
    answer = await asyncio.get_running_loop().run_in_executor(_compute, _answer, body)
    length = str(len(answer)).encode()
    head = {"type": "http.response.start", "status": 200, "headers": [(b"content-length", length)]}
    await send(head)
    await send({"type": "http.response.body", "body": answer})


@torch.inference_mode()
def _answer(body: bytes) -> bytes:
    as_json = body[:1] == b"{"
    if as_json:
        arrays = orjson.loads(body)["graph"]
        x, edges = np.array(arrays["x"], np.float32), np.array(arrays["edge_index"], np.int64)
    else:
        arrays = safetensors.numpy.load(body)
        x, edges = arrays["x"], arrays["edge_index"]
    logits_N = network.infer(network.pack([Graph(x, edges)]), [DynamicsParams()]).logits.numpy()
    if as_json:
        return orjson.dumps({"score": logits_N.tolist()})
    return safetensors.numpy.save({"score": logits_N})


def _ready() -> NodeScorer:
    """As the server makes it, for one thread."""
    machine = ModelLoader.from_settings(Settings(threads=1, device="cpu"))
    network = machine.load(Path("checkpoints") / MODEL).network
    assert isinstance(network, NodeScorer)
    return network


network = _ready()
_compute = ThreadPoolExecutor(1, initializer=partial(torch.set_num_threads, 1))
