"""Requests for inference, memories and models, for `Client.send` or, as a job, `Client.submit`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import numpy as np

from basin_client.graphs import Graph, concatenate, needs_schema, to_graph
from basin_client.images import ImageInput, image_files
from basin_client.memory_operations import forget_memory, memories, sample, store_memory
from basin_client.request import (
    SAFETENSORS,
    AlertRule,
    Dynamics,
    Include,
    Request,
    common_fields,
    form_request,
    json_request,
    parse_json,
    quote_path,
    safetensors_request,
)
from basin_client.responses import (
    parse_classification,
    parse_completion,
    parse_image_results,
    scores_parser,
)
from basin_client.results import (
    ClassificationResult,
    CompletionResult,
    ImageResult,
    Scores,
)
from basin_client.schema import GraphSchema
from basin_client.smiles import to_smiles_list

__all__ = [
    "answer_images",
    "classify",
    "classify_images",
    "complete",
    "forget_memory",
    "memories",
    "model",
    "models",
    "ready",
    "sample",
    "score",
    "store_memory",
]


def score(
    graph: Any,
    targets: Sequence[Any] | None = None,
    *,
    features: Sequence[str] | None = None,
    drop: str | Sequence[str] = (),
    label: str | None = None,
    model: str | None = None,
    dynamics: Dynamics | None = None,
    include: Sequence[Include] = (),
    decision: AlertRule | None = None,
    timeout_s: float | None = None,
) -> Request[Scores]:
    """Score how suspicious each node of a graph is.

    Columns of tables and attributes of NetworkX graphs are matched with the features of the
    model by name, types of edges with its relations; arrays are taken in the model's order.

    Args:
        graph: a tuple of nodes and edges, each a pandas frame or the path of a table; a
            NetworkX graph; a `torch_geometric.data.Data`; or a `Graph` of arrays. See
            `graphs.to_graph`.
        targets: ids of the nodes to return (rows if the graph has no ids); all nodes if None.
        features: columns or attributes to take as features; all others if None.
        drop: columns or attributes to leave out; `*` is all that the model does not read.
        label: column of the table of nodes with labels that are known, 1 for fraud, blank if
            not known, for a model that reads labels of neighbours; a `Graph` has `labels`.
        model: name of the model; the default of the route if None.
        dynamics: how the state moves; as in training if None. Keys as in `Dynamics`.
        include: what to add: `trace`, `components`, `resonance` to `convergence`; `attention`,
            `memories`, `components` to `tensors`; `explanation` of each target to `raw`.
        decision: which targets get label 1, as {"budget": 50}; those from the model's threshold
            on if None. Keys as in `AlertRule`.
        timeout_s: seconds in which the server must respond; its own limit if None.

    Returns:
        Scores of the T targets in their order, with arrays (T,).

    Raises:
        TypeError: `graph` has an unsupported type.
        InputError: the graph does not fit the model, or there is no such target.
        MissingLibraryError: pandas or pyarrow is not installed; tables and NetworkX need them.
        ProblemError: the server refused the request when it was sent.
    """

    def bind(schema: GraphSchema | None) -> Request[Scores]:
        converted = to_graph(graph, features, schema=schema, drop=drop, label=label)
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
        inputs: SMILES or RDKit molecules, or graphs (`Graph` or `torch_geometric.data.Data`);
            one or an iterable, such as a list, a Series or a generator. None and NaN among
            SMILES become errors of these items.
        model: name of the model; the default of the route if None.
        dynamics: how the state moves; as in training if None. Keys as in `Dynamics`.
        include: what to add to `convergence`: `trace`, `components`, `resonance`; to `raw`:
            `attention`, `memories` and `explanation` of each input, with a drawing of a
            molecule.
        timeout_s: seconds in which the server must respond; its own limit if None.

    Returns:
        One `Prediction` or, of a molecule that cannot be read, `ItemError` per input, in order.

    Raises:
        TypeError: an input has an unsupported type.
        InputError: the arrays of a graph do not fit together.
        ProblemError: the server refused the request when it was sent, as for a malformed graph.
    """
    is_one = isinstance(inputs, str | Graph) or hasattr(inputs, "GetAtoms")
    is_one = is_one or hasattr(inputs, "edge_index") or hasattr(inputs, "adjacency")
    items = list(inputs) if isinstance(inputs, Iterable) and not is_one else [inputs]
    fields = common_fields(model, dynamics, include)
    if (smiles := to_smiles_list(items)) is not None:
        fields["smiles"] = smiles
        request = json_request("/classify", fields, parse_classification)
    else:
        arrays = concatenate([to_graph(item) for item in items])
        request = safetensors_request("/classify", fields, arrays, parse_classification)
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
    """Fill the part of an image that a mask marks. Needs Pillow.

    Args:
        image: a path, the bytes of a file, an open file, a `PIL.Image`, or an array (H, W) or
            (H, W, 3), of integers from 0 to 255 or floats from 0 to 1. See
            `images.encode_image`.
        mask: an image of the same size; None only with `mask_mode="alpha"`.
        mask_mode: which pixels to fill: `white_fill` the white ones of the mask, `black_fill`
            the black ones, `alpha` the transparent ones, of the image if there is no mask;
            `soft` all that are lighter than black (4 of 255 or more), blended by how white they
            are. `white_fill` if None.
        region: what to return: `image`, or of it the `hole`, the smallest rectangle with all
            that was filled, whose place is `CompletionResult.box`. `image` if None.
        num_samples: how many completions, from 1 to 16, which differ by the seed of their
            noise.
        model: name of the model; the default of the route if None.
        memory: in place of `model`, the id of a memory of images of the size of this one, to
            fill from those whose known pixels are nearest; a larger `beta` attends to fewer.
        dynamics: how the state moves; as in training if None. Keys as in `Dynamics`.
        include: what to add: `uncertainty` to the result, of a model that `has_uncertainty`;
            `trace`, `components` and `resonance` to `convergence`; `attention` and `memories`
            to `raw`: of a memory, which of its images came back with what weight.
        timeout_s: seconds in which the server must respond; its own limit if None.

    Returns:
        The completed images as `PIL.Image`s, with the known pixels as they were.

    Raises:
        InputError: an image has an unsupported type, shape or range, or there is no such file.
        MissingLibraryError: Pillow is not installed.
        ProblemError: the server refused the request when it was sent, as for a mask of another
            size.
    """
    params = {"mask_mode": mask_mode, "return": region, "num_samples": num_samples}
    fields = common_fields(model, dynamics, include, memory=memory, **params)
    files = [("image", image)] + ([] if mask is None else [("mask", mask)])
    request = form_request("/complete", fields, files, parse_completion)
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
    """Tell which of the model's classes each image shows.

    Args:
        images: one image or an iterable of them, each as in `complete`.
        fit: how an image is resized to the model's size: `stretch` uses all of it, `crop` its
            center with the aspect ratio of the model. `stretch` if None.
        model: name of the model; the default of the route if None.
        dynamics: how the state moves; as in training if None. Keys as in `Dynamics`.
        include: what to add to `convergence`: `trace`, `components`, `resonance`; to `raw`:
            `attention`, `memories` of each image.
        timeout_s: seconds in which the server must respond; its own limit if None.

    Returns:
        One result per image, in order: the most probable label, and a probability per label.

    Raises:
        InputError: an image has an unsupported type, shape or range, or there is no such file.
        MissingLibraryError: an image is an array, and Pillow is not installed.
        ProblemError: the server refused the request when it was sent, as for too many images.
    """
    fields = common_fields(model, dynamics, include, fit=fit)
    files = image_files(images)
    request = form_request("/images/classify", fields, files, parse_image_results)
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
        images: one image or an iterable of them, each as in `complete`.
        question: one about all images, as many as there are images, or several about one image.
            Each is a sentence of those that `model` lists, or its parts, as {"asked": "shape of
            the closest", "colour": "red"}.
        fit: how an image is resized to the model's size: `stretch` uses all of it, `crop` its
            center with the aspect ratio of the model. `stretch` if None.
        model: name of the model; the default of the route if None.
        dynamics: how the state moves; as in training if None. Keys as in `Dynamics`.
        include: what to add to `convergence`: `trace`, `components`, `resonance`; to `raw`:
            `attention`, `memories` of each image.
        timeout_s: seconds in which the server must respond; its own limit if None.

    Returns:
        One result per image or question, in order; `label` is the answer.

    Raises:
        InputError: an image has an unsupported type, shape or range, or there is no such file.
        MissingLibraryError: an image is an array, and Pillow is not installed.
        ProblemError: the server refused the request when it was sent, as for a question that
            the model does not understand.
    """
    text = question if isinstance(question, str) else json.dumps(question)
    fields = common_fields(model, dynamics, include, fit=fit, question=text)
    files = image_files(images)
    request = form_request("/images/answer", fields, files, parse_image_results)
    return request.with_timeout(timeout_s)


def models() -> Request[list[dict[str, Any]]]:
    """List the served models.

    Returns:
        A dict per model: `name`, `version`, `sha256`, `architecture`, `task`, `route`,
        `device`, `runtime`, and `default_for`, the routes that take it where a request names no
        model.

    Raises:
        ProblemError: the server refused the request when it was sent.
    """
    return Request("GET", "/models", lambda response: response.json()["models"])


def model(name: str) -> Request[dict[str, Any]]:
    """Describe a model.

    Args:
        name: one of those that `models` lists.

    Returns:
        What `models` lists of it, and `features`, `knobs` (its dynamics in training),
        `metrics`, `limits`, `example` (a request that it answers), and what models of its task
        have besides, such as `edge_features`, `relations` and `threshold`, or `tasks`.

    Raises:
        InputError: the name is not one that a model can have.
        ProblemError: the server refused the request when it was sent, as for an unknown model.
    """
    return Request("GET", quote_path("models", name), parse_json)


def ready() -> Request[bool]:
    """Check that the server has loaded its models.

    Returns:
        True.

    Raises:
        ProblemError: it has not (503), also after the retries.
        UnreachableError: it did not respond.
    """
    return Request("GET", "/health/ready", lambda response: True)
