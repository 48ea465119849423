"""Requests for inference, memories and models, for `Client.send` or, as a job, `Client.submit`."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, TypeVar

import httpx
import numpy as np

from basin_client.graphs import Graph, NodeId, needs_schema, to_graph
from basin_client.images import ImageInput, encode_image, image_files
from basin_client.request import (
    SAFETENSORS,
    AlertRule,
    Dynamics,
    Include,
    Request,
    common_fields,
    json_request,
    parse_json,
    parse_nothing,
    parse_safetensors,
    quote_path,
    safetensors_request,
)
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
from basin_client.schema import GraphSchema
from basin_client.smiles import to_smiles_list

T = TypeVar("T")
_SCORE_COLUMNS = ("row", "score", "probability", "label", "rank")


def score(
    graph: Any,
    targets: Sequence[Any] | None = None,
    *,
    features: Sequence[str] | None = None,
    drop: str | Sequence[str] = (),
    model: str | None = None,
    dynamics: Dynamics | None = None,
    include: Sequence[Include] = (),
    decision: AlertRule | None = None,
    timeout_s: float | None = None,
) -> Request[Scores]:
    """Score how suspicious each node of a graph is.

    Columns of tables and attributes of NetworkX graphs are matched with the features of the model
    by name, types of edges with its relations; arrays are taken in the model's order.

    Args:
        graph: a graph that `to_graph` can convert.
        targets: ids of the nodes to return (rows if the graph has no ids); all nodes if None.
        features: attributes or columns to take as features; all others if None.
        drop: attributes or columns to leave out; `*` is all that the model does not read.
        decision: what gets label 1 in place of the model's threshold, as {"budget": 50}.

    Raises:
        TypeError: `graph` has an unsupported type.
        InputError: the graph does not fit the model, or there is no such target.
    """

    def bind(schema: GraphSchema | None) -> Request[Scores]:
        converted = to_graph(graph, features, schema=schema, drop=drop)
        return _score_request(converted, targets, model, dynamics, include, decision)

    if needs_schema(graph):
        path = "" if model is None else quote_path("models", model)
        parse = scores_parser(None)
        request = Request("POST", "/anomaly/score", parse, schema_path=path, bind=bind)
    else:
        request = bind(None)
    return request.with_timeout(timeout_s)


def _score_request(
    graph: Graph,
    targets: Sequence[Any] | None,
    model: str | None,
    dynamics: Dynamics | None,
    include: Sequence[Include],
    decision: AlertRule | None,
) -> Request[Scores]:
    arrays = graph.arrays()
    if targets is not None:
        arrays["targets"] = np.array(graph.find_rows(targets), np.int64)
    fields = common_fields(model, dynamics, include, decision=decision, **graph.names())
    if include and graph.node_ids is not None:  # explanations name nodes
        fields["node_ids"] = list(graph.node_ids)
    parse = scores_parser(graph.node_ids)
    return safetensors_request("/anomaly/score", fields, arrays, parse, accept=SAFETENSORS)


def scores_parser(node_ids: Sequence[NodeId] | None) -> Callable[[httpx.Response], Scores]:
    """Return the parser of a safetensors response of `POST /anomaly/score`.

    Args:
        node_ids: ids by row; the rows themselves if None.
    """

    def parse(response: httpx.Response) -> Scores:
        tensors, payload = parse_safetensors(response)
        columns = {name: tensors.pop(f"results.{name}") for name in _SCORE_COLUMNS}
        rows: list[int] = columns.pop("row").tolist()
        return Scores(
            [*rows] if node_ids is None else [node_ids[row] for row in rows],
            **columns,
            threshold=payload["threshold"],
            convergence=Convergence.from_dict(payload["convergence"]),
            tensors=tensors,
            raw=payload,
        )

    return parse


def classify(
    inputs: Any,
    *,
    model: str | None = None,
    dynamics: Dynamics | None = None,
    include: Sequence[Include] = (),
    timeout_s: float | None = None,
) -> Request[ClassificationResult]:
    """Classify molecules or graphs.

    Args:
        inputs: SMILES or RDKit molecules, or graphs (`Graph` or `torch_geometric.data.Data`); one
            or an iterable, such as a list, a Series or a generator. None and NaN among SMILES
            become errors of these items.
    """
    is_one = isinstance(inputs, str | Graph) or hasattr(inputs, "GetAtoms")
    is_one = is_one or hasattr(inputs, "edge_index") or hasattr(inputs, "adjacency")
    items = list(inputs) if isinstance(inputs, Iterable) and not is_one else [inputs]
    fields = common_fields(model, dynamics, include)
    if (smiles := to_smiles_list(items)) is not None:
        fields["smiles"] = smiles
        request = json_request("/classify", fields, _parse_classification)
    else:
        arrays = _concatenate([to_graph(item) for item in items])
        request = safetensors_request("/classify", fields, arrays, _parse_classification)
    return request.with_timeout(timeout_s)


def complete(
    image: ImageInput,
    mask: ImageInput | None = None,
    *,
    mask_mode: Literal["white_fill", "black_fill", "alpha", "soft"] | None = None,
    region: Literal["image", "hole"] | None = None,
    num_samples: int = 1,
    model: str | None = None,
    memory: str | None = None,
    dynamics: Dynamics | None = None,
    include: Sequence[Include] = (),
    timeout_s: float | None = None,
) -> Request[CompletionResult]:
    """Fill the part of `image` that `mask` marks. Needs Pillow.

    Args:
        mask_mode: which pixels of the mask to fill; with `soft`, grey ones are blended.
        region: what to return: all of the image, or the smallest rectangle with all that was
            filled, whose place is `CompletionResult.box`.
        memory: in place of `model`, the id of a memory of images of the size of this one, to fill
            from those whose known pixels are nearest; a larger `beta` attends to fewer.
        include: `uncertainty` adds `CompletionResult.uncertainty`, of a model; `memories` adds to
            `CompletionResult.raw`, of a memory, which of its images came back with what weight.
    """
    params = {"mask_mode": mask_mode, "return": region, "num_samples": num_samples}
    fields = common_fields(model, dynamics, include, memory=memory, **params)
    files = [("image", image)] + ([] if mask is None else [("mask", mask)])
    request = _form_request("/complete", fields, files, _parse_completion)
    return request.with_timeout(timeout_s)


def classify_images(
    images: ImageInput | Sequence[ImageInput],
    *,
    fit: Literal["stretch", "crop"] | None = None,
    model: str | None = None,
    dynamics: Dynamics | None = None,
    include: Sequence[Include] = (),
    timeout_s: float | None = None,
) -> Request[list[ImageResult]]:
    """Classify images."""
    fields = common_fields(model, dynamics, include, fit=fit)
    files = image_files(images)
    request = _form_request("/images/classify", fields, files, _parse_image_results)
    return request.with_timeout(timeout_s)


def answer_images(
    images: ImageInput | Sequence[ImageInput],
    question: str | Mapping[str, str] | Sequence[str | Mapping[str, str]],
    *,
    fit: Literal["stretch", "crop"] | None = None,
    model: str | None = None,
    dynamics: Dynamics | None = None,
    include: Sequence[Include] = (),
    timeout_s: float | None = None,
) -> Request[list[ImageResult]]:
    """Answer questions about images.

    Args:
        question: one, as many as there are images, or several about one image.
    """
    text = question if isinstance(question, str) else json.dumps(question)
    fields = common_fields(model, dynamics, include, fit=fit, question=text)
    files = image_files(images)
    request = _form_request("/images/answer", fields, files, _parse_image_results)
    return request.with_timeout(timeout_s)


def sample(
    memory: str | np.ndarray | Sequence[str],
    *,
    kind: Literal["vectors", "images", "returns"] | None = None,
    timeout_s: float | None = None,
    **params: Any,
) -> Request[SampleResult]:
    """Draw Langevin samples from a memory.

    Args:
        memory: id of a stored memory, patterns (N, ...), or aligned sequences.
        params: fields of `POST /sample`: beta, steps, chains, num_samples, burn_in, thin, method,
            step_size, heads, clamp, seed and the others.
    """
    if isinstance(memory, np.ndarray):
        fields = {"memory": {} if kind is None else {"kind": kind}, **params}
        request = safetensors_request("/sample", fields, {"patterns": memory}, _parse_samples)
    else:
        source = memory if isinstance(memory, str) else {"sequences": list(memory)}
        request = json_request("/sample", {"memory": source, **params}, _parse_samples)
    return request.with_timeout(timeout_s)


def store_memory(
    name: str,
    patterns: np.ndarray | Sequence[str],
    *,
    kind: Literal["vectors", "images", "returns"] | None = None,
    licence: str = "",
    note: str = "",
) -> Request[dict[str, Any]]:
    """Store patterns (N, ...) or aligned sequences under a name. Replaces a memory of this name."""
    fields: dict[str, Any] = {"licence": licence, "note": note}
    path = quote_path("memories", name)
    if not isinstance(patterns, np.ndarray):
        fields["sequences"] = list(patterns)
        return json_request(path, fields, parse_json, "PUT")
    if kind is not None:
        fields["kind"] = kind
    return safetensors_request(path, fields, {"patterns": patterns}, parse_json, "PUT")


def models() -> Request[list[dict[str, Any]]]:
    """List the served models."""
    return Request("GET", "/models", lambda response: response.json()["models"])


def model(name: str) -> Request[dict[str, Any]]:
    """Return the features, dynamics, metrics and limits of a model."""
    return Request("GET", quote_path("models", name), parse_json)


def memories() -> Request[list[dict[str, Any]]]:
    """List the stored memories."""
    return Request("GET", "/memories", lambda response: response.json()["memories"])


def forget_memory(name: str) -> Request[None]:
    """Delete a stored memory."""
    return Request("DELETE", quote_path("memories", name), parse_nothing)


def ready() -> Request[bool]:
    """Return True once the server has loaded its models; raises `ProblemError` before."""
    return Request("GET", "/health/ready", lambda response: True)


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
    from PIL import Image

    return Image.open(io.BytesIO(base64.b64decode(b64_png)))


def _parse_completion(response: httpx.Response) -> CompletionResult:
    return completion_from_dict(response.json())


def _parse_classification(response: httpx.Response) -> ClassificationResult:
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


def _parse_image_results(response: httpx.Response) -> list[ImageResult]:
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


def _parse_samples(response: httpx.Response) -> SampleResult:
    payload = response.json()
    if "spectrum" not in payload:
        return SampleResult(_to_samples(payload["samples"]), payload["diagnostics"], payload)
    spectrum = payload["spectrum"]  # one entry for each beta
    samples = [_to_samples(entry["samples"]) for entry in spectrum]
    return SampleResult(samples, [entry["diagnostics"] for entry in spectrum], payload)


def _to_samples(values: list[Any]) -> Any:
    return values if values and isinstance(values[0], str) else np.array(values, np.float32)


def _form_request(
    path: str,
    fields: Mapping[str, Any],
    images: Sequence[tuple[str, ImageInput]],
    parse: Callable[[httpx.Response], T],
) -> Request[T]:
    """Build a multipart form request with files, and fields that are text or JSON."""
    data = {
        name: value if isinstance(value, str) else json.dumps(value, allow_nan=False)
        for name, value in fields.items()
    }
    files = [
        (name, (name, encode_image(image), "application/octet-stream")) for name, image in images
    ]
    return Request("POST", path, parse, files=files, data=data)


def _concatenate(graphs: Sequence[Graph]) -> dict[str, np.ndarray]:
    """Join graphs into one with offset edges, as PyTorch Geometric batches them.

    `ptr` has the first row of each graph, and the number of rows.
    """
    parts = [graph.arrays() for graph in graphs]
    ptr = np.cumsum([0, *(len(part["x"]) for part in parts)]).astype(np.int64)
    edges = [part["edge_index"] + start for part, start in zip(parts, ptr, strict=False)]
    arrays = {
        "x": np.concatenate([part["x"] for part in parts]),
        "edge_index": np.concatenate(edges, 1),
        "ptr": ptr,
    }
    if all("edge_attr" in part for part in parts):
        arrays["edge_attr"] = np.concatenate([part["edge_attr"] for part in parts])
    return arrays
