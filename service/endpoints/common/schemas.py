"""What a client may ask and what it gets back, typed once.

Pydantic validates the envelope of a request. Its arrays are documented here but checked with
numpy in `service.validation`: pydantic would take longer over them than the model does.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, FailFast, Field, model_validator
from pydantic.json_schema import SkipJsonSchema

from models.base import DynamicsParams, Solver
from models.dynamics import StopReason
from models.resonance import ResolvedResonance, Resonance
from service.endpoints.common.reason_schemas import absent

Json = dict[str, Any]


Include = Literal[
    "trace", "components", "resonance", "attention", "memories", "explanation", "uncertainty"
]


MIN_SCALE = 1e-12
"""Least of what must be above 0: beta and factors on it, by which energies are divided, so that
single precision has no number for that of a large graph much below; and lengths of a step, which
single precision would round to 0."""


DIGEST = (
    "of the revision and all that led to it: graphs with one digest are the same, while after a "
    "loss of Redis another state may have the same revision"
)


class Strict(BaseModel):
    """Input: no unknown fields, no conversions, no NaN."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, frozen=True)


class Dynamics(Strict):
    """How the state moves. Whatever is left out stays as the model was trained."""

    steps: int | None = Field(
        None, ge=0, description="most steps of each block; the model's limits name the cap"
    )
    beta: float | None = Field(
        None, ge=MIN_SCALE, le=1e4, description="inverse temperature of every attention head"
    )
    beta_scale: float | None = Field(
        None,
        ge=MIN_SCALE,
        le=1e3,
        description="factor on the trained beta of each head; excludes beta",
    )
    step_size: float | None = Field(
        None, ge=MIN_SCALE, le=100, description="alpha, length of a step"
    )
    tolerance: float = Field(
        0.0, ge=0, le=1, description="a block stops once |dx/dt| / |x| is below it; 0 never does"
    )
    noise: float = Field(
        0.0, ge=0, le=10, description="sigma of sigma * sqrt(step_size) * eps added to each step"
    )
    seed: int = Field(0, ge=0, lt=2**32, description="seed of that noise")
    solver: Solver = Field(
        "euler",
        description="euler moves as in training; nesterov carries on by momentum, and gives it up "
        "where the energy would rise: fewer steps to where the state rests; descent takes half of "
        "a step that would raise it, and half of that, so that none does. Neither with noise",
    )
    resonance: Resonance | None = Field(
        None,
        description="prior on the logits of every attention, for pairs whose query and key agree; "
        "takes the place of the trained one as a whole, where there is one",
    )

    deterministic: bool = Field(
        False,
        description="the same to the last bit, whatever else is being computed; takes longer where "
        "much is. Otherwise sums may be rounded in another order",
    )

    @model_validator(mode="after")
    def _one_beta(self) -> Dynamics:
        if self.beta is not None and self.beta_scale is not None:
            raise ValueError("give beta or beta_scale, not both")
        return self

    @model_validator(mode="after")
    def _noise_or_momentum(self) -> Dynamics:
        if self.noise and self.solver != "euler":
            raise ValueError("there is noise with solver euler alone")
        return self

    def to_params(self) -> DynamicsParams:
        return DynamicsParams(
            steps=self.steps,
            beta=self.beta,
            beta_scale=1.0 if self.beta_scale is None else self.beta_scale,
            step_size=self.step_size,
            tolerance=self.tolerance + 0.0,  # -0.0 becomes 0.0
            noise=self.noise + 0.0,
            seed=self.seed,
            solver=self.solver,
            resonance=self.resonance,
            deterministic=self.deterministic,
        )


class Envelope(Strict):
    """What every request may carry besides its data."""

    model: str | None = Field(
        None, max_length=64, description="a name from GET /models; the route has a default"
    )
    dynamics: Dynamics = Dynamics.model_validate({})
    include: Annotated[list[Include], FailFast()] = Field(
        [],
        max_length=len(get_args(Include)),
        description="what else to tell: in `convergence` trace, components and resonance; in "
        "`reasons` attention, memories and components; in each result its explanation; with a "
        "completed image its uncertainty",
    )


class ResolvedDynamics(BaseModel):
    """The dynamics that ran."""

    steps: int
    beta: list[list[float]] = Field(
        description="per block and head; from a memory, of each channel completed by itself"
    )
    beta_scale: float | None = Field(description="null where beta was given")
    step_size: float
    tolerance: float
    noise: float
    seed: int
    solver: Solver
    deterministic: bool
    resonance: ResolvedResonance | None = Field(
        description="null where none was trained or asked for"
    )


class Change(BaseModel):
    initial: float | None
    final: float | None


