"""What can be asked: a `Call` each, which `Client` sends at once and `Client.submit` as a job."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar

import httpx
import numpy as np

from basin_client.graphs import Graph, NodeId, graph_of
from basin_client.request import (
    SAFETENSORS,
    Dynamics,
    Include,
    Request,
    as_json,
    as_tensors,
    fields_of,
    opened,
)
from basin_client.results import (
    ClassificationResult,
    Completed,
    Convergence,
    ItemError,
    Prediction,
    Recognised,
    Sampled,
    Scores,
)

T = TypeVar("T")
Picture = Any
"""A path, bytes of a file, a `PIL.Image`, or uint8 (H, W) or (H, W, 3)."""


def score(
    graph: Any,
    targets: Sequence[Any] | None = None,
    *,
    features: Sequence[str] | None = None,
    model: str | None = None,
    dynamics: Dynamics | None = None,
    include: Sequence[Include] = (),
    timeout_s: float | None = None,
) -> Request[Scores]:
    """How suspicious is each node?

    Args:
        graph: whatever `graph_of` takes.
        targets: nodes to tell of, by name (by row where they have none); all if None.
        features: attributes or columns, in the order of the model's `features`.

    Raises:
        TypeError: it is no graph.
        KeyError: there is no such target, or a node lacks a feature.
    """
    one = graph_of(graph, features)
    arrays = one.arrays()
    if targets is not None:
        arrays["targets"] = np.array(one.rows_of(targets), np.int64)
    fields, read = fields_of(model, dynamics, include), scores_of(one.node_ids)
    if include and one.node_ids is not None:  # reasons name nodes
        fields["node_ids"] = list(one.node_ids)
    return as_tensors("/anomaly/score", fields, arrays, read, SAFETENSORS).within(timeout_s)


_COLUMNS = ("row", "score", "probability", "label", "rank")


def scores_of(node_ids: Sequence[NodeId] | None) -> Callable[[httpx.Response], Scores]:
    """Reads the answer of `POST /anomaly/score` in bytes, of rows with these names."""

    def read(response: httpx.Response) -> Scores:
        found, told = opened(response)
        columns = {name: found.pop(f"results.{name}") for name in _COLUMNS}
        rows: list[int] = columns.pop("row").tolist()
        names: list[NodeId] = [*rows] if node_ids is None else [node_ids[r] for r in rows]
        convergence = Convergence.of(told["convergence"])
        return Scores(
            names,
            **columns,
            threshold=told["threshold"],
            convergence=convergence,
            tensors=found,
            raw=told,
        )

    return read


def classify(
    inputs: Any,
    *,
    model: str | None = None,
    dynamics: Dynamics | None = None,
    include: Sequence[Include] = (),
    timeout_s: float | None = None,
) -> Request[ClassificationResult]:
    """What is each molecule or graph?

    Args:
        inputs: SMILES or RDKit molecules, or graphs (`Graph`, or `torch_geometric.data.Data`);
            one or several.
    """
    several = (
        list(inputs) if isinstance(inputs, Sequence) and not isinstance(inputs, str) else [inputs]
    )
    fields = fields_of(model, dynamics, include)
    if all(isinstance(one, str) or hasattr(one, "GetAtoms") for one in several):
        smiles = [one if isinstance(one, str) else _smiles_of(one) for one in several]
        return as_json("/classify", fields | {"smiles": smiles}, _classified).within(timeout_s)
    arrays = _batched([graph_of(one) for one in several])
    return as_tensors("/classify", fields, arrays, _classified).within(timeout_s)


def complete(
    image: Picture,
    mask: Picture | None = None,
    *,
    mask_mode: Literal["white_fill", "black_fill", "alpha"] | None = None,
    num_samples: int = 1,
    model: str | None = None,
    dynamics: Dynamics | None = None,
    include: Sequence[Include] = (),
    timeout_s: float | None = None,
) -> Request[Completed]:
    """Fill what `mask` marks of `image`; needs Pillow."""
    fields = fields_of(model, dynamics, include, mask_mode=mask_mode, num_samples=num_samples)
    files = [("image", image)] + ([] if mask is None else [("mask", mask)])
    return _form("/complete", fields, files, _completed).within(timeout_s)


def classify_images(
    images: Picture | Sequence[Picture],
    *,
    fit: Literal["stretch", "crop"] | None = None,
    model: str | None = None,
    dynamics: Dynamics | None = None,
    include: Sequence[Include] = (),
    timeout_s: float | None = None,
) -> Request[list[Recognised]]:
    """What does each picture show?"""
    fields = fields_of(model, dynamics, include, fit=fit)
    files = [("image", one) for one in _several(images)]
    return _form("/images/classify", fields, files, _recognised).within(timeout_s)


def answer_images(
    images: Picture | Sequence[Picture],
    question: str | Mapping[str, str] | Sequence[str | Mapping[str, str]],
    *,
    fit: Literal["stretch", "crop"] | None = None,
    model: str | None = None,
    dynamics: Dynamics | None = None,
    include: Sequence[Include] = (),
    timeout_s: float | None = None,
) -> Request[list[Recognised]]:
    """The answer to each question: one, as many as pictures, or several about one."""
    asked = question if isinstance(question, str) else json.dumps(question)
    fields = fields_of(model, dynamics, include, fit=fit, question=asked)
    files = [("image", one) for one in _several(images)]
    return _form("/images/answer", fields, files, _recognised).within(timeout_s)


def sample(
    memory: str | np.ndarray | Sequence[str],
    *,
    kind: Literal["vectors", "images", "returns"] | None = None,
    timeout_s: float | None = None,
    **knobs: Any,
) -> Request[Sampled]:
    """Langevin samples of a memory: one that is kept, patterns (N, ...), or aligned sequences.

    Args:
        knobs: of `POST /sample`: beta, steps, chains, num_samples, burn_in, thin, method,
            step_size, heads, clamp, seed and the others.
    """
    if isinstance(memory, str):
        return as_json("/sample", {"memory": memory, **knobs}, _sampled).within(timeout_s)
    if not isinstance(memory, np.ndarray):
        asked = {"memory": {"sequences": list(memory)}, **knobs}
        return as_json("/sample", asked, _sampled).within(timeout_s)
    about = {} if kind is None else {"kind": kind}
    arrays = {"patterns": memory}
    return as_tensors("/sample", {"memory": about, **knobs}, arrays, _sampled).within(timeout_s)


def store_memory(
    name: str,
    patterns: np.ndarray | Sequence[str],
    *,
    kind: Literal["vectors", "images", "returns"] | None = None,
    licence: str = "",
    note: str = "",
) -> Request[dict[str, Any]]:
    """Keep patterns (N, ...) or aligned sequences under a name; what it had is replaced."""
    about: dict[str, Any] = {"licence": licence, "note": note}
    path = f"/memories/{name}"
    if isinstance(patterns, np.ndarray):
        fields = about if kind is None else about | {"kind": kind}
        made = as_tensors(path, fields, {"patterns": patterns}, _json)
    else:
        made = as_json(path, about | {"sequences": list(patterns)}, _json)
    return Request("PUT", path, _json, made.content, made.headers)


def models() -> Request[list[dict[str, Any]]]:
    """Those that are served."""
    return Request("GET", "/models", lambda response: response.json()["models"])


def model(name: str) -> Request[dict[str, Any]]:
    """Its features, knobs, metrics and limits."""
    return Request("GET", f"/models/{name}", _json)


def memories() -> Request[list[dict[str, Any]]]:
    """Those that are kept."""
    return Request("GET", "/memories", lambda response: response.json()["memories"])


def forget_memory(name: str) -> Request[None]:
    return Request("DELETE", f"/memories/{name}", lambda response: None)


def ready() -> Request[bool]:
    """True once it is; raises before."""
    return Request("GET", "/health/ready", lambda response: True)


def _json(response: httpx.Response) -> dict[str, Any]:
    return response.json()


def _classified(response: httpx.Response) -> ClassificationResult:
    told, found = response.json(), list[Prediction | ItemError]()
    for one in told["results"]:
        if one["status"] == "ok":
            predictions = one["predictions"].items()
            labels = {task: each["label"] for task, each in predictions}
            p = {task: each["probabilities"] for task, each in predictions}
            found.append(
                Prediction(one["index"], labels, p, Convergence.of(one["convergence"]), one)
            )
        else:
            found.append(ItemError(one["index"], one["error"]["code"], one["error"]["detail"], one))
    return ClassificationResult(found, told)


def _recognised(response: httpx.Response) -> list[Recognised]:
    return [
        Recognised(
            one["index"],
            one.get("label", one.get("answer")),
            one["probability"],
            one["probabilities"],
            Convergence.of(one["convergence"]),
            one,
        )
        for one in response.json()["results"]
    ]


def _completed(response: httpx.Response) -> Completed:
    return completed_of(response.json())


def completed_of(told: dict[str, Any]) -> Completed:
    images = [picture_of(one["b64_png"]) for one in told["images"]]
    return Completed(images, [one["convergence"] for one in told["images"]], told)


def picture_of(b64_png: str) -> Any:
    """A `PIL.Image`."""
    from PIL import Image

    return Image.open(io.BytesIO(base64.b64decode(b64_png)))


def _sampled(response: httpx.Response) -> Sampled:
    told = response.json()
    if "spectrum" in told:
        each = [_samples(one["samples"]) for one in told["spectrum"]]
        return Sampled(each, [one["diagnostics"] for one in told["spectrum"]], told)
    return Sampled(_samples(told["samples"]), told["diagnostics"], told)


def _samples(told: list[Any]) -> Any:
    return told if told and isinstance(told[0], str) else np.array(told, np.float32)


def _form(
    path: str, fields: Mapping[str, Any], files: Sequence[tuple[str, Picture]], read: Any
) -> Any:
    data = {
        name: value if isinstance(value, str) else json.dumps(value, allow_nan=False)
        for name, value in fields.items()
    }
    sent = [(name, (name, _file_of(one), "application/octet-stream")) for name, one in files]
    return Request("POST", path, read, files=sent, data=data)


def _file_of(picture: Picture) -> bytes:
    if isinstance(picture, bytes):
        return picture
    if isinstance(picture, str | Path):
        return Path(picture).read_bytes()
    if isinstance(picture, np.ndarray):
        from PIL import Image

        array = picture.astype(np.uint8) * 255 if picture.dtype == bool else picture
        picture = Image.fromarray(array)
    out = io.BytesIO()
    picture.save(out, "PNG")
    return out.getvalue()


def _several(images: Picture | Sequence[Picture]) -> list[Picture]:
    return list(images) if isinstance(images, list | tuple) else [images]


def _smiles_of(molecule: Any) -> str:
    from rdkit import Chem

    return Chem.MolToSmiles(molecule, canonical=False)  # atoms keep their numbers


def _batched(graphs: Sequence[Graph]) -> dict[str, np.ndarray]:
    """One after the other, as PyTorch Geometric has them."""
    each = [graph.arrays() for graph in graphs]
    starts = np.cumsum([0, *(len(one["x"]) for one in each)])
    found = {
        "x": np.concatenate([one["x"] for one in each]),
        "edge_index": np.concatenate(
            [one["edge_index"] + start for one, start in zip(each, starts, strict=False)], 1
        ),
        "ptr": starts.astype(np.int64),
    }
    if all("edge_attr" in one for one in each):
        found["edge_attr"] = np.concatenate([one["edge_attr"] for one in each])
    return found
