"""Request and response schemas of `/graphs`; see `service.endpoints.common.schemas`."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import BaseModel, Field
from pydantic.json_schema import SkipJsonSchema

from models.inputs.transactions import TransactionRecipe
from service.endpoints.common.graph_schemas import (
    ArrayGraph,
    AttributedEdgeRow,
    EdgeRow,
    KnownLabel,
    NodeRow,
)
from service.endpoints.common.reason_schemas import absent
from service.endpoints.common.schemas import DIGEST, Strict
from service.storage.graphs import WatchSettings
from service.validation.ids import NodeId


class GraphOf(Strict):
    """Fields of a graph besides its nodes and edges."""

    model: str | None = Field(
        None,
        max_length=64,
        description="a model with these features of nodes and edges, and these relations; all "
        "models with the same ones may score the graph. By default that of POST /anomaly/score",
    )


class AlertSettings(Strict):
    """When the nodes of a graph raise alerts; what is left out is that of the model."""

    threshold: float | None = Field(
        None, ge=0, le=1, description="probability from which on a node raises an alert"
    )
    hops: int | None = Field(
        None, ge=0, le=8, description="as in `neighborhood` of POST /anomaly/score"
    )
    max_neighbors: int | None = Field(None, ge=1, le=1_000_000, description="the same")
    webhook: str | None = Field(
        None,
        max_length=512,
        description="URL to which each alert is sent, on one of the origins in "
        "BASIN_WEBHOOK_ORIGINS",
    )

    @classmethod
    def from_watch(cls, watch: WatchSettings) -> Self:
        """Return what is stored of them."""
        return cls(**{name: getattr(watch, name) for name in cls.model_fields})


class GraphOfNodes(GraphOf):
    """Fields of a graph of nodes and edges besides these."""

    alerts: AlertSettings | None = Field(
        None,
        description="if given, even as {}, `model` scores all nodes, and after each change those "
        "that it may have touched; a node whose probability reaches the threshold raises an alert "
        "(GET /graphs/{id}/alerts)",
    )
    labels: list[KnownLabel] | None = Field(
        None,
        description="labels of nodes that are known, for models that have `label_trees` in "
        "GET /models/{name}. Given, even as [], more may follow by POST /graphs/{id}/labels",
    )


class StoreArrays(GraphOfNodes):
    """A graph to store, as arrays."""

    graph: ArrayGraph


class StoreRows(GraphOfNodes):
    """A graph to store, row by row."""

    nodes: list[NodeRow] = Field(min_length=1)
    edges: list[AttributedEdgeRow]


class StoreTransactions(GraphOf):
    """A graph of transactions, empty at first; POST /graphs/{id}/transactions adds to it."""

    threshold: float | None = Field(
        None,
        ge=0,
        le=1,
        description="probability from which on a transaction, or an account where the model scores "
        "these, raises an alert; by default that of the model",
    )
    daily_budget: float | None = Field(
        None,
        gt=0,
        description="alerts of a day, in place of `threshold`: the probability that this number of "
        "transactions reached in the model's validation part, on average. It is looked up once, "
        "now",
    )
    keep: float | None = Field(
        None,
        gt=0,
        description="transactions that are older than the newest one by more are forgotten, once "
        "they are the majority: seconds, or the unit of the time. At least, and by default twice, "
        "the time over which rows change a score",
    )
    webhook: str | None = Field(
        None,
        max_length=512,
        description="URL to which each alert is sent, on one of the origins in "
        "BASIN_WEBHOOK_ORIGINS",
    )


class NodesToSet(Strict):
    nodes: list[NodeRow] = Field(min_length=1, description="nodes to insert, or to replace by id")


class EdgesToAdd(Strict):
    edges: list[AttributedEdgeRow] = Field(
        min_length=1,
        description="edges between stored nodes, with all `edge_features` of the graph. One that "
        "is there already takes the features that come with it",
    )


class ChangedLabel(Strict):
    """What is known of a node, or that nothing is known any more."""

    node_id: NodeId
    label: Literal[0, 1] | None = Field(description="1 fraud, 0 none, null not known")


class GraphUpdate(Strict):
    """An atomic update of 1 to 10,000 nodes, edges and labels, applied in the order below."""

    delete_edges: list[EdgeRow] = Field(
        [], description="edges to delete, without features; unknown ones are ignored"
    )
    delete_nodes: list[NodeId] = Field([], description="nodes to delete, with all their edges")
    nodes: list[NodeRow] = Field([], description="as in POST /graphs/{id}/nodes")
    edges: list[AttributedEdgeRow] = Field([], description="as in POST /graphs/{id}/edges")
    labels: list[ChangedLabel] = Field(
        [], description="labels of nodes, of a graph that was stored with `labels`"
    )


class GraphBody(BaseModel):
    """A graph that is stored."""

    id: str
    features: list[str]
    edge_features: list[str] = Field(description="of each edge; empty if edges have none")
    relations: list[str]
    labels: bool = Field(description="whether nodes may have labels")
    num_nodes: int
    num_edges: int
    revision: int = Field(description="incremented with each change of the graph")
    digest: str = Field(description=DIGEST)
    model: str | SkipJsonSchema[None] = Field(
        None,
        description="that scores its transactions, or its nodes for alerts; absent of a graph of "
        "nodes and edges that raises none",
        json_schema_extra=absent,
    )


class GraphDetail(GraphBody):
    """A graph that is stored, and what was said of its transactions or alerts."""

    alerts: AlertSettings | SkipJsonSchema[None] = Field(
        None,
        description="of a graph of nodes and edges, if it raises alerts",
        json_schema_extra=absent,
    )

    scored_revision: int | SkipJsonSchema[None] = Field(
        None,
        description="of such a graph: alerts of all changes up to this revision are raised",
        json_schema_extra=absent,
    )
    transactions: TransactionRecipe | SkipJsonSchema[None] = Field(
        None,
        description="columns of its transactions, and the features made of them",
        json_schema_extra=absent,
    )
    threshold: float | SkipJsonSchema[None] = Field(
        None,
        description="probability from which on a transaction raises an alert; absent where it is "
        "that of the model",
        json_schema_extra=absent,
    )
    keep: float | SkipJsonSchema[None] = Field(
        None,
        description="how much older than the newest a transaction may be before it is forgotten",
        json_schema_extra=absent,
    )
    webhook: str | SkipJsonSchema[None] = Field(
        None, description="where alerts are sent", json_schema_extra=absent
    )


class GraphList(BaseModel):
    graphs: list[GraphBody]
    damaged: list[str] | SkipJsonSchema[None] = Field(
        None,
        description="ids of graphs of which what is stored is damaged; absent if there are none. "
        "They can be deleted or stored anew",
        json_schema_extra=absent,
    )
