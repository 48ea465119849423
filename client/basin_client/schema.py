"""What a model reads of a graph: the features by name, and the relations by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from basin_client.errors import InputError

_LISTED = 20  # names in a message


@dataclass(frozen=True)
class GraphSchema:
    """Features and relations of a model, in its order; the authority for every graph it scores."""

    model: str
    features: tuple[str, ...]
    relations: tuple[str, ...]
    undirected: bool = True
    transactions: Mapping[str, Any] | None = None  # columns of a model that reads transactions
    edge_features: tuple[str, ...] = ()

    @classmethod
    def from_model(cls, detail: Mapping[str, Any]) -> GraphSchema:
        """Read the response of `GET /models/{name}` (or of `GET /graphs/{id}`).

        Raises:
            InputError: the model does not score nodes.
        """
        name = str(detail.get("name", detail.get("id")))
        if "relations" not in detail:
            raise InputError(
                f"The model {name} does not score the nodes of a graph. `basin models` lists the "
                "models of each route."
            )
        features, edge_features = (
            tuple(f if isinstance(f, str) else f["name"] for f in detail.get(field, ()))
            for field in ("features", "edge_features")
        )
        undirected = bool(detail.get("undirected", True))
        relations = tuple(detail["relations"])
        return cls(
            *(name, features, relations, undirected, detail.get("transactions")),
            edge_features=edge_features,
        )

    def require_transactions(self) -> Mapping[str, Any]:
        """Return the columns of the transactions that the model reads.

        Raises:
            InputError: it reads graphs.
        """
        if self.transactions is None:
            raise InputError(
                f"The model {self.model} reads graphs, not transactions. Choose one that "
                "`python -m training transactions` made."
            )
        return self.transactions

    def require_types(self, where: str) -> None:
        """
        Raises:
            InputError: the model has several relations, so that every edge needs its type.
        """
        if len(self.relations) > 1:
            raise InputError(
                f"{where}: the edges have no type, but {self.model} has several relations: "
                f"{_list(self.relations)}. Name the column with --type-column."
            )


def scores_accounts(recipe: Mapping[str, Any]) -> bool:
    """Whether a model that reads transactions has a score for each account, not for each row."""
    return recipe.get("scores") == "accounts"


def require_relation(name: str, schema: GraphSchema, where: str) -> int:
    """Return the place of a relation of the model.

    Raises:
        InputError: the model has no relation of this name.
    """
    if name in schema.relations:
        return schema.relations.index(name)
    if schema.relations == ("edge",):
        raise InputError(
            f"{where}: the edge has a type, but {schema.model} was trained on edges without types. "
            "Leave out the column of types (--drop)."
        )
    raise InputError(
        f"{where}: {schema.model} has no relation {name!r}. Relations: {_list(schema.relations)}."
    )


def match_names(
    names: Sequence[str], schema: GraphSchema, where: str, *, ignore_extra: bool = False
) -> list[int]:
    """Return the place in `names` of each feature of the model.

    Raises:
        InputError: a feature is missing, or a name is not one of the model's features.
    """
    places = {name: place for place, name in enumerate(names)}
    if missing := [name for name in schema.features if name not in places]:
        raise InputError(
            f"{where}: no column {missing[0]!r}"
            + (f" and {len(missing) - 1} more" if len(missing) > 1 else "")
            + f", which {schema.model} reads. Columns: {_list(names) or 'none'}. Features of the "
            f"model: {_list(schema.features)}. Rename the columns; other features need a model "
            "that was trained on them."
        )
    extra = [name for name in names if name not in schema.features]
    if extra and not ignore_extra:
        raise InputError(
            f"{where}: {schema.model} does not read {_list(extra)}. Leave such columns out with "
            "--drop NAME (drop= in Python); * is all that it does not read."
        )
    return [places[name] for name in schema.features]


def _list(names: Sequence[str]) -> str:
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return ", ".join(names[:_LISTED]) + more
