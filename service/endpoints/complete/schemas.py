"""What a client may ask of POST /complete; see `service.endpoints.common.schemas`."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic.json_schema import SkipJsonSchema

from models.dynamics import StopReason
from service.endpoints.common.memory_schemas import MemoryRef
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
    """How to complete an image."""

    memory: str | None = Field(
        None,
        max_length=64,
        description="in place of `model`: an id from GET /memories, of images of the size of this "
        "one, that the hole is filled from",
    )
    mask_mode: MaskMode = Field(
        "white_fill",
        description="which pixels to fill: the white, the black or the transparent ones of the "
        "mask; with `alpha` and no mask, the transparent ones of the image. `soft`: all that are "
        "lighter than black (4 of 255 or more), each blended with what it was by how white the "
        "mask is",
    )
    region: Literal["image", "hole"] = Field(
        "image",
        alias="return",
        description="what comes back: the whole image, or of it the smallest rectangle with all "
        "that was filled, whose place `box` tells",
    )
    num_samples: int = Field(
        1,
        ge=1,
        le=MAX_SAMPLES,
        description="number of completions, which differ by their noise: the first uses `seed`, "
        "the next `seed` + 1, and so on",
    )


class CompleteRequest(Envelope, CompleteKnobs):
    """Fill the unknown part of an image. Known pixels come back as they were."""

    image: str = Field(
        description="PNG, JPEG or WebP as base64 or data URI, at most BASIN_MAX_PIXELS pixels"
    )
    mask: str | None = Field(
        None, description="an image of the same size; optional only with `mask_mode` `alpha`"
    )


class CompleteForm(Envelope, CompleteKnobs):
    """The same as multipart/form-data: images as files, `model`, `memory` and `mask_mode` as text,
    other fields as JSON."""

    image: bytes = Field(description="PNG, JPEG or WebP, at most BASIN_MAX_PIXELS pixels")
    mask: bytes | None = Field(
        None, description="an image of the same size; optional only with `mask_mode` `alpha`"
    )


class Box(BaseModel):
    """A rectangle of an image, in pixels."""

    left: int
    top: int
    width: int
    height: int


class WindowsConvergence(BaseModel):
    """How the windows of one completion moved. Energies are per patch, the mean over all
    windows. A number that is not finite is null."""

    windows: int = Field(
        description="number of windows that the network relaxed, at all scales; three per window "
        "if a grayscale model completes an RGB image. A memory has one window, the whole image"
    )
    energy_initial: float | None
    energy_final: float | None
    energy_drop: float | None
    steps: int = Field(description="total")
    residual: float | None = Field(description="the largest; null without steps")
    stop_reason: StopReason = Field(description="the worst")
    stops: dict[str, int] = Field(description="number of windows by stop reason")
    energy_rose: float | None = Field(
        description="share of the windows whose energy was higher after any step than before it, "
        "by more than rounding; null with `noise`, and without steps"
    )
    energy_percentile: float | None = Field(
        description="percentage of training images, with as much hidden, that have a lower "
        "final energy per patch; mean over the windows"
    )
    out_of_distribution: float | None = Field(
        description="share of the windows with a percentile below 0.5 or above 99.5; null if "
        "`dynamics` differ from those of the training"
    )
    components: dict[str, Change] | SkipJsonSchema[None] = Field(None, json_schema_extra=absent)
    resonance: list[HeadResonance] | SkipJsonSchema[None] = Field(
        None, description="mean of each head", json_schema_extra=absent
    )
    trace: list[TraceEntry] | SkipJsonSchema[None] = Field(
        None,
        description="mean over the windows at each step; a stopped window keeps its last state",
        json_schema_extra=absent,
    )


class Completion(BaseModel):
    """One completed image."""

    b64_png: str = Field(description="PNG as base64, with the color profile that was sent")
    b64_uncertainty_png: str | SkipJsonSchema[None] = Field(
        None,
        description="grayscale PNG as base64: the absolute error to expect of each filled pixel, "
        "mean over channels, 255 being as much as from black to white; 0 where pixels were known",
        json_schema_extra=absent,
    )
    convergence: WindowsConvergence
    reasons: Reasons | SkipJsonSchema[None] = Field(
        None,
        description="the mean over the windows, patch by patch",
        json_schema_extra=absent,
    )


class CompleteTimings(Timings):
    decode: float = Field(description="image to windows, waiting for a place included")


class CompleteResponse(BaseModel):
    """As many completions as were asked for."""

    images: list[Completion]
    box: Box | SkipJsonSchema[None] = Field(
        None,
        description="where `return` is `hole`: the place of all images",
        json_schema_extra=absent,
    )
    model: ModelRef | SkipJsonSchema[None] = Field(
        None, description="absent where `memory` is there", json_schema_extra=absent
    )
    memory: MemoryRef | SkipJsonSchema[None] = Field(
        None, description="the memory that filled the hole", json_schema_extra=absent
    )
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
    windows: list[int] = Field(
        description="places of the windows that relax now, among the `windows` of the completion's "
        "convergence, from 0 in the order in which they relax: small scales first"
    )
    energy_drop: float | None = Field(
        description="by how much the energy of the whole completion has fallen, per patch, mean "
        "over all its windows; those that have not begun have not fallen. It ends at `energy_drop` "
        "of the convergence, whose `energy_initial` less it is the energy of the whole completion"
    )
    energy: float | None = Field(
        description="in this block, per patch, mean over the windows that relax now; so are its "
        "components"
    )
    b64_png: str = Field(
        description="the image as it would be if these windows stopped here; where no window of "
        "its size has been yet, a guess from a smaller one, or the prefill"
    )
