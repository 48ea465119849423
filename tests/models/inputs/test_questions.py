"""Questions in words, by their parts, and as the network sees them."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest

from models.inputs.questions import (
    COLORS,
    QUESTIONS,
    Question,
    get_question_kind,
    list_example_questions,
    parse_question,
)

EVERY = [
    Question(kind, asked, *colours)
    for kind, every in QUESTIONS.items()
    for asked in every
    for colours in permutations(COLORS, 2 if kind == "ternary" else 1)
]


def test_every_question_is_read_as_itself_and_seen_as_no_other():
    assert len(EVERY) == 6 * 6 + 3 * 30
    assert all(parse_question(question.text) == question for question in EVERY)
    assert all(question.encode().sum() in (3, 4) for question in EVERY)
    assert len(np.unique([question.encode() for question in EVERY], axis=0)) == len(EVERY)
    assert [get_question_kind(question.asked) for question in EVERY] == [q.kind for q in EVERY]


@pytest.mark.parametrize(
    ("text", "asked", "colours"),
    [
        ("what shape is the gray object", "shape", ("grey",)),
        ("  WHAT IS THE SHAPE OF RED ?", "shape", ("red",)),
        ("Is the blue one on the left of the image?", "is left", ("blue",)),
        ("Is the blue object at the top?", "is above", ("blue",)),
        ("What shape is the object nearest to yellow?", "shape of the closest", ("yellow",)),
        ("What shape is the farthest object from the red one", "shape of the furthest", ("red",)),
        ("How many objects have the shape of the green object?", "others of its shape", ("green",)),
        ("How many objects are between red and blue?", "objects between", ("red", "blue")),
        (
            "Are any objects on the line between red and blue?",
            "is any on the line",
            ("red", "blue"),
        ),
        (
            "How many make an obtuse triangle with red and blue?",
            "obtuse triangles",
            ("red", "blue"),
        ),
    ],
)
def test_other_words_for_it(text, asked, colours):
    assert parse_question(text) == Question(get_question_kind(asked), asked, *colours)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "?",
        "Is the red object on the right?",
        "What is the shape of the pink object?",
        "What is the shape of the red object? And the green one?",
        "shape",
        "red",
    ],
)
def test_what_is_none_of_the_forms(text):
    assert parse_question(text) is None


def test_questions_there_are_none_of():
    for bad in (
        ("unary", "shape", "red"),
        ("relational", "shape", "red"),
        ("relational", "shape of the closest", "red", "blue"),
        ("ternary", "objects between", "red"),
        ("ternary", "objects between", "red", "red"),
        ("non-relational", "shape", "pink"),
    ):
        with pytest.raises(ValueError, match=r"."):
            Question(*bad)


def test_sentences_are_examples_of_every_form():
    told = list_example_questions()
    assert {kind: len(every) for kind, every in told.items()} == dict.fromkeys(QUESTIONS, 3)
    assert list(list_example_questions(("relational",))) == ["relational"]
    assert all(parse_question(sentence) for every in told.values() for sentence in every)
