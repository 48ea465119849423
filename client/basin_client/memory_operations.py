"""Requests about memories; also in `basin_client.operations`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from basin_client.request import (
    Request,
    json_request,
    parse_json,
    parse_nothing,
    quote_path,
    safetensors_request,
)
from basin_client.responses import parse_samples
from basin_client.results import SampleResult


def sample(
    memory: str | np.ndarray | Sequence[str],
    *,
    kind: Literal["vectors", "images", "returns"] | None = None,
    timeout_s: float | None = None,
    **params: Any,
) -> Request[SampleResult]:
    """Draw samples of a memory by Langevin dynamics.

    Args:
        memory: id of a stored memory; an array of patterns: (N, D), or images (N, H, W) or (N,
            H, W, 3) of values from 0 to 1; or aligned sequences.
        kind: what the patterns of an array are; `vectors` if None.
        timeout_s: seconds in which the server must respond; its own limit if None.
        params: fields of `POST /sample`, with these defaults: num_samples=30, chains=30,
            steps=5000, burn_in (two fifths of the steps), thin (a thirtieth of those after it),
            beta="auto" (or a number, or a list), step_size=0.01, method="ula" (or "mala"),
            heads=1, seed=0, init="patterns", clamp=None.

    Returns:
        The samples in the units of the memory, and diagnostics of the chains; a list of each if
        `beta` is a list.

    Raises:
        ProblemError: the server refused the request when it was sent, as for an unknown memory.
    """
    if isinstance(memory, np.ndarray):
        fields = {"memory": {} if kind is None else {"kind": kind}, **params}
        request = safetensors_request("/sample", fields, {"patterns": memory}, parse_samples)
    else:
        source = memory if isinstance(memory, str) else {"sequences": list(memory)}
        request = json_request("/sample", {"memory": source, **params}, parse_samples)
    return request.with_timeout(timeout_s)


def store_memory(
    name: str,
    patterns: np.ndarray | Sequence[str],
    *,
    kind: Literal["vectors", "images", "returns"] | None = None,
    licence: str = "",
    note: str = "",
) -> Request[dict[str, Any]]:
    """Store patterns or aligned sequences under an id. Replaces a memory of this id.

    Args:
        name: the id, of 1 to 64 lower-case letters, digits, underscores, hyphens and dots.
        patterns: an array as in `sample`, or N sequences of equal length, with `-` for gaps.
        kind: what the patterns of an array are; `vectors` if None.
        licence: under what terms the patterns may be used, at most 200 characters.
        note: what they are and where they come from, at most 2000 characters.

    Returns:
        The description of the memory: `id`, `kind`, `patterns` (how many), `shape`, `dim`,
        `sha256`, `licence`, `note`.

    Raises:
        InputError: the id is not allowed.
        ProblemError: the server refused the request when it was sent.
    """
    fields: dict[str, Any] = {"licence": licence, "note": note}
    path = quote_path("memories", name)
    if not isinstance(patterns, np.ndarray):
        fields["sequences"] = list(patterns)
        return json_request(path, fields, parse_json, "PUT")
    if kind is not None:
        fields["kind"] = kind
    return safetensors_request(path, fields, {"patterns": patterns}, parse_json, "PUT")


def memories() -> Request[list[dict[str, Any]]]:
    """List the stored memories.

    Returns:
        A dict per memory, as `store_memory` returns it.

    Raises:
        ProblemError: the server refused the request when it was sent.
    """
    return Request("GET", "/memories", lambda response: response.json()["memories"])


def forget_memory(name: str) -> Request[None]:
    """Delete a stored memory.

    Args:
        name: its id.

    Raises:
        InputError: the id is not one that a memory can have.
        ProblemError: the server refused the request when it was sent, as for an unknown memory.
    """
    return Request("DELETE", quote_path("memories", name), parse_nothing)
