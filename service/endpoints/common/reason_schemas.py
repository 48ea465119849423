"""What a row tells of itself where it stopped; see `service.endpoints.common.schemas`."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic.json_schema import SkipJsonSchema

from service.validation.ids import NodeId


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
    """Who sees whom, where the state stopped."""

    attention: int = Field(description="place among all attentions, block by block")
    kind: Literal["attention", "bottleneck"]
    tokens: list[SeeingToken] = Field(description="those that see any")


class MeanMemory(BaseModel):
    memory: int
    share: float = Field(description="mean over all tokens of the row")
    tile: int | SkipJsonSchema[None] = Field(
        None,
        description="of a model of images: which tile of GET /models/{name}/memories shows it",
        json_schema_extra=absent,
    )


class FiredMemory(BaseModel):
    memory: int
    activation: float = Field(description="by how much it pulls at the token, r(xi . g)")
    share: float = Field(description="of the token's Hopfield energy")


class FiringToken(TokenRef):
    fired: list[FiredMemory] = Field(description="those of the largest share, at most five")


class MemoriesAtRest(BaseModel):
    """Which Hopfield memories fired in one block, where the state stopped."""

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
    """Why a row stopped where it did. The whole of it is in a safetensors answer."""

    tokens: int = Field(description="how many there are")
    told: int = Field(description="how many are told of, at most 64: targets, else the first")
    attention: list[AttentionAtRest] | SkipJsonSchema[None] = Field(None, json_schema_extra=absent)
    memories: list[MemoriesAtRest] | SkipJsonSchema[None] = Field(None, json_schema_extra=absent)
    components: list[ComponentsAtRest] | SkipJsonSchema[None] = Field(
        None, json_schema_extra=absent
    )


class Deletion(BaseModel):
    """How faithful an explanation is: the answer without what it names, and without as much."""

    removed: int = Field(description="all of `supports`, together")
    moved: float | None = Field(description="by how much the answer loses support")
    random: float | None = Field(
        description="by how much it loses without as many parts at random, the mean; null where "
        "there is no choice"
    )
    draws: int = Field(description="how many random sets")


class _Effect(BaseModel):
    effect: float = Field(description="what is explained, less what it is without this part")


class NeighbourEffect(_Effect):
    node_id: NodeId


class FeatureEffect(_Effect):
    feature: str
    value: float
    instead: float = Field(description="the mean in training, which it was replaced by")


class MemoryEffect(_Effect):
    block: int
    memory: int


class NodeEffect(_Effect):
    node: int = Field(description="atom, in the order of the SMILES")


class _Causes(BaseModel):
    parts: int = Field(description="how many there are")
    tried: int = Field(
        description="how many were taken away by themselves: all, or those that a gradient through "
        "all steps (of neighbours) or their share of the energy (of memories) singles out"
    )
    deletion: Deletion | None = Field(description="null where nothing supports the answer")


class Neighbours(_Causes):
    """Of a node that is scored: each without its edges to the node."""

    supports: list[NeighbourEffect]
    opposes: list[NeighbourEffect]


class Features(_Causes):
    """Of the node that is scored, each as it is on average."""

    supports: list[FeatureEffect]
    opposes: list[FeatureEffect]


class Memories(_Causes):
    """Of the Hopfield networks: each missing."""

    supports: list[MemoryEffect]
    opposes: list[MemoryEffect]


class Nodes(_Causes):
    """Of a graph that is classified, as the atoms of a molecule: each missing, with its edges."""

    supports: list[NodeEffect]
    opposes: list[NodeEffect]


class Explanation(BaseModel):
    """What moved one answer: of each kind of parts `supports` has the strongest reasons for `label`
    and `opposes` those against it, at most five each. A kind that such a model has none of is null.
    """

    method: Literal["occlusion"] = Field(
        description="each part is taken away by itself, and the input answered again"
    )
    target: NodeId = Field(description="what the answer is about: a node, or a task of /classify")
    label: int | str = Field(description="the answer: 1 or 0 of a score, or the class")
    unit: Literal["score", "log_odds"] = Field(
        description="of `value` and of every effect: of a node its `score`, the more suspicious "
        "the higher; of a class by how much its logit is above those of all others together"
    )
    value: float = Field(description="what was explained, uncalibrated, before parts were taken")
    probability: float = Field(
        description="calibrated, of what `value` measures: that the node is suspicious, whatever "
        "its label, or that the input is of class `label`"
    )
    neighbours: Neighbours | None
    features: Features | None
    nodes: Nodes | None
    memories: Memories | None
    svg: str | None = Field(
        description="a molecule's atoms by their effects: what speaks for the label is red, what "
        "speaks against it blue; null where it is too large to draw, and of what is no molecule"
    )
