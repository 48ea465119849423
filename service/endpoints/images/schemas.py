"""Request and response schemas of `POST /images/classify` and `POST /images/answer`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, Field
from pydantic.json_schema import SkipJsonSchema

from service.endpoints.common.reason_schemas import Reasons
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
from service.endpoints.images.crop import Fit
from service.registry.model_ref import ModelRef

Kind = Literal["non-relational", "relational", "ternary"]
Colour = Literal["red", "green", "blue", "orange", "grey", "yellow"]
_IMAGE = "PNG, JPEG or WebP{}; BASIN_MAX_PIXELS caps the size, BASIN_MAX_IMAGES how many"


class LookKnobs(Strict):
    """How images are shown to a network."""

    fit: Fit = Field(
        "stretch",
        description="how an image is resized to the model's size: `stretch` uses the whole image, "
        "`crop` its center with the right aspect ratio; both average when they shrink",
    )


class ClassifyImagesRequest(Envelope, LookKnobs):
    """Say what images show."""

    image: str | Annotated[list[str], Field(min_length=1)] = Field(
        description=_IMAGE.format(" in base64, or as a data URI")
    )


class ClassifyImagesForm(Envelope, LookKnobs):
    """The same as multipart/form-data: images as files, `model` and `fit` as text, other fields
    as JSON."""

    image: list[bytes] = Field(min_length=1, description=_IMAGE.format(""))


class AskedQuestion(Strict):
    """A question about the object of a colour, or about those of two."""

    asked: Literal[
        "shape",
        "is left",
        "is above",
        "shape of the closest",
        "shape of the furthest",
        "others of its shape",
        "objects between",
        "is any on the line",
        "obtuse triangles",
    ]
    colour: Colour
    other: Colour | None = Field(
        None, description="the second object, for the last three questions only"
    )
    kind: Kind | None = Field(
        None, description="kind of `asked`, which implies it; three questions each"
    )


MAX_QUESTION = 200
AnyQuestion = Annotated[str, Field(max_length=MAX_QUESTION)] | AskedQuestion
_QUESTION = (
    "in English, in one of the forms that GET /models/{name} lists, or by its parts. As many as "
    "images, or one about all, or several about one"
)


class AnswerImagesRequest(ClassifyImagesRequest):
    """Answer questions about images."""

    question: AnyQuestion | Annotated[list[AnyQuestion], Field(min_length=1)] = Field(
        description=_QUESTION
    )


class AnswerImagesForm(ClassifyImagesForm):
    """The same as multipart/form-data: images as files, `model`, `fit` and `question` as text,
    other fields as JSON. A `question` that begins with { or [ is JSON too."""

    question: AnyQuestion | Annotated[list[AnyQuestion], Field(min_length=1)] = Field(
        description=_QUESTION
    )


class Shown(BaseModel):
    """What the network got to see of an image."""

    width: int = Field(description="width of the image that was sent, upright")
    height: int
    fit: Fit
    size: tuple[int, int] = Field(description="width and height of the network's input")


class ImageConvergence(Convergence):
    """How the retrieval of one image went: energies summed over its tokens and layers."""

    energy_percentile: float | None = Field(
        description="percentage of training images with a lower final energy per token"
    )


class ImageLabel(Prediction):
    """What one image shows."""

    index: int = Field(ge=0, description="index of the image")
    image: Shown
    convergence: ImageConvergence
    reasons: Reasons | SkipJsonSchema[None] = Field(None, json_schema_extra=absent)


class QuestionRead(BaseModel):
    """A question as it was understood."""

    text: str = Field(description="the question in its shortest form")
    kind: Kind
    asked: str
    colour: Colour
    other: Colour | SkipJsonSchema[None] = Field(None, json_schema_extra=absent)


class ImageAnswer(BaseModel):
    """The answer to one question about one image."""

    index: int = Field(
        ge=0, description="index of the image, or of the question if there is one image"
    )
    question: QuestionRead
    answer: str = Field(description="the most probable answer")
    probability: float = Field(description="calibrated probability of `answer`")
    probabilities: dict[str, float] = Field(description="calibrated probability of every answer")
    image: Shown
    convergence: ImageConvergence
    reasons: Reasons | SkipJsonSchema[None] = Field(None, json_schema_extra=absent)


class ImageTimings(Timings):
    decode: float = Field(
        description="decoding and resizing images, including the wait for a place"
    )


class _Response(BaseModel):
    model: ModelRef
    dynamics: ResolvedDynamics
    convergence: SummedConvergence
    timings_ms: ImageTimings
    request_id: str


class ClassifyImagesResponse(_Response):
    """One result per image, in order."""

    results: list[ImageLabel]


class AnswerImagesResponse(_Response):
    """One result per image or question, in order."""

    results: list[ImageAnswer]
