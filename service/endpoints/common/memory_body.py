"""Parse patterns, in JSON or safetensors, to a memory."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

import numpy as np

from models.memories import InvalidMemoryError, Memory, encode_letters
from service.endpoints.common.memory_schemas import MAX_STATE
from service.errors import MAX_FIELD_ERRORS, FieldError, Problem, pointer, unknown_fields
from service.validation.arrays import (
    PointerFn,
    make_graph_problem_at,
    make_graph_problem_where,
    parse_number_rows,
    pointer_builder,
    require_list,
    require_types,
    reraise_as,
    to_float32,
)
from service.validation.safetensors_body import FLOAT_DTYPES, Tensors

KINDS = ("vectors", "images", "returns")
DESCRIPTION = ("kind", "shape")
PATTERNS = {"patterns": ({**FLOAT_DTYPES, "U8": np.uint8}, (2, 3, 4))}
_MAX_DECOMPOSITION = 20_000_000_000
"""Maximum K d min(K, d) of a matrix that is decomposed: some seconds on one core."""


def memory_of_json(spec: Mapping[str, Any], *where: str) -> tuple[Memory, np.ndarray]:
    """Return the memory of an object `{patterns, kind?, shape?}` or `{sequences}`, and its items.

    Raises:
        Problem: `invalid-memory`.
    """
    at = pointer_builder(*where, "patterns")
    with reraise_as("invalid-memory"):
        if (spec.get("sequences") is None) == (spec.get("patterns") is None):
            raise make_graph_problem_at(
                pointer(*where), "one_of", "Send either `patterns` or `sequences`."
            )
        if spec.get("sequences") is not None:
            if faults := unknown_fields(spec, ("sequences",), *where):
                raise Problem("invalid-memory", faults[0].detail, faults)
            return _memory(
                "sequences", *_letters(spec["sequences"], pointer_builder(*where, "sequences"))
            )
        if faults := unknown_fields(spec, ("patterns", *DESCRIPTION), *where):
            raise Problem("invalid-memory", faults[0].detail, faults)
        rows = require_list(spec["patterns"], at)
        if not rows:
            raise make_graph_problem_at(
                at(), "empty", "The memory is empty. Send at least one pattern."
            )
        kind, shape = _described(spec, *where)
        first = len(rows[0]) if type(rows[0]) is list else 0
        width = prod(shape) if shape else max(first, 1)
        rule = f"Every pattern must hold {width} numbers"
        return _memory(
            kind, *_shaped(parse_number_rows(rows, width, at, "wrong_shape", rule), kind, shape, at)
        )


def memory_of_tensor(
    tensors: Tensors, spec: Mapping[str, Any], *where: str
) -> tuple[Memory, np.ndarray]:
    """Return the memory of the tensor `patterns`, with `{kind?, shape?}` in `spec`, and its items.

    A tensor of images may have their shape; U8 means 0 to 255.

    Raises:
        Problem: `invalid-memory`.
    """
    patterns, at = tensors["patterns"], pointer_builder("patterns")
    with reraise_as("invalid-memory"):
        if faults := unknown_fields(spec, DESCRIPTION, *where):
            raise Problem("invalid-memory", faults[0].detail, faults)
        if not patterns.size:
            raise make_graph_problem_at(
                at(), "empty", "The memory is empty. Send at least one pattern."
            )
        kind, shape = _described(spec, *where, needs_shape=patterns.ndim == 2)
        if patterns.ndim > 2:
            if kind != "images":
                detail = (
                    f"Memories of kind `{kind}` need a matrix with one row per pattern, not "
                    f"{patterns.ndim} dimensions."
                )
                raise make_graph_problem_at(at(), "wrong_shape", detail)
            if shape and shape != patterns.shape[1:]:
                detail = "`shape` differs from the shape of the tensor. Leave it out."
                raise make_graph_problem_at(pointer(*where, "shape"), "conflict", detail)
            shape = patterns.shape[1:]
        flat = patterns.reshape(len(patterns), -1)
        if patterns.dtype != np.uint8 or kind != "images":  # bytes of an image stay bytes
            flat = to_float32(flat, at)
        width = prod(shape) if shape else flat.shape[1]
        if flat.shape[1] != width:
            raise make_graph_problem_at(
                at(),
                "wrong_shape",
                f"Every pattern must hold {width} numbers, not {flat.shape[1]}.",
            )
        return _memory(kind, *_shaped(flat, kind, shape, at))


def require_decomposable(count: int, width: int, at: str) -> None:
    """Refuse a decomposition that would run for minutes and cannot be cancelled."""
    if (cost := count * width * min(count, width)) > _MAX_DECOMPOSITION:
        rule = (
            f"This memory takes {cost} operations to decompose (patterns x width x the smaller "
            f"of them); at most {_MAX_DECOMPOSITION} are allowed. Send fewer patterns, or "
            "sample with fewer `heads`."
        )
        raise make_graph_problem_at(at, "too_much_work", rule)


def _described(
    spec: Mapping[str, Any], *where: str, needs_shape: bool = True
) -> tuple[str, tuple[int, ...] | None]:
    kind, shape = spec.get("kind", "vectors"), spec.get("shape")
    if kind not in KINDS:
        rule = f"Must be one of {', '.join(KINDS)}. Send aligned sequences as `sequences`."
        raise make_graph_problem_at(pointer(*where, "kind"), "not_allowed", rule)
    if kind != "images":
        if shape is not None:
            detail = f"`shape` is not allowed for memories of kind `{kind}`."
            raise make_graph_problem_at(pointer(*where, "shape"), "not_read", detail)
        return kind, None
    if shape is None:
        if needs_shape:
            raise make_graph_problem_at(
                pointer(*where, "shape"), "missing", "Images need `shape`: [H, W] or [H, W, 3]."
            )
        return kind, None
    at = pointer_builder(*where, "shape")
    require_types(require_list(shape, at), {int}, at, "Must be an integer.")
    if min(shape, default=0) < 1:
        raise make_graph_problem_at(
            at(), "wrong_shape", "An image has at least one row and one column."
        )
    return kind, tuple(shape)


def _shaped(
    flat: np.ndarray, kind: str, shape: tuple[int, ...] | None, at: PointerFn
) -> tuple[np.ndarray, PointerFn]:
    if kind == "returns" and flat.shape[1] < 2:
        raise make_graph_problem_at(
            at(), "wrong_shape", "Returns are centered across assets. Send at least two assets."
        )
    if kind != "images":
        if (large := np.abs(flat) > MAX_STATE).any():
            raise make_graph_problem_where(
                large, at, "out_of_range", f"Must be from {-MAX_STATE:g} to {MAX_STATE:g}."
            )
        return flat, at
    assert shape is not None
    if len(shape) not in (2, 3) or shape[2:] not in ((), (3,)):
        raise make_graph_problem_at(
            at(), "wrong_shape", "An image has the shape (H, W) or (H, W, 3)."
        )
    outside = (flat < 0) | (flat > 1)
    if flat.dtype != np.uint8 and outside.any():
        raise make_graph_problem_where(
            outside, at, "out_of_range", "The values of an image must be from 0 to 1."
        )
    return flat.reshape(len(flat), *shape), at


def _letters(sequences: object, at: PointerFn) -> tuple[np.ndarray, PointerFn]:
    rows = require_list(sequences, at)
    if not rows:
        raise make_graph_problem_at(
            at(), "empty", "The memory is empty. Send at least one pattern."
        )
    require_types(rows, {str}, at, "Must be a string of amino acids.")
    length = len(rows[0])
    bad = np.array([len(row) != length for row in rows])
    if bad.any() or not length:
        rule = "Aligned sequences must have the same length, gaps included."
        raise (
            make_graph_problem_where(bad, at, "wrong_shape", rule)
            if length
            else make_graph_problem_at(at(0), "wrong_shape", rule)
        )
    try:
        items = encode_letters(rows)
    except ValueError:
        wrong = np.array([_no_protein(row) for row in rows])
        rule = "Only the letters of the 20 amino acids, and - or . for a gap, are allowed."
        raise make_graph_problem_where(wrong, at, "unknown_letter", rule) from None
    require_decomposable(len(rows), 20 * length, at())
    return items, at


def _no_protein(row: str) -> bool:
    try:
        encode_letters([row])
    except ValueError:
        return True
    return False


def _memory(kind: str, items: np.ndarray, at: PointerFn) -> tuple[Memory, np.ndarray]:
    try:
        return Memory.from_items(kind, items), items
    except InvalidMemoryError as fault:
        first = fault.items[:MAX_FIELD_ERRORS].tolist()
        faults = [FieldError(at(i), fault.code, fault.rule) for i in first]
        raise Problem("invalid-memory", fault.rule, faults) from None
