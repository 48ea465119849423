"""Parse bodies of POST /images/classify and /images/answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from models.base import DynamicsParams
from models.inputs import questions
from models.inputs.image_files.header import EncodedImage
from models.inputs.questions import COLORS, Question
from service.endpoints.common.envelope import read_envelope, require_supported_params
from service.endpoints.common.include import require_response_size, require_supported_includes
from service.endpoints.images.crop import Fit
from service.endpoints.images.schemas import (
    MAX_QUESTION,
    AnswerImagesRequest,
    AskedQuestion,
    ClassifyImagesRequest,
    LookKnobs,
)
from service.errors import FieldError, Problem, make_problem, pointer, unknown_fields
from service.imaging.upload import UploadSpec, inspect_file, parse_upload
from service.registry.handles import ImageClassifier, ImageModel, VisualQuestionModel
from service.registry.registry import Registry
from service.settings import Settings
from service.validation.schema_errors import make_request_problem, validate_fields


@dataclass(frozen=True)
class ImageInputs:
    """Inspected but not decoded images with their JSON pointers, and questions: none, as many as
    images, or one of either."""

    model: ImageModel
    images: list[tuple[str, EncodedImage]]
    questions: list[Question]
    fit: Fit
    params: DynamicsParams
    include: frozenset[str]

    @property
    def rows(self) -> list[tuple[int, Question | None]]:
        """For each result the index of its image, and its question."""
        asked: Sequence[Question | None] = self.questions or [None]
        count = max(len(self.images), len(asked))
        return [(i % len(self.images), asked[i % len(asked)]) for i in range(count)]


def read_look(
    body: bytes,
    content_type: str,
    kind: type[ImageClassifier] | type[VisualQuestionModel],
    registry: Registry,
    settings: Settings,
) -> ImageInputs:
    """Parse a body.

    Args:
        content_type: the header, of JSON or `MULTIPART`, with its parameters.

    Raises:
        Problem: of the first stage that fails: syntax, envelope, model, questions, images.
    """
    answers = kind is VisualQuestionModel
    known = (AnswerImagesRequest if answers else ClassifyImagesRequest).model_fields
    shape = UploadSpec(known, {"image": settings.max_images}, ("model", "fit", "question"))
    fields, files = parse_upload(body, content_type, shape)
    envelope = read_envelope(fields, known, settings)
    params = validate_fields(LookKnobs, fields)
    default = settings.default_answer_model if answers else settings.default_picture_model
    model = registry.get_of_kind(kind, envelope.model or default)
    require_supported_params(envelope.dynamics, model.network.config)
    require_supported_includes(model.network, envelope.include)
    asked = _questions(fields, model, settings) if isinstance(model, VisualQuestionModel) else []
    if "image" not in files:
        raise make_problem(
            "invalid-request", "/image", "missing", "No image was sent. Send at least one image."
        )
    images = [(file.pointer, inspect_file(file, settings.max_pixels)) for file in files["image"]]
    if asked and 1 != len(asked) != len(images) != 1:
        rule = (
            f"{len(asked)} questions and {len(images)} images were sent. Send as many "
            "questions as images, or one of either."
        )
        raise make_problem("invalid-request", "/question", "wrong_shape", rule)
    task = ImageInputs(
        model, images, asked, params.fit, envelope.dynamics.to_params(), frozenset(envelope.include)
    )
    tokens = [model.config.num_tokens] * len(task.rows)
    require_response_size(model.network, task.params, task.include, tokens, settings)
    return task


def _questions(
    fields: Mapping[str, Any], model: VisualQuestionModel, settings: Settings
) -> list[Question]:
    given = fields.get("question")
    if given is None:
        detail = "No question was sent. Send at least one question."
        raise make_problem("invalid-request", "/question", "missing", detail)
    if type(given) is str and given[:1] in ("{", "["):  # of a form, where all is text
        try:
            given = orjson.loads(given)
        except ValueError:
            detail = "Must be JSON, or plain text that does not start with `{` or `[`."
            raise make_problem("invalid-request", "/question", "wrong_type", detail) from None
    if type(given) is not list:
        return [_question(given, model.question_kinds, "question")]
    if not given:
        detail = "The list is empty. Send at least one question."
        raise make_problem("invalid-request", "/question", "empty", detail)
    if len(given) > settings.max_images:
        rule = (
            f"{len(given)} questions were sent; at most {settings.max_images} "
            "(BASIN_MAX_IMAGES) are allowed. Send several requests."
        )
        raise make_problem("invalid-request", "/question", "too_many", rule)
    return [_question(each, model.question_kinds, "question", i) for i, each in enumerate(given)]


def _question(value: object, kinds: Sequence[str], *where: str | int) -> Question:
    """Parse a question of one of `kinds`, given as a sentence or an object."""
    try:
        if type(value) is str:
            question = questions.parse_question(value) if len(value) <= MAX_QUESTION else None
        elif isinstance(value, dict):
            question = _by_parts(value, *where)
        else:
            rule = "Must be a question in English, or an object with `asked` and `colour`."
            raise make_problem("invalid-request", pointer(*where), "wrong_type", rule)
    except ValueError as error:  # of `Question`; its message never quotes the input
        raise make_problem("invalid-request", pointer(*where), "conflict", str(error)) from None
    if question is None or question.kind not in kinds:
        raise _not_understood(kinds, pointer(*where))
    return question


def _by_parts(fields: dict[str, Any], *where: str | int) -> Question:
    if faults := unknown_fields(fields, AskedQuestion.model_fields, *where):
        raise make_request_problem(faults)
    asked = validate_fields(AskedQuestion, fields, *where)
    return Question(
        asked.kind or questions.get_question_kind(asked.asked),
        asked.asked,
        asked.colour,
        asked.other,
    )


def _not_understood(kinds: Sequence[str], where: str) -> Problem:
    """Return the problem with the supported forms, one error per kind."""
    rule = (
        "The question has no supported form. Use one of these, with the color "
        f"{', '.join(COLORS[:-1])} or {COLORS[-1]}."
    )
    forms = [
        FieldError(where, "not_a_form", f"`{kind}`: {' '.join(sentences)}")
        for kind, sentences in questions.list_example_questions(kinds).items()
    ]
    return Problem("invalid-request", rule, forms)
