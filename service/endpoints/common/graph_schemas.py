"""Schemas of graphs in JSON, as arrays and as rows."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic.json_schema import SkipJsonSchema

from service.endpoints.common.reason_schemas import absent
from service.endpoints.common.schemas import Strict
from service.validation.ids import NodeId

NodeIds = Annotated[list[NodeId], Field(description="a unique id per node; row numbers by default")]

FeatureNames = Annotated[
    list[str],
    Field(
        description="name of each column of `x`, which are then matched with the model's `features`"
        " by name; without names they are taken in the model's order"
    ),
]
EdgeFeatureNames = Annotated[
    list[str],
    Field(
        description="name of each column of `edge_attr`, which are then matched with the model's "
        "`edge_features` by name; without names they are taken in the model's order"
    ),
]
RelationNames = Annotated[
    list[str],
    Field(description="names of relations, of which integers in `edge_type` are places"),
]


class ArrayGraph(Strict):
    """A graph as arrays, in the order of PyTorch Geometric."""

    x: list[list[float]] = Field(
        min_length=1,
        description="features of each node, in the order of `feature_names`, or of the model's "
        "`features` without them",
    )
    edge_index: list[list[int]] = Field(
        min_length=2,
        max_length=2,
        description="sources and targets of the edges, as row numbers of x",
    )
    edge_type: list[int | str] | None = Field(
        None,
        description="relation of each edge, as a name. An integer is a place in `relation_names` "
        "if there are any, else a name if the model has relations called by whole numbers, else a "
        "place in the model's `relations`. Required by models with several relations, not allowed "
        "by those trained on edges without types",
    )
    edge_attr: list[list[float]] | None = Field(
        None,
        description="features of each edge, in the order of `edge_feature_names`, or of the "
        "model's `edge_features` without them. Required by models that have any, not allowed by "
        "others",
    )
    node_ids: NodeIds | None = None
    feature_names: FeatureNames | None = None
    edge_feature_names: EdgeFeatureNames | None = None
    relation_names: RelationNames | None = None


class NodeRow(BaseModel):
    """A node by name: its features as `x`, or each under its own name."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, float] = Field(init=False)  # pyright: ignore

    id: NodeId
    x: list[float] | float | SkipJsonSchema[None] = Field(
        None,
        description="features in the order of the model, which excludes features by name; a number "
        "is the feature named x",
        json_schema_extra=absent,
    )


class EdgeRow(Strict):
    """An edge between named nodes."""

    source: NodeId
    target: NodeId
    type: int | str | None = Field(
        None,
        description="relation, as `edge_type` of a graph in arrays",
    )


class AttributedEdgeRow(EdgeRow):
    """An edge between named nodes, with each of the `edge_features` of the model, or of the stored
    graph, under its name."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, float] = Field(init=False)  # pyright: ignore


class KnownLabel(Strict):
    """What is known of a node."""

    node_id: NodeId
    label: Literal[0, 1] = Field(description="1 fraud, 0 none")
