"""Graphs in JSON, what a client may say of those that are stored and what it gets back; see
`service.endpoints.common.schemas`."""

from __future__ import annotations

from pydantic import BaseModel, Field

from service.endpoints.common.graph_schemas import ArrayGraph, EdgeRow, NodeRow
from service.endpoints.common.schemas import Strict
from service.validation.ids import NodeId


class GraphOf(Strict):
    """What is said of a graph besides its nodes and edges."""

    model: str | None = Field(
        None,
        max_length=64,
        description="a model whose features the nodes have, and whose relations the edges; all "
        "models with the same may score it. POST /anomaly/score's default if left out",
    )


class StoreArrays(GraphOf):
    """A graph to store, as arrays."""

    graph: ArrayGraph


class StoreRows(GraphOf):
    """A graph to store, row by row."""

    nodes: list[NodeRow] = Field(min_length=1)
    edges: list[EdgeRow]


class NodesToSet(Strict):
    nodes: list[NodeRow] = Field(
        min_length=1, description="new ones, or others in the place of those with these ids"
    )


class EdgesToAdd(Strict):
    edges: list[EdgeRow] = Field(
        min_length=1,
        description="between nodes that are there; each is there once, however often it is added",
    )


class GraphUpdate(Strict):
    """Changes that are made all at once, in the order below: 1 to 10,000 nodes and edges."""

    delete_edges: list[EdgeRow] = Field([], description="what is not there is gone already")
    delete_nodes: list[NodeId] = Field([], description="with all their edges")
    nodes: list[NodeRow] = Field([], description="as in POST /graphs/{id}/nodes")
    edges: list[EdgeRow] = Field([], description="as in POST /graphs/{id}/edges")


class GraphBody(BaseModel):
    """A graph that is stored."""

    id: str
    features: list[str]
    relations: list[str]
    num_nodes: int
    num_edges: int
    revision: int = Field(description="one more with each change of anything in it")


class GraphList(BaseModel):
    graphs: list[GraphBody]
