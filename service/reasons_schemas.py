"""What a row at rest tells of itself; see `service.schemas`."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic.json_schema import SkipJsonSchema

from service.parsing.names import NodeId


def absent(schema: dict[str, Any]) -> None:
    """A field that may be left out, but is not null."""
    schema.pop("default", None)


class TokenRef(BaseModel):
    """A token, and what it is called."""

    token: int = Field(
        description="a place among the tokens: a node; of a graph that is classified 0 is CLS and "
        "n + 1 is node n; a patch, row by row, and a question last; of a bottleneck a slot of the "
        "memory"
    )
    node_id: NodeId | SkipJsonSchema[None] = Field(
        None, description="of a graph that is scored", json_schema_extra=absent
    )
    node: int | None = Field(
        None,
        description="of a graph that is classified, or atom of a molecule; null of CLS",
        json_schema_extra=absent,
    )


class SeenToken(TokenRef):
    """A token that another one sees."""

    weight: float = Field(description="p, the mean over the heads")
    heads: list[float] = Field(description="p of each head; sums to 1 over all tokens seen")


class SeeingToken(TokenRef):
    seen: list[SeenToken] = Field(description="those of the largest weight, at most five")


class AttentionAtRest(BaseModel):
    """Who sees whom, where the state came to rest."""

    attention: int = Field(description="place among all attentions, block by block")
    kind: Literal["attention", "bottleneck"]
    tokens: list[SeeingToken] = Field(description="those that see any")


class MeanMemory(BaseModel):
    memory: int
    share: float = Field(description="mean over all tokens of the row")
    tile: int | SkipJsonSchema[None] = Field(
        None,
        description="of a model of pictures: which tile of GET /models/{name}/memories shows it",
        json_schema_extra=absent,
    )


class FiredMemory(BaseModel):
    memory: int
    activation: float = Field(description="by how much it pulls at the token, r(xi . g)")
    share: float = Field(description="of the token's Hopfield energy")


class FiringToken(TokenRef):
    fired: list[FiredMemory] = Field(description="those of the largest share, at most five")


class MemoriesAtRest(BaseModel):
    """Which Hopfield memories fired in one block, where the state came to rest."""

    block: int
    top: list[MeanMemory] = Field(description="those of the largest mean share, at most five")
    tokens: list[FiringToken]


class TokenEnergy(TokenRef):
    """The energy of one token by term, with its weight in the sum; of attention by head."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, float | list[float] | None] = Field(init=False)  # pyright: ignore


class ComponentsAtRest(BaseModel):
    block: int
    tokens: list[TokenEnergy]


class Reasons(BaseModel):
    """Why a row came to rest where it did. The whole of it is in a safetensors answer."""

    tokens: int = Field(description="how many there are")
    told: int = Field(description="how many are told of, at most 64: targets, else the first")
    attention: list[AttentionAtRest] | SkipJsonSchema[None] = Field(None, json_schema_extra=absent)
    memories: list[MemoriesAtRest] | SkipJsonSchema[None] = Field(None, json_schema_extra=absent)
    components: list[ComponentsAtRest] | SkipJsonSchema[None] = Field(
        None, json_schema_extra=absent
    )
