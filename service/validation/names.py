"""Match the names of columns and relations that a request carries with those of the model."""

from __future__ import annotations

import numpy as np

from models.inputs.graph import UNTYPED
from service.errors import FieldError
from service.validation.arrays import (
    PointerFn,
    join_names,
    make_graph_problem,
    make_graph_problem_at,
    make_graph_problem_where,
    require_list,
    require_range,
    require_types,
)


def match_features(
    names: object, features: tuple[str, ...], at: PointerFn, what: str = "feature"
) -> np.ndarray | None:
    """Return the column that holds each feature of the model; None if there are no `names`.

    Messages call a feature `what`.

    Raises:
        Problem: a feature of the model is missing, or a name is unknown or occurs twice.
    """
    if names is None:
        return None
    places = _index_names(names, features, at, "unknown_feature", what)
    if missing := [name for name in features if name not in places]:
        detail = f"The model also reads {join_names(missing)}. Send a column for each {what}."
        raise make_graph_problem_at(at(), "missing", detail)
    return np.array([places[name] for name in features], np.int64)


def order_columns(table: np.ndarray, columns: np.ndarray | None) -> np.ndarray:
    """Return the columns in the order of the model, given the result of `match_features`."""
    return table if columns is None else table[:, columns]


def match_relations(names: object, relations: tuple[str, ...], at: PointerFn) -> np.ndarray | None:
    """Return the number in the model of each relation in `names`; None if there are no `names`.

    Raises:
        Problem: a name is unknown or occurs twice.
    """
    if names is None:
        return None
    places = _index_names(names, relations, at, "unknown_relation", "relation")
    return np.array([relations.index(name) for name in places], np.int64)


def parse_relations(
    types: object,
    relations: tuple[str, ...],
    num_edges: int,
    at: PointerFn,
    order: np.ndarray | None = None,
) -> np.ndarray | None:
    """Return the number of the relation of each edge; None if the model has one relation.

    A text is the name of a relation. An integer is a place in `order` (see `match_relations`) if
    there is one; else a name, if any relation of the model is called by a whole number; else the
    number of a relation.
    """
    if not should_read_relations(types, relations, at):
        return None
    values = require_list(types, at)
    if len(values) != num_edges:
        raise make_graph_problem_at(
            at(), "wrong_shape", f"Must hold one entry per edge: {num_edges}, not {len(values)}."
        )
    known: dict[int | str, int] = {name: i for i, name in enumerate(relations)}
    rule = f"Must be one of {', '.join(relations)}."
    if order is not None:
        known |= dict(enumerate(order.tolist()))
        rule = f"{rule[:-1]}, or a place in `relation_names`."
    elif numbers_are_names(relations):
        known |= {int(name): i for i, name in enumerate(relations) if _is_number(name)}
    else:
        known |= {i: i for i in range(len(relations))}
        rule = f"{rule[:-1]}, or its number."
    require_types(values, {int, str}, at, rule)
    numbers = np.array([known.get(value, -1) for value in values], np.int64)
    require_range(numbers, len(relations), at, "unknown_relation", rule)
    return numbers if len(relations) > 1 else None


def relations_from_tensor(
    types: np.ndarray | None,
    relations: tuple[str, ...],
    num_edges: int,
    at: PointerFn,
    order: np.ndarray | None,
) -> np.ndarray | None:
    """As `parse_relations`, of a tensor: places in `order`, or numbers of relations without it.

    Raises:
        Problem: relations of the model are called by whole numbers and there is no `order`, so that
            a number could be a name or a place.
    """
    if not should_read_relations(types, relations, at):
        return None
    assert types is not None
    if len(types) != num_edges:
        raise make_graph_problem_at(
            at(), "wrong_shape", f"Must hold one entry per edge: {num_edges}, not {len(types)}."
        )
    if order is None and numbers_are_names(relations):
        detail = (
            f"The relations of this model are called {join_names(relations)}, so a number may be a "
            "name or a place. Send `relation_names`, of which the numbers are places."
        )
        raise make_graph_problem_at(at(), "ambiguous", detail)
    count = len(relations) if order is None else len(order)
    where = "a place in `relation_names`" if order is not None else "the number of a relation"
    require_range(types, count, at, "unknown_relation", f"Must be {where}, from 0 to {count - 1}.")
    if len(relations) == 1:
        return None
    return types if order is None else order[types]


def numbers_are_names(relations: tuple[str, ...]) -> bool:
    """Whether a relation is called by a whole number, so that numbers are taken for names."""
    return any(map(_is_number, relations))


def should_read_relations(types: object, relations: tuple[str, ...], at: PointerFn) -> bool:
    """Whether edge types were sent; raises a problem if the model needs them, or knows none."""
    if len(relations) > 1 and types is None:
        names = ", ".join(relations)
        raise make_graph_problem_at(
            at(), "missing", f"This model needs the relation of each edge, one of {names}."
        )
    if relations == UNTYPED and types is not None:
        detail = "This model was trained on edges without types. Leave out the edge types."
        raise make_graph_problem_at(at(), "not_read", detail)
    return types is not None


def _index_names(
    names: object, known: tuple[str, ...], at: PointerFn, code: str, what: str
) -> dict[str, int]:
    """Return the place of each name."""
    values = require_list(names, at)
    require_types(values, {str}, at, "Must be text.")
    if unknown := [i for i, name in enumerate(values) if name not in known]:
        rule = f"The model has no such {what}; it has {join_names(known)}."
        raise make_graph_problem(FieldError(at(i), code, rule) for i in unknown)
    places = {name: i for i, name in enumerate(values)}
    if len(places) < len(values):
        again = np.array([places[name] != i for i, name in enumerate(values)])
        raise make_graph_problem_where(again, at, "duplicate", "This name occurs again later.")
    return places


def _is_number(name: str) -> bool:
    return name.isascii() and name.isdigit()
