"""Request and response schemas of `POST /anomaly/score`."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, Field
from pydantic.json_schema import SkipJsonSchema

from models.manifest import Manifest
from service.endpoints.common.alert_rule import AlertRule
from service.endpoints.common.graph_schemas import (
    ArrayGraph,
    AttributedEdgeRow,
    EdgeFeatureNames,
    FeatureNames,
    KnownLabel,
    NodeIds,
    NodeRow,
    RelationNames,
)
from service.endpoints.common.reason_schemas import Explanation, Reasons, absent
from service.endpoints.common.schemas import (
    DIGEST,
    Convergence,
    Envelope,
    ResolvedDynamics,
    Strict,
    Timings,
)
from service.registry.model_ref import ModelRef
from service.validation.ids import NodeId

_USUAL_REACH = 2, 32
"""`hops` and `max_neighbors` where neither the request nor the model says."""


class ScoreEnvelope(Envelope):
    """What every request to score nodes or transactions may carry besides its data."""

    decision: AlertRule | None = Field(
        None, description="which targets get label 1; else those from the model's threshold on"
    )


class GraphRequest(ScoreEnvelope):
    """What every request to score a graph in JSON may carry besides the graph."""

    targets: list[NodeId] | None = Field(
        None, min_length=1, description="nodes to score, without repetition; all if left out"
    )


class LabelledGraphRequest(GraphRequest):
    """What a request with a graph may carry beside it."""

    labels: list[KnownLabel] | None = Field(
        None,
        description="labels that are known, at most one of each node, for models that have "
        "`label_trees` in GET /models/{name}; a node is scored by those of its neighbours, never "
        "by its own",
    )


class ArrayScoreRequest(LabelledGraphRequest):
    """Score the nodes of a graph given as arrays."""

    graph: ArrayGraph


class RowScoreRequest(LabelledGraphRequest):
    """Score the nodes of a graph given row by row."""

    nodes: list[NodeRow] = Field(min_length=1)
    edges: list[AttributedEdgeRow]


class NeighborhoodKnobs(Strict):
    """What of a stored graph is taken to score some of its nodes.

    What is left out is that of the model: `neighborhood` of GET /models/{name}, where that has one,
    else 2 hops and 32 neighbours.
    """

    hops: int | None = Field(
        None, ge=0, le=8, description="edges between a target and the farthest node, either way"
    )
    max_neighbors: int | None = Field(
        None,
        ge=1,
        le=1_000_000,
        description="neighbours that are followed of each node; of one with more, by chance",
    )
    seed: int = Field(0, ge=0, lt=2**32, description="seed of that chance")

    def resolve(self, manifest: Manifest) -> dict[str, int]:
        """Return `hops` and `max_neighbors`, where they are not given those of the model."""
        usual = manifest.neighborhood
        hops, max_neighbors = (usual.hops, usual.max_neighbors) if usual else _USUAL_REACH
        return {
            "hops": hops if self.hops is None else self.hops,
            "max_neighbors": max_neighbors if self.max_neighbors is None else self.max_neighbors,
        }


class StoredGraphRef(Strict):
    """A stored graph, and what of it."""

    graph_id: str = Field(max_length=64, description="a graph from GET /graphs")
    neighborhood: NeighborhoodKnobs = NeighborhoodKnobs.model_validate({})


class StoredScoreRequest(ScoreEnvelope, StoredGraphRef):
    """Score nodes of a stored graph, each in the neighbourhood of all."""

    targets: list[NodeId] = Field(min_length=1, description="nodes to score, without repetition")


class TransactionScoreRequest(GraphRequest):
    """Score rows of a table of transactions, each by its own values and the rows before it; or
    their accounts, as of the last row of each, where `transactions` of GET /models/{name} says
    `scores: accounts`."""

    transactions: list[dict[str, str | float | None]] = Field(
        min_length=1,
        description="rows, in any order, with the columns that `transactions` of GET "
        "/models/{name} names; times are timestamps (ISO 8601, UTC without a zone) or numbers, as "
        "in training. `id` calls a row in `targets` and the answer; without ids rows go by their "
        "place, from 0. Where accounts are scored `targets` are ids of accounts, by default all. "
        "Earlier rows of the same accounts must come along, of the last two longest "
        "windows: without them it is another score",
        examples=[[{"time": "2026-01-31T23:59:59Z", "source": "A", "target": "B", "amount": 9.5}]],
    )


class TensorEnvelope(ScoreEnvelope):
    """What the entry `request` of a safetensors body's `__metadata__` may hold, as JSON text."""

    node_ids: NodeIds | None = None
    feature_names: FeatureNames | None = None
    edge_feature_names: EdgeFeatureNames | None = None
    relation_names: RelationNames | None = None


class NodeScore(BaseModel):
    """How suspicious one node is."""

    node_id: NodeId
    score: float = Field(description="raw logit")
    probability: float = Field(description="calibrated")
    label: Literal[0, 1] = Field(description="1 from `threshold` on")
    threshold: float = Field(description="of the model, or of `decision`")
    rank: int = Field(ge=1, description="1 is the most suspicious of the nodes returned")
    explanation: Explanation | SkipJsonSchema[None] = Field(None, json_schema_extra=absent)


class TakenGraph(BaseModel):
    """What of a stored graph was scored."""

    id: str
    revision: int = Field(description="of the graph, after which its neighbourhood was taken")
    digest: str = Field(description=DIGEST)
    hops: int | SkipJsonSchema[None] = Field(
        None, description="not of transactions", json_schema_extra=absent
    )
    max_neighbors: int | SkipJsonSchema[None] = Field(None, json_schema_extra=absent)
    means_revision: int | SkipJsonSchema[None] = Field(
        None,
        description="in means over neighbours that were left out, later changes count only at the "
        "nodes they touch; `revision`, unless a change touches much of the graph",
        json_schema_extra=absent,
    )
    num_nodes: int
    num_edges: int


class ScoreDetails(BaseModel):
    """What a response tells beside its results."""

    reasons: Reasons | SkipJsonSchema[None] = Field(
        None, description="of the targets, the most suspicious first", json_schema_extra=absent
    )
    graph: TakenGraph | SkipJsonSchema[None] = Field(
        None, description="where a `graph_id` was sent", json_schema_extra=absent
    )
    model: ModelRef
    dynamics: ResolvedDynamics
    convergence: Convergence
    labels_known: int | SkipJsonSchema[None] = Field(
        None,
        description="labels of the nodes that were read, where `labels` were sent, or the stored "
        "graph has some and the model reads them",
        json_schema_extra=absent,
    )
    timings_ms: Timings
    request_id: str


class ScoreResponse(ScoreDetails):
    """One result per target, in the order asked."""

    results: list[NodeScore]
