"""What a client may ask of POST /complete; see `service.endpoints.common.schemas`."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field
from pydantic.json_schema import SkipJsonSchema

from models.dynamics import StopReason
from service.endpoints.common.reason_schemas import Reasons
from service.endpoints.common.schemas import (
    Change,
    Envelope,
    HeadResonance,
    ResolvedDynamics,
    Strict,
    Timings,
    TraceEntry,
    absent,
)
from service.endpoints.complete.masks import MaskMode
from service.registry.model_ref import ModelRef

MAX_SAMPLES = 16


class CompleteKnobs(Strict):
    """How to complete a picture."""

    mask_mode: MaskMode = Field(
        "white_fill",
        description="fill where the mask is white, where it is black, or where it is transparent; "
        "with `alpha` and no mask, where the image itself is",
    )
    num_samples: int = Field(
        1,
        ge=1,
        le=MAX_SAMPLES,
        description="completions, which differ where there is noise: the first has "
        "that of `seed`, the next that of `seed` + 1, and so on",
    )


class CompleteRequest(Envelope, CompleteKnobs):
    """Fill the unknown part of a picture. Known pixels come back as they were."""

    image: str = Field(
        description="PNG, JPEG or WebP in base64, or as a data URI; BASIN_MAX_PIXELS caps its size"
    )
    mask: str | None = Field(
        None, description="a picture of the same size; only `alpha` can do without"
    )


class CompleteForm(Envelope, CompleteKnobs):
    """The same as multipart/form-data: pictures as files, `model` and `mask_mode` as text, other
    fields as JSON."""

    image: bytes = Field(description="PNG, JPEG or WebP; BASIN_MAX_PIXELS caps its size")
    mask: bytes | None = Field(
        None, description="a picture of the same size; only `alpha` can do without"
    )


class WindowsConvergence(BaseModel):
    """How the windows of one completion came to rest. Energies are per patch, the mean over all
    windows. A number that is not finite is null."""

    windows: int = Field(
        description="that the network relaxed, at all scales; each three times where it reads grey "
        "and the picture is RGB"
    )
    energy_initial: float | None
    energy_final: float | None
    energy_drop: float | None
    steps: int = Field(description="total")
    residual: float | None = Field(description="the largest; null where no step was taken")
    stop_reason: StopReason = Field(description="the worst")
    stops: dict[str, int] = Field(description="how many windows stopped for which reason")
    energy_percentile: float | None = Field(
        description="share of training images, as much of them hidden, with a lower final energy "
        "per patch; mean over the windows"
    )
    out_of_distribution: float | None = Field(
        description="share of the windows whose percentile is below 0.5 or above 99.5; null where "
        "`dynamics` are not those of the training"
    )
    components: dict[str, Change] | SkipJsonSchema[None] = Field(None, json_schema_extra=absent)
    resonance: list[HeadResonance] | SkipJsonSchema[None] = Field(
        None, description="mean of each head", json_schema_extra=absent
    )
    trace: list[TraceEntry] | SkipJsonSchema[None] = Field(
        None,
        description="mean over the windows at each step; one that has stopped stays as it is",
        json_schema_extra=absent,
    )


class Completion(BaseModel):
    """One completed picture."""

    b64_png: str = Field(description="PNG in base64, with the colour profile that was sent")
    convergence: WindowsConvergence
    reasons: Reasons | SkipJsonSchema[None] = Field(
        None,
        description="the mean over the windows, patch by patch",
        json_schema_extra=absent,
    )


class CompleteTimings(Timings):
    decode: float = Field(description="picture to windows, waiting for a place included")


class CompleteResponse(BaseModel):
    """As many completions as were asked for."""

    images: list[Completion]
    model: ModelRef
    dynamics: ResolvedDynamics
    timings_ms: CompleteTimings
    request_id: str


class FrameEvent(BaseModel):
    """The data of `progress`, where the answer comes as events. The components of the energy stand
    beside it by name."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, float | None] = Field(init=False)  # pyright: ignore

    sample: int = Field(description="which completion")
    step: int = Field(description="of all windows and completions together")
    steps: int
    block: int
    energy: float | None = Field(description="per patch, mean over the windows that move")
    b64_png: str = Field(
        description="the picture as it would be if these windows stopped here; where no window of "
        "its size has been yet, a guess from a smaller one, or black"
    )