class TraceEntry(BaseModel):
    """One block at one step; the components of its energy stand beside it by name."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, float | None] = Field(init=False)  # pyright: ignore

    block: int
    step: int
    energy: float | None
    storage: float | SkipJsonSchema[None] = Field(
        None,
        description="V, the storage functional of controlled dynamics",
        json_schema_extra=absent,
    )


class HeadResonance(BaseModel):
    """How selective a head of attention is where the state stopped; null without pairs."""

    attention: int = Field(description="place among those that resonate, block by block")
    kind: Literal["attention", "bottleneck"]
    head: int
    crossing: float | None = Field(
        description="share of pairs above vigilance, by cosine or, centred, by (c + 1) / 2"
    )
    mean: float | None = Field(description="resonance r of a pair, before its strength")


class ResonantPair(BaseModel):
    token: int = Field(
        description="a place among the tokens: a node; of a graph that is classified 0 is CLS and "
        "n + 1 is node n; a patch, row by row; of a bottleneck a slot of the memory"
    )
    seen: int = Field(description="the token that it sees")
    cosine: float
    resonance: float


class HeadPairs(HeadResonance):
    pairs: list[ResonantPair] = Field(description="those of the highest cosine, at most five")


class Convergence(BaseModel):
    """How the state moved, summed over the blocks. A number that is not finite is null."""

    energy_initial: float | None
    energy_final: float | None
    energy_drop: float | None
    steps: int = Field(description="steps taken, all blocks together")
    residual: float | None = Field(
        description="|dx/dt| / |x| of the last step, the largest of the blocks; null without one"
    )
    stop_reason: StopReason = Field(description="the worst of the blocks")
    energy_rose: bool | None = Field(
        description="was the energy, or of controlled dynamics their storage functional V, higher "
        "after any step of a block than before it, by more than rounding (64 units in the last "
        "place, 7.6e-6 of it), or not finite? Then `step_size` is too large for it to fall. Null "
        "with `noise`, and without steps"
    )
    energy_percentile: float | None = Field(
        description="share, in percent, of training neighbourhoods with a lower final energy per "
        "node, of those whose nodes have about as many neighbours; null for a stored graph with "
        "other `hops` or `max_neighbors` than the model's"
    )
    out_of_distribution: bool | None = Field(
        description="is `energy_percentile` below 0.5 or above 99.5? A hint: of rows like those of "
        "the training one in a hundred is, and many from elsewhere are not. Null without a "
        "percentile, and where `dynamics` are not those of the training"
    )
    components: dict[str, Change] | SkipJsonSchema[None] = Field(None, json_schema_extra=absent)
    resonance: list[HeadPairs] | SkipJsonSchema[None] = Field(
        None, description="empty where nothing resonates", json_schema_extra=absent
    )
    trace: list[TraceEntry] | SkipJsonSchema[None] = Field(None, json_schema_extra=absent)


class Timings(BaseModel):
    """Milliseconds spent in each phase."""

    read: float
    parse: float
    queue: float
    compute: float
    encode: float
    total: float


class JobProgress(BaseModel):
    step: int
    steps: int | None = Field(description="null until it is known, and for what is short")
    energy: float | None = Field(description="mean over the rows or chains so far")
    relaxation_steps: int = Field(description="steps that the dynamics have taken")


class JobBody(BaseModel):
    id: str
    route: str
    status: Literal["running", "done", "failed", "cancelled"] = Field(
        description="one that waits is running; one that failed has a problem for an answer"
    )
    created: float = Field(description="seconds since 1970")
    progress: JobProgress
    result: str | None = Field(description="path of the answer, once there is one")
    request_id: str


class Health(BaseModel):
    status: Literal["ok"]
    redis: Literal["up", "away", "restoring"] | SkipJsonSchema[None] = Field(
        default=None,
        description="absent where none is set; while it is away this server goes on alone",
        json_schema_extra=absent,
    )


class FaultDocument(BaseModel):
    pointer: str = Field(description="JSON pointer into the request")
    code: str
    detail: str


class ProblemDocument(BaseModel):
    """An error, after RFC 9457; served as application/problem+json."""

    type: str = Field(description="urn:basin:problem:<kind>, stable")
    title: str
    status: int
    detail: str
    request_id: str
    steps: int | SkipJsonSchema[None] = Field(
        None, description="those taken, where there was no time for all", json_schema_extra=absent
    )
    errors: list[FaultDocument] = Field(max_length=20)


class Prediction(BaseModel):
    """The answer to one of the model's questions."""

    label: str = Field(description="the most probable label")
    probability: float = Field(description="calibrated probability of `label`")
    probabilities: dict[str, float] = Field(description="calibrated probability of every label")


class SummedConvergence(BaseModel):
    """All that were answered, together. A number that is not finite is null."""

    rows: int = Field(description="number of classified inputs")
    energy_initial: float | None = Field(
        description="total over the inputs, like the other energies"
    )
    energy_final: float | None
    energy_drop: float | None
    steps: int = Field(description="total")
    residual: float | None = Field(description="the largest")
    stop_reason: StopReason = Field(description="the worst")
    stops: dict[str, int] = Field(description="number of inputs by stop reason")
    energy_rose: float | None = Field(
        description="share of the inputs whose energy rose, of those where it is not null"
    )
    energy_percentile: float | None = Field(description="mean")
    out_of_distribution: float | None = Field(
        description="share of the inputs with an energy percentile that are out of distribution"
    )
    components: dict[str, Change] | SkipJsonSchema[None] = Field(None, json_schema_extra=absent)
    resonance: list[HeadResonance] | SkipJsonSchema[None] = Field(
        None, description="mean of each head", json_schema_extra=absent
    )
