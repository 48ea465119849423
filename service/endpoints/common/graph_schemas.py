"""Schemas of graphs in JSON, as arrays and as rows."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field
from pydantic.json_schema import SkipJsonSchema

from service.endpoints.common.reason_schemas import absent
from service.endpoints.common.schemas import Strict
from service.validation.ids import NodeId

NodeIds = Annotated[list[NodeId], Field(description="a unique id per node; row numbers by default")]


class ArrayGraph(Strict):
    """A graph as arrays, in the order of PyTorch Geometric."""

    x: list[list[float]] = Field(
        min_length=1, description="features of each node, in the order of the model's `features`"
    )
    edge_index: list[list[int]] = Field(
        min_length=2,
        max_length=2,
        description="sources and targets of the edges, as row numbers of x",
    )
    edge_type: list[int | str] | None = Field(
        None,
        description="relation of each edge, by name or number; required by models with several "
        "`relations`, not allowed otherwise",
    )
    node_ids: NodeIds | None = None


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
        description="relation; required by models with several `relations`, not allowed otherwise",
    )
