"""A request to the server and how to parse its response. Nothing here uses the network."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Generic, Literal, TypedDict, TypeVar
from urllib.parse import quote

import httpx
import numpy as np
import safetensors.numpy

from basin_client.errors import InputError
from basin_client.images import ImageInput, encode_image
from basin_client.schema import GraphSchema

T = TypeVar("T")
_ID = re.compile(r"[a-z0-9](?:[a-z0-9_-]|\.(?!\.)){0,63}")  # as the server has it
JSON = "application/json"
SAFETENSORS = "application/vnd.safetensors"
EVENT_STREAM = "text/event-stream"
Include = Literal[
    "trace", "components", "resonance", "attention", "memories", "explanation", "uncertainty"
]
"""What to add to a response, where the model has it; otherwise the server refuses the request.

- `trace`: the energy of each block after each step, in `convergence`.
- `components`: the parts of the energy, in `convergence`, and those of each token, in `reasons`.
- `resonance`: how much each attention head resonates, in `convergence`.
- `attention`: what each token attends to most in the final state, in `reasons`.
- `memories`: the Hopfield memories with the largest activation, in `reasons`.
- `explanation`: of each target or input, the parts whose removal changes the result most.
- `uncertainty`: the absolute error to expect of each pixel of a completed image.

`reasons` and `explanation` are in `raw` of a result, as the server sent them. For `score` and
`score_nodes`, the server sends reasons as arrays, which are in `Scores.tensors`.
"""


class Resonance(TypedDict, total=False):
    """A prior on attention: the field `dynamics.resonance` of a request.

    It adds `strength` * gate(`sharpness` * (c - `vigilance`)) to the logit of a pair whose query
    and key have the cosine c.

    Attributes:
        strength: the most that a logit gains; 0.25 if missing.
        vigilance: the cosine from which on a pair is favoured, -1 to 1; of the gate `centred`,
            (c + 1) / 2 in place of c. 0.5 if missing.
        sharpness: slope of the gate, above 0; 8 if missing.
        gate: `sigmoid` if missing.
        unroll: rounds in which the gate is applied to its own result, 1 to 16; 1 if missing.
        feedback: how much of the last round enters the next, -1 to 1; 0 if missing.
        rank: dimensions of a fixed projection before the cosines; none if missing.
    """

    strength: float
    vigilance: float
    sharpness: float
    gate: Literal["sigmoid", "centred", "tanh", "piecewise-linear"]
    unroll: int
    feedback: float
    rank: int


class Dynamics(TypedDict, total=False):
    """How the state moves. A missing key keeps the value of training.

    Attributes:
        steps: the most steps of each block; the model's `limits` have the largest.
        beta: inverse temperature of every attention head, above 0.
        beta_scale: factor on the trained beta of each head, in place of `beta`.
        step_size: length of a step, above 0.
        tolerance: a block stops once |dx/dt| / |x| is below it, 0 to 1; 0 never stops.
        noise: sigma of the noise sigma * sqrt(step_size) * eps of each step, 0 to 10.
        seed: of the noise, below 2^32.
        solver: `euler` moves as in training; `nesterov` has momentum, and `descent` shortens steps
            that would go up, both without noise only.
        deterministic: the same result to the last bit in any batch, which takes longer.
        resonance: replaces the trained prior on attention.
    """

    steps: int
    beta: float
    beta_scale: float
    step_size: float
    tolerance: float
    noise: float
    seed: int
    solver: Literal["euler", "nesterov", "descent"]
    deterministic: bool
    resonance: Resonance


class AlertRule(TypedDict, total=False):
    """Which targets get label 1; exactly one of the keys.

    `budget` is a number of targets, `daily_budget` one of alerts a day by what the model gave in
    validation, `share` a share of the targets, `threshold` a probability, and `cost_ratio` the cost
    of an alert over that of a missed fraud.
    """

    budget: int
    daily_budget: float
    share: float
    threshold: float
    cost_ratio: float


class AlertOptions(TypedDict, total=False):
    """When the nodes of a stored graph raise alerts; what is left out is that of the model.

    `threshold` is a probability, `hops` and `max_neighbors` are those of `score_nodes`, and
    `webhook` is a URL to which each alert is sent, on an origin that the server allows.
    """

    threshold: float
    hops: int
    max_neighbors: int
    webhook: str


@dataclass(frozen=True)
class Request(Generic[T]):
    """An HTTP request, and the function that parses a successful response.

    Attributes:
        path: starts with a slash; follows the URL of the server.
        parse: turns a successful response into what the caller gets.
        content: the body, unless there are `files`.
        files, data: parts and fields of a multipart form.
        params: the query string.
        retryable: send it again after a refusal for lack of capacity (429, 502, 503).
        schema_path: the route that says what the model reads, which `bind` needs to build the
            request; `BaseClient` asks it first.
        bind: returns the request for a model; None if the request is complete as it is.
    """

    method: str
    path: str
    parse: Callable[[httpx.Response], T]
    content: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    files: Sequence[tuple[str, tuple[str, bytes, str]]] = ()
    data: Mapping[str, str] = field(default_factory=dict)
    params: Mapping[str, str] = field(default_factory=dict)
    retryable: bool = True
    schema_path: str = ""
    bind: Callable[[GraphSchema], Request[T]] | None = None

    def bound_to(self, schema: GraphSchema) -> Request[T]:
        """Return the complete request for a model, with the headers and parameters of this one."""
        assert self.bind is not None
        request = self.bind(schema)
        params = {**request.params, **self.params}
        headers = {**request.headers, **self.headers}
        return replace(request, headers=headers, params=params, schema_path=self.schema_path)

    def with_timeout(self, timeout_s: float | None) -> Request[T]:
        """Return a copy that the server must answer within `timeout_s` seconds, if not None."""
        if timeout_s is None:
            return self
        timeout_ms = max(int(timeout_s * 1e3), 1)
        return replace(self, params={**self.params, "timeout_ms": str(timeout_ms)})

    def with_headers(self, headers: Mapping[str, str]) -> Request[T]:
        """Return a copy with additional headers."""
        return replace(self, headers={**self.headers, **headers})


def quote_path(*parts: str) -> str:
    """Return the path of an object; what is not allowed in a path is percent-encoded.

    Raises:
        InputError: the id is not one that the server accepts.
    """
    *folders, name = parts
    if not isinstance(name, str) or not _ID.fullmatch(name):
        raise InputError(
            f"The id {name!r} is not allowed: use 1 to 64 lower-case letters, digits, underscores, "
            "hyphens and single dots, a letter or digit first."
        )
    return "/" + "/".join([*folders, quote(name, safe="")])


def common_fields(
    model: str | None, dynamics: Dynamics | None, include: Sequence[Include], **rest: Any
) -> dict[str, Any]:
    """Return the fields that inference requests share, and `rest`, without those that are None."""
    fields = {"model": model, "dynamics": dynamics, "include": list(include) or None, **rest}
    return {name: value for name, value in fields.items() if value is not None}


def json_request(
    path: str,
    fields: Mapping[str, Any],
    parse: Callable[[httpx.Response], T],
    method: str = "POST",
) -> Request[T]:
    """Build a request with `fields` as a JSON body."""
    content = json.dumps(fields, allow_nan=False).encode()
    return Request(method, path, parse, content, {"content-type": JSON, "accept": JSON})


def safetensors_request(
    path: str,
    fields: Mapping[str, Any],
    arrays: Mapping[str, np.ndarray],
    parse: Callable[[httpx.Response], T],
    method: str = "POST",
    accept: str = JSON,
) -> Request[T]:
    """Build a request with a safetensors file of `arrays`, and `fields` as JSON in its metadata."""
    # safetensors writes the memory of an array as it is, so that a transposed one must be copied.
    contiguous = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    metadata = {"request": json.dumps(fields, allow_nan=False)}
    content = safetensors.numpy.save(contiguous, metadata)
    return Request(method, path, parse, content, {"content-type": SAFETENSORS, "accept": accept})


def form_request(
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


def parse_json(response: httpx.Response) -> dict[str, Any]:
    return response.json()


def parse_safetensors(response: httpx.Response) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Return the tensors of a response, and the fields in its metadata."""
    # The file begins with the length of its JSON header, 8 bytes, little-endian.
    size = int.from_bytes(response.content[:8], "little")
    header = json.loads(response.content[8 : 8 + size])
    fields = json.loads(header["__metadata__"]["response"])
    return safetensors.numpy.load(response.content), fields


def parse_nothing(response: httpx.Response) -> None:
    """For responses without a body."""
