"""Request and response schemas of `POST /sample` and of stored memories."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, Field

from models.sampling import Method
from service.endpoints.common.memory_schemas import InlineMemory, InlineSequences, MemoryRef
from service.endpoints.common.schemas import MIN_SCALE, Json, Strict, Timings

MAX_BETA = 1e6
MAX_BETAS = 32

Beta = Annotated[float, Field(ge=MIN_SCALE, le=MAX_BETA)]


class SampleKnobs(Strict):
    """Parameters of sampling; the defaults are the protocol of the paper."""

    num_samples: int = Field(30, ge=1, le=1_000_000, description="number of samples per beta")
    chains: int | None = Field(
        None,
        ge=1,
        description="number of independent chains; by default 30, or `num_samples` if that is less",
    )
    steps: int = Field(
        5000, ge=1, description="steps of each chain, at most BASIN_MAX_SAMPLE_STEPS"
    )
    burn_in: int | None = Field(
        None, ge=0, description="steps before states are recorded; by default two fifths of `steps`"
    )
    thin: int | None = Field(
        None,
        ge=1,
        description="steps between recorded states; by default a thirtieth of the steps after "
        "`burn_in`",
    )
    step_size: float = Field(
        0.01, ge=MIN_SCALE, le=1, description="step size alpha; no step up to 1 can diverge"
    )
    method: Literal["ula", "mala"] = Field(
        "ula",
        description="`ula` takes every step; `mala` accepts or rejects steps, which removes the "
        "bias",
    )
    heads: int = Field(
        1, ge=1, le=1024, description="number of principal subspaces of the memory to sample in"
    )
    seed: int = Field(
        0,
        ge=0,
        lt=2**53,
        description="seed of the noise; equal requests with equal seeds return equal samples",
    )


class InitStates(Strict):
    """Where to start, one state per chain, in the units of the patterns. Each is scaled to unit
    length as the patterns are, so only its direction counts."""

    states: list[list[float]] = Field(min_length=1)


class Clamp(Strict):
    """Coordinates of the (flattened) pattern that are known, and their values in its units."""

    index: list[int] = Field(min_length=1)
    values: list[float] = Field(min_length=1)


class SampleRequest(SampleKnobs):
    """Sample from a memory. The defaults name the paper's protocol."""

    memory: str | InlineMemory | InlineSequences = Field(
        description="an id from GET /memories, or patterns"
    )
    beta: (
        Beta | Literal["auto"] | Annotated[list[Beta], Field(min_length=1, max_length=MAX_BETAS)]
    ) = Field(
        "auto",
        description="inverse temperature; `auto` takes beta*, the inflection of the entropy; a "
        "list samples at each",
    )
    init: Literal["patterns"] | InitStates = Field(
        "patterns",
        description="start near random patterns, distinct if there are enough; with `clamp`, near "
        "patterns drawn by how well they fit it",
    )
    clamp: Clamp | None = Field(
        None, description="keep these coordinates fixed and sample the others given them"
    )


class TensorSampleRequest(SampleKnobs):
    """The entry `request` of a safetensors body's `__metadata__`, as JSON text; the tensors
    `patterns`, `init`, `clamp_index` and `clamp_values` stand for the arrays of SampleRequest."""

    memory: str | Json | None = Field(
        None, description="an id; or `kind` and `shape` of the tensor `patterns`"
    )
    beta: Beta | Literal["auto"] | list[Beta] = "auto"


class MeasuresBody(BaseModel):
    """Figures of one set of samples."""

    novelty: float = Field(description="1 - max_cosine")
    diversity: float = Field(description="mean of 1 - cosine over pairs of samples")
    energy: float = Field(description="mean Hopfield energy")
    max_cosine: float = Field(description="mean cosine to the nearest stored pattern")
    entropy: float = Field(description="mean entropy of the attention, nats")


class NullBody(MeasuresBody):
    """The same figures for a random stored pattern + N(0, I/beta), without any dynamics. Where
    they match those of the samples, these are no more than that."""

    novelty_closed_form: float | None = Field(
        description="1 - (1 + d/beta)^(-1/2); null with `clamp` or `heads`, where it does not hold"
    )
    energy_closed_form: float | None = Field(description="-1/2 + d/(2 beta); null likewise")


class RHat(BaseModel):
    """Rank-normalised split R-hat across chains; null where they are too short or stand still."""

    energy: float | None
    state: float | None = Field(
        description="largest along the leading axes of the memory; far above 1 if chains stay in "
        "different basins"
    )


class Diagnostics(MeasuresBody):
    """What the chains did at one temperature."""

    beta: float
    snr: float = Field(
        description="ratio of drift to noise of a step, sqrt(step_size beta / 2 d), for d sampled "
        "coordinates"
    )
    lipschitz: float = Field(
        description="bound on the Lipschitz constant of the gradient, 1 + beta sigma^2 / 2"
    )
    acceptance: float | None = Field(description="mean over chains; null for ula")
    chain_energy: list[float] = Field(
        description="mean energy of each chain after burn-in, summed over heads"
    )
    chain_acceptance: list[float] | None
    r_hat: RHat
    ess: float | None = Field(description="effective sample size of the energy over all chains")
    notes: list[str] = Field(description="why figures are null, and chains that stand still")
    null: NullBody


class Inflection(BaseModel):
    """Where attention to this memory turns from diffuse to selective; null for one pattern."""

    beta_star: float | None = Field(description="by the rule of the paper: d2H/dbeta2 = 0")
    beta_star_log: float | None = Field(
        description="by the rule of the released code: minimum of d2H/d(ln beta)2 on a grid of 50"
    )
    convex_below: float = Field(description="beta below which the energy is strictly convex")


class ResolvedKnobs(BaseModel):
    """The parameters that were used."""

    num_samples: int
    chains: int
    steps: int
    burn_in: int
    thin: int
    step_size: float
    method: Method
    heads: int
    seed: int
    beta: list[float]
    clamped: int = Field(description="number of clamped coordinates")


Items = list[list[float]] | list[list[list[float]]] | list[list[list[list[float]]]] | list[str]


class Batch(BaseModel):
    """Samples at one temperature."""

    samples: Items = Field(description="items of the kind of the memory, in its units")
    diagnostics: Diagnostics


class SampleResponse(BaseModel):
    """`samples` and `diagnostics` for one beta; `spectrum` in their place for a list."""

    samples: Items | None = None
    diagnostics: Diagnostics | None = None
    spectrum: list[Batch] | None = None
    inflection: Inflection
    memory: MemoryRef
    dynamics: ResolvedKnobs
    timings_ms: Timings
    request_id: str
