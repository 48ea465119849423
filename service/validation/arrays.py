"""Convert untrusted JSON lists to numpy arrays, checking the type of each entry.

numpy alone is too lenient: it reads "1", true and null as numbers. Lists are converted in chunks,
so that a large body fails early and other threads get the interpreter in between.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain, islice
from typing import Any

import numpy as np

from service.errors import MAX_FIELD_ERRORS, FieldError, Problem, pointer

PointerFn = Callable[..., str]
"""Returns the JSON pointer of a list, at(), of its entry i, at(i), or of an entry of that,
at(i, j)."""

_CHUNK_ENTRIES = 1 << 16


def pointer_builder(*head: str, tail: str | None = None) -> PointerFn:
    """Return the function of the pointers `head`/i/`tail`."""

    def at(*index: int) -> str:
        after = () if tail is None or not index else (tail,)
        return pointer(*head, *index[:1], *after, *index[1:])

    return at


def make_graph_problem(faults: Iterable[FieldError]) -> Problem:
    """Return the problem of an invalid graph, with its first errors."""
    first = list(islice(faults, MAX_FIELD_ERRORS))
    return Problem("invalid-graph", first[0].detail, first)


@contextmanager
def reraise_as(kind: str) -> Iterator[None]:
    """Change the type of an `invalid-graph` problem raised in the context to `kind`."""
    try:
        yield
    except Problem as problem:
        if problem.kind != "invalid-graph":
            raise
        raise Problem(kind, problem.detail, problem.faults) from None


def make_graph_problem_at(where: str, code: str, detail: str) -> Problem:
    return make_graph_problem([FieldError(where, code, detail)])


def make_graph_problem_where(
    bad: np.ndarray, at: PointerFn, code: str, detail: str, start: int = 0
) -> Problem:
    """Return a problem with an error per true entry of `bad`, whose row 0 is row `start` of the
    list."""
    flat = bad.reshape(-1)
    indices: list[int] = []
    for offset in range(0, len(flat), _CHUNK_ENTRIES):
        indices += (np.flatnonzero(flat[offset : offset + _CHUNK_ENTRIES]) + offset).tolist()
        if len(indices) >= MAX_FIELD_ERRORS:
            break
    places = zip(*np.unravel_index(indices[:MAX_FIELD_ERRORS], bad.shape), strict=True)
    return make_graph_problem(
        FieldError(at(start + int(i), *map(int, rest)), code, detail) for i, *rest in places
    )


def require_list(value: object, at: PointerFn) -> list[Any]:
    if type(value) is not list:
        raise make_graph_problem_at(at(), "wrong_type", "Must be a list.")
    return value


def require_types(
    values: Sequence[Any], types: set[type], at: PointerFn, rule: str, start: int = 0
) -> None:
    """Require that every value is of exactly one of `types`, so that true is not an integer."""
    if not set(map(type, values)) <= types:
        raise make_graph_problem(
            FieldError(at(start + i), "wrong_type", rule)
            for i, value in enumerate(values)
            if type(value) not in types
        )


def require_range(
    values: np.ndarray, stop: int, at: PointerFn, code: str, rule: str, start: int = 0
) -> None:
    """Require that every value is in [0, stop)."""
    if values.size and (values.min() < 0 or values.max() >= stop):
        raise make_graph_problem_where((values < 0) | (values >= stop), at, code, rule, start)


def parse_integers(values: object, stop: int, at: PointerFn, code: str, rule: str) -> np.ndarray:
    """Convert a list of integers in [0, stop) to int64."""
    parts: list[np.ndarray] = []
    for start, part in _chunks(require_list(values, at), _CHUNK_ENTRIES):
        require_types(part, {int}, at, "Must be an integer.", start)
        try:
            parts.append(np.array(part, np.int64))
        except OverflowError:
            huge = np.array([value >= 1 << 63 for value in part])
            raise make_graph_problem_where(huge, at, code, rule, start) from None
        require_range(parts[-1], stop, at, code, rule, start)
    if len(parts) == 1:
        return parts[0]
    return np.concatenate(parts) if parts else np.empty(0, np.int64)


def parse_feature_matrix(
    rows: Sequence[Any], names: Sequence[str], at: PointerFn, of: str = "node"
) -> np.ndarray:
    """Convert rows of numbers, of a node or edge each, to float32 (N, F), one column per name.

    Raises:
        Problem: rows that are not lists of F numbers, or numbers out of the range of float32.
    """
    width = len(names)
    rule = f"Must hold {width} features per {of} ({join_names(names)})"
    return parse_number_rows(rows, width, at, "feature_count", rule)


def parse_number_rows(
    rows: Sequence[Any], width: int, at: PointerFn, code: str, rule: str
) -> np.ndarray:
    """Convert rows of `width` numbers to float32 (N, width); `rule` says so, without a period.

    Raises:
        Problem: rows that are not lists of `width` numbers, or numbers out of the range of float32.
    """
    require_types(rows, {list}, at, "Must be a list of numbers.")
    widths = set(map(len, rows))
    if widths - {width}:
        if len(widths) == 1:
            raise make_graph_problem_at(at(), code, f"{rule}, not {widths.pop()}.")
        raise make_graph_problem(
            FieldError(at(i), code, f"{rule}; this row holds {len(row)}.")
            for i, row in enumerate(rows)
            if len(row) != width
        )
    x = np.empty((len(rows), width), np.float32)
    for start, part in _chunks(rows, max(_CHUNK_ENTRIES // max(width, 1), 1)):
        flat = list(chain.from_iterable(part))

        def at_flat(i: int, start: int = start) -> str:
            return at(start + i // width, i % width)

        require_types(flat, {int, float}, at_flat, "Must be a number.")
        values = np.array(flat, np.float64).reshape(-1, width)
        x[start : start + len(part)] = to_float32(values, at, start)
    return x


def require_width(table: np.ndarray, names: Sequence[str], at: PointerFn) -> None:
    """Require one column per name."""
    if table.shape[1] != len(names):
        detail = (
            f"Has {table.shape[1]} columns; this model reads {len(names)} features "
            f"({join_names(names)})."
        )
        raise make_graph_problem_at(at(), "feature_count", detail)


def to_float32(values: np.ndarray, at: PointerFn, start: int = 0) -> np.ndarray:
    """Cast a matrix whose row 0 is row `start`; every number must be finite before and after."""
    with np.errstate(over="ignore"):
        cast = values.astype(np.float32)
    bad = ~np.isfinite(cast)
    if bad.any():
        raise make_graph_problem_where(
            bad, at, "not_finite", "Must be finite and fit into 32 bits.", start
        )
    return cast


def join_names(names: Sequence[str]) -> str:
    """Join the first ten names, for a message."""
    more = f" and {len(names) - 10} more" if len(names) > 10 else ""
    return ", ".join(names[:10]) + more


def _chunks(values: Sequence[Any], size: int) -> Iterator[tuple[int, Sequence[Any]]]:
    for start in range(0, len(values), size):
        yield start, values[start : start + size]
