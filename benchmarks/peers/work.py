"""What each server does with a batch of requests: parse, one forward pass, answer.

Requests and answers are those of Basin's routes, without what it tells of convergence.
"""

from __future__ import annotations

import base64
import io
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from models import checkpoint
from models.base import DynamicsParams
from models.inputs.graph import Graph
from models.inputs.patches import (
    MaskedImage,
    composite,
    measure_hidden_shares,
    patch_mask_to_pixels,
)
from models.tasks.image_completer import ImageCompleter
from models.tasks.node_scorer import NodeScorer

MOST, WAIT_S = 32, 0.005
"""Requests of a batch, and how long it waits for them to come."""


class Scores:
    """`POST /anomaly/score` of graphs as arrays."""

    def __init__(self, folder: Path) -> None:
        loaded = checkpoint.load_checkpoint(folder)
        assert isinstance(loaded.network, NodeScorer)
        self.network, self.manifest = loaded.network, loaded.manifest

    def read(self, request: dict[str, Any]) -> tuple[Graph, DynamicsParams]:
        graph = request["graph"]
        x, edges = np.array(graph["x"], np.float32), np.array(graph["edge_index"], np.int64)
        return Graph(x, edges), _params(request)

    @torch.no_grad()
    def run(self, requests: Sequence[tuple[Graph, DynamicsParams]]) -> list[np.ndarray]:
        graphs, params = zip(*requests, strict=True)
        output = self.network.infer(self.network.pack(graphs), params)
        counts = [graph.num_nodes for graph in graphs]
        return [part.numpy() for part in output.logits.split(counts)]

    def write(self, logits_N: np.ndarray) -> dict[str, Any]:
        p = self.manifest.calibration(logits_N)
        return {"scores": logits_N.tolist(), "probabilities": p.tolist()}


class Completions:
    """`POST /complete` of pictures of the model's own size, as base64 in JSON."""

    def __init__(self, folder: Path) -> None:
        loaded = checkpoint.load_checkpoint(folder)
        assert isinstance(loaded.network, ImageCompleter)
        self.network = loaded.network

    def read(self, request: dict[str, Any]) -> tuple[np.ndarray, np.ndarray, DynamicsParams]:
        mode = "L" if self.network.config.channels == 1 else "RGB"
        pixels = np.asarray(_picture(request["image"]).convert(mode))
        mask = np.asarray(_picture(request["mask"]).convert("L")) > 127
        return pixels.reshape(*pixels.shape[:2], -1), mask, _params(request)

    @torch.no_grad()
    def run(
        self, requests: Sequence[tuple[np.ndarray, np.ndarray, DynamicsParams]]
    ) -> list[np.ndarray]:
        patch = self.network.config.patch
        pictures = [
            MaskedImage(pixels, measure_hidden_shares(mask, patch) > 0)
            for pixels, mask, _ in requests
        ]
        output = self.network.infer(
            self.network.pack(pictures), [params for *_, params in requests]
        )
        images, occluded = (np.stack([getattr(p, n) for p in pictures]) for n in _FIELDS)
        return list(composite(images, patch_mask_to_pixels(occluded, patch), output.logits))

    def write(self, pixels: np.ndarray) -> dict[str, Any]:
        file = io.BytesIO()
        Image.fromarray(pixels.squeeze()).save(file, "PNG")
        return {"image": base64.b64encode(file.getvalue()).decode()}


Work = Scores | Completions
_FIELDS = ("pixels", "occluded")


def _params(request: dict[str, Any]) -> DynamicsParams:
    return DynamicsParams(**request.get("dynamics", {}))


def _picture(encoded: str) -> Image.Image:
    return Image.open(io.BytesIO(base64.b64decode(encoded)))


def chosen() -> Work:
    """Told by the environment, since each server starts processes of its own."""
    torch.set_num_threads(1)
    kind = {"scores": Scores, "completions": Completions}[os.environ["PEER_WORK"]]
    return kind(Path(os.environ["PEER_CHECKPOINT"]))


def answer(work: Work, requests: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """A batch, from JSON to JSON."""
    outcomes: Sequence[Any] = work.run([work.read(request) for request in requests])  # type: ignore[arg-type]
    return [work.write(outcome) for outcome in outcomes]
