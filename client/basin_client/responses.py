"""Parse successful responses into the classes of `basin_client.results`."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Sequence
from typing import Any

import httpx
import numpy as np

from basin_client.errors import require_extra
from basin_client.graphs import NodeId
from basin_client.request import parse_json, parse_safetensors
from basin_client.results import (
    ClassificationResult,
    CompletionResult,
    Convergence,
    ImageResult,
    ItemError,
    Prediction,
    SampleResult,
    Scores,
)

_COLUMNS = ("score", "probability", "label", "rank")


def scores_parser(node_ids: Sequence[NodeId] | None) -> Callable[[httpx.Response], Scores]:
    """Return the parser of a safetensors response of `POST /anomaly/score`.

    Args:
        node_ids: ids by row; the rows themselves if None.
    """

    def parse(response: httpx.Response) -> Scores:
        tensors, payload = parse_safetensors(response)
        columns = {name: tensors.pop(f"results.{name}") for name in ("row", *_COLUMNS)}
        rows: list[int] = columns.pop("row").tolist()
        return Scores(
            [*rows] if node_ids is None else [node_ids[row] for row in rows],
            **columns,
            threshold=payload["threshold"],
            convergence=Convergence.from_dict(payload["convergence"]),
            tensors=tensors,
            raw=payload,
            transaction_ids=None,
        )

    return parse


def parse_transaction_scores(response: httpx.Response) -> Scores:
    """Parse a JSON response of scores of transactions."""
    payload = parse_json(response)
    results = payload["results"]
    columns = {name: np.array([result[name] for result in results]) for name in _COLUMNS}
    is_of_accounts = "transaction_id" in results[0]
    return Scores(
        [result["node_id"] for result in results],
        **columns,
        threshold=results[0]["threshold"],
        convergence=Convergence.from_dict(payload["convergence"]),
        tensors={},
        raw=payload,
        transaction_ids=[r["transaction_id"] for r in results] if is_of_accounts else None,
    )


def completion_from_dict(payload: dict[str, Any]) -> CompletionResult:
    """Convert a JSON response of `POST /complete`, or the data of its event `done`."""
    entries = payload["images"]
    maps = [entry["b64_uncertainty_png"] for entry in entries if "b64_uncertainty_png" in entry]
    box = payload.get("box")
    return CompletionResult(
        images=[decode_image(entry["b64_png"]) for entry in entries],
        convergence=[entry["convergence"] for entry in entries],
        uncertainty=[decode_image(b64_png) for b64_png in maps],
        box=None if box is None else (box["left"], box["top"], box["width"], box["height"]),
        raw=payload,
    )


def decode_image(b64_png: str) -> Any:
    """Return the `PIL.Image` of a PNG in base64."""
    with require_extra("images"):
        from PIL import Image

    return Image.open(io.BytesIO(base64.b64decode(b64_png)))


def parse_completion(response: httpx.Response) -> CompletionResult:
    return completion_from_dict(response.json())


def parse_classification(response: httpx.Response) -> ClassificationResult:
    payload = response.json()
    return ClassificationResult([_parse_item(item) for item in payload["results"]], payload)


def _parse_item(item: dict[str, Any]) -> Prediction | ItemError:
    if item["status"] != "ok":
        return ItemError(item["index"], item["error"]["code"], item["error"]["detail"], item)
    predictions = item["predictions"].items()
    return Prediction(
        item["index"],
        {task: prediction["label"] for task, prediction in predictions},
        {task: prediction["probabilities"] for task, prediction in predictions},
        Convergence.from_dict(item["convergence"]),
        item,
    )


def parse_image_results(response: httpx.Response) -> list[ImageResult]:
    return [
        ImageResult(
            item["index"],
            item.get("label", item.get("answer")),
            item["probability"],
            item["probabilities"],
            Convergence.from_dict(item["convergence"]),
            item,
        )
        for item in response.json()["results"]
    ]


def parse_samples(response: httpx.Response) -> SampleResult:
    payload = response.json()
    if "spectrum" not in payload:
        return SampleResult(_to_samples(payload["samples"]), payload["diagnostics"], payload)
    spectrum = payload["spectrum"]  # one entry for each beta
    samples = [_to_samples(entry["samples"]) for entry in spectrum]
    return SampleResult(samples, [entry["diagnostics"] for entry in spectrum], payload)


def _to_samples(values: list[Any]) -> Any:
    return values if values and isinstance(values[0], str) else np.array(values, np.float32)
