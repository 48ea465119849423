"""What a client may ask of POST /complete; see `service.schemas`."""

from __future__ import annotations

from pydantic import Field

from service.pictures.masks import MaskMode
from service.schemas import Envelope, Strict

MAX_SAMPLES = 16


class CompleteKnobs(Strict):
    """How to complete a picture."""

    mask_mode: MaskMode = Field(
        "white_fill",
        description="fill where the mask is white, where it is black, or where it is transparent; "
        "with `alpha` and no mask, where the image itself is",
    )
    num_samples: int = Field(
        1, ge=1, le=MAX_SAMPLES, description="completions, which differ where there is noise"
    )


class CompleteRequest(Envelope, CompleteKnobs):
    """Fill the unknown part of a picture. Known pixels come back as they were."""

    image: str = Field(
        description="PNG, JPEG or WebP in base64, or as a data URI; BASIN_MAX_PIXELS caps its size"
    )
    mask: str | None = Field(
        None, description="a picture of the same size; only `alpha` can do without"
    )
