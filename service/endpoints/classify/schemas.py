"""Request and response schemas of `POST /classify`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, Field
from pydantic.json_schema import SkipJsonSchema

from service.endpoints.common.reason_schemas import Explanation, Reasons
from service.endpoints.common.schemas import (
    Convergence,
    Envelope,
    Prediction,
    ResolvedDynamics,
    Strict,
    SummedConvergence,
    Timings,
    absent,
)
from service.registry.model_ref import ModelRef


class WholeGraph(Strict):
    """One graph to classify. A column with values holds the place of one: 0 for the first."""

    x: list[list[float]] = Field(
        min_length=1, description="features of each node, in the order of the model's `features`"
    )
    edge_index: list[list[int]] = Field(
        min_length=2,
        max_length=2,
        description="sources and targets of the edges, as row numbers of x; edges are undirected, "
        "so one direction is enough",
    )
    edge_attr: list[list[float]] | None = Field(
        None,
        description="features of each edge, in the order of the model's `edge_features`; required "
        "by models with edge features, not allowed otherwise",
    )


class SmilesRequest(Envelope):
    """Classify molecules."""

    smiles: str | Annotated[list[str], Field(min_length=1)] = Field(
        description="one molecule or several, for a model that `reads_smiles`"
    )


class GraphsRequest(Envelope):
    """Classify graphs. One that is malformed refuses the request."""

    graphs: list[WholeGraph] = Field(min_length=1)


class TensorClassifyRequest(Envelope):
    """The entry `request` of a safetensors body's `__metadata__`, as JSON text; the tensors stand
    for `graphs`, one after the other."""


class GraphConvergence(Convergence):
    """How the state of one molecule or graph moved."""

    energy_percentile: float | None = Field(
        description="percentage of training graphs with a lower final energy per node; near 0 or "
        "100 the input may be unlike all of them"
    )


class ItemError(BaseModel):
    """Why an input has no answer."""

    code: str
    detail: str


class GraphResult(BaseModel):
    """One input: the answer if `status` is ok, the reason if it is error."""

    index: int = Field(ge=0, description="index of the input")
    input: str | SkipJsonSchema[None] = Field(
        None,
        description="the SMILES as sent, cut to the maximum length",
        json_schema_extra=absent,
    )
    canonical_smiles: str | SkipJsonSchema[None] = Field(
        None, description="canonical SMILES of RDKit", json_schema_extra=absent
    )
    status: Literal["ok", "error"]
    predictions: dict[str, Prediction] | SkipJsonSchema[None] = Field(
        None, description="by task", json_schema_extra=absent
    )
    convergence: GraphConvergence | SkipJsonSchema[None] = Field(None, json_schema_extra=absent)
    reasons: Reasons | SkipJsonSchema[None] = Field(None, json_schema_extra=absent)
    explanation: dict[str, Explanation] | SkipJsonSchema[None] = Field(
        None, description="by task", json_schema_extra=absent
    )
    error: ItemError | SkipJsonSchema[None] = Field(None, json_schema_extra=absent)


class ClassifyTimings(Timings):
    molecules: float | SkipJsonSchema[None] = Field(
        None,
        description="parsing SMILES, including the wait for a process",
        json_schema_extra=absent,
    )
    draw: float | SkipJsonSchema[None] = Field(
        None, description="drawing explained molecules", json_schema_extra=absent
    )


class ClassifyResponse(BaseModel):
    """One result per input, in order."""

    results: list[GraphResult]
    model: ModelRef
    dynamics: ResolvedDynamics
    convergence: SummedConvergence
    timings_ms: ClassifyTimings
    request_id: str
