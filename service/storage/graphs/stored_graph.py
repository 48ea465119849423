"""What the store knows of a graph in memory: one of nodes and edges, or of transactions."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, Self

from models.inputs.transactions import TransactionRecipe
from service.validation.ids import NodeId


@dataclass(frozen=True)
class Schema:
    """What the columns of x, the relations and the features of edges are, and whether nodes may
    have labels; of transactions, their recipe too."""

    features: tuple[str, ...]
    relations: tuple[str, ...]
    recipe: TransactionRecipe | None = None
    edge_features: tuple[str, ...] = ()
    labels: bool = False


class StoredUpdate(Protocol):
    """What a client changes."""

    def to_json(self) -> bytes: ...


class StoredChange(Protocol):
    """What an update comes to: the part of it that changes something, and the size after it."""

    @property
    def update(self) -> StoredUpdate: ...
    @property
    def num_nodes(self) -> int: ...
    @property
    def num_edges(self) -> int: ...


@dataclass(frozen=True)
class TouchedNodes:
    """Nodes whose features, edges or labels an update changes, and nodes that it deletes."""

    node_ids: list[NodeId]
    deleted: list[NodeId]


@dataclass(frozen=True)
class ToScore:
    """What of an update is to be scored: `pending` transactions, or what depends on the `touched`
    nodes of a watched graph."""

    pending: Sequence[NodeId] = ()
    touched: TouchedNodes | None = None


class StoredGraph(ABC):
    """One thread changes it, by `plan` and `commit`; any number reads, and finds it before a change
    or after. `revision` and `digest` (see `digests`) change together."""

    schema: Schema
    revision: int
    digest: str = ""
    num_edges: int

    @property
    @abstractmethod
    def num_nodes(self) -> int: ...

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """Approximate memory."""

    @property
    @abstractmethod
    def should_compact(self) -> bool:
        """Whether more of what it holds is out of use than in use."""

    @abstractmethod
    def compacted(self) -> Self:
        """Return it without what is out of use."""

    @abstractmethod
    def plan(self, update: Any) -> StoredChange | None:
        """Return what `update` comes to; None if it changes nothing.

        Raises:
            Problem: the update does not fit the graph.
        """

    @abstractmethod
    def list_to_score(self, change: Any) -> ToScore:
        """Return what of a planned change is to be scored."""

    @abstractmethod
    def commit(self, change: Any, revision: int, digest: str = "") -> None:
        """Apply a planned change, which makes this revision; its digest is blank where no log has
        the graph."""

    @abstractmethod
    def apply_logged(self, text: bytes) -> ToScore:
        """Apply an update that was logged as `StoredUpdate.to_json`; return what of it was to be
        scored."""
