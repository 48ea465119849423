"""One request, and how its answer is read; nothing here touches a network."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Generic, Literal, TypedDict, TypeVar

import httpx
import numpy as np
import safetensors.numpy

T = TypeVar("T")
JSON, SAFETENSORS, EVENTS = "application/json", "application/vnd.safetensors", "text/event-stream"
Include = Literal["trace", "components", "resonance", "attention", "memories", "explanation"]


class Resonance(TypedDict, total=False):
    """A prior on attention; see the server's `dynamics.resonance`."""

    strength: float
    vigilance: float
    sharpness: float
    gate: Literal["sigmoid", "centred", "tanh", "piecewise-linear"]
    unroll: int
    feedback: float
    rank: int


class Dynamics(TypedDict, total=False):
    """How the state moves; what is left out stays as trained."""

    steps: int
    beta: float
    beta_scale: float
    step_size: float
    tolerance: float
    noise: float
    seed: int
    solver: Literal["euler", "nesterov"]
    deterministic: bool
    resonance: Resonance


@dataclass(frozen=True)
class Request(Generic[T]):
    """A request; `read` makes of a successful response what the caller wants."""

    method: str
    path: str
    read: Callable[[httpx.Response], T]
    content: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    files: Sequence[tuple[str, tuple[str, bytes, str]]] = ()
    data: Mapping[str, str] = field(default_factory=dict)
    params: Mapping[str, str] = field(default_factory=dict)
    again: bool = True  # send it once more where it was refused for want of room

    def within(self, seconds: float | None) -> Request[T]:
        """The same, answered in so many seconds or not at all."""
        if seconds is None:
            return self
        return replace(self, params={**self.params, "timeout_ms": str(max(int(seconds * 1e3), 1))})

    def with_headers(self, headers: Mapping[str, str]) -> Request[T]:
        return replace(self, headers={**self.headers, **headers})

    def reading(self, read: Callable[[httpx.Response], Any]) -> Request[Any]:
        return replace(self, read=read)  # type: ignore[return-value]


def fields_of(
    model: str | None, dynamics: Dynamics | None, include: Sequence[Include], **rest: Any
) -> dict[str, Any]:
    """What is asked besides the data; nothing that is left out."""
    asked = {"model": model, "dynamics": dynamics, "include": list(include) or None, **rest}
    return {name: value for name, value in asked.items() if value is not None}


def as_json(
    path: str, fields: Mapping[str, Any], read: Callable[[httpx.Response], T]
) -> Request[T]:
    content = json.dumps(fields, allow_nan=False).encode()
    return Request("POST", path, read, content, {"content-type": JSON, "accept": JSON})


def as_tensors(
    path: str,
    fields: Mapping[str, Any],
    arrays: Mapping[str, np.ndarray],
    read: Callable[[httpx.Response], T],
    accept: str = JSON,
) -> Request[T]:
    """A safetensors file of `arrays`, with all else as JSON in its metadata."""
    laid_out = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    metadata = {"request": json.dumps(fields, allow_nan=False)}
    content = safetensors.numpy.save(laid_out, metadata)
    return Request("POST", path, read, content, {"content-type": SAFETENSORS, "accept": accept})


def opened(response: httpx.Response) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """The tensors of an answer, and what it tells besides."""
    size = int.from_bytes(response.content[:8], "little")
    header = json.loads(response.content[8 : 8 + size])
    told = json.loads(header["__metadata__"]["response"])
    return safetensors.numpy.load(response.content), told
