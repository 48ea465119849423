"""What can be asked about the six objects of a Sort-of-CLEVR picture, and how it is written down.

After Santoro et al. 2017; questions on two objects are kimhc6028/relational-networks' addition.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

COLORS = ("red", "green", "blue", "orange", "grey", "yellow")
ANSWERS = ("yes", "no", "square", "circle", "0", "1", "2", "3", "4", "5")
QUESTIONS = {
    "non-relational": ("shape", "is left", "is above"),
    "relational": ("shape of the closest", "shape of the furthest", "others of its shape"),
    "ternary": ("objects between", "is any on the line", "obtuse triangles"),
}
QUESTION_WIDTH = 2 * len(COLORS) + 6

_ONE = rf"(?:the )?({'|'.join(COLORS)})(?: (?:object|one))?"
_OF = "(?: of the (?:picture|image))?"
_ANY = "(?:other )?objects?"
_THE = "what (?:is the shape of|shape is) the (?:object )?"
# Of each question a sentence, and the sentences that are read as it: lower case, no full stop.
_FORMS = {
    "shape": ("What is the shape of {}?", f"what (?:is the shape of|shape (?:is|has)) {_ONE}"),
    "is left": (
        "Is {} in the left half of the picture?",
        f"is {_ONE} (?:on|in|at|to) the left(?: half| side)?{_OF}",
    ),
    "is above": (
        "Is {} in the upper half of the picture?",
        f"is {_ONE} (?:on|in|at) the (?:top|upper)(?: half| side)?{_OF}",
    ),
    "shape of the closest": (
        "What is the shape of the object closest to {}?",
        f"{_THE}(?:closest|nearest)(?: object)? to {_ONE}",
    ),
    "shape of the furthest": (
        "What is the shape of the object furthest from {}?",
        f"{_THE}f[ua]rthest(?: object)? from {_ONE}",
    ),
    "others of its shape": (
        "How many other objects have the same shape as {}?",
        f"how many {_ANY} have the (?:same )?shape (?:as|of) {_ONE}",
    ),
    "objects between": (
        "How many objects are between {} and {}?",
        f"how many {_ANY} are between {_ONE} and {_ONE}",
    ),
    "is any on the line": (
        "Is any object on the line through {} and {}?",
        f"(?:is|are) (?:there )?any {_ANY} on the line (?:through|between) {_ONE} and {_ONE}",
    ),
    "obtuse triangles": (
        "How many objects form an obtuse triangle with {} and {}?",
        f"how many (?:{_ANY} )?(?:form|make) an obtuse triangle with {_ONE} and {_ONE}",
    ),
}


@dataclass(frozen=True)
class Question:
    """`asked`, one of its `kind`, about a colour's object; a ternary one about two.

    Raises:
        ValueError: there is no such question.
    """

    kind: str
    asked: str
    colour: str
    other: str | None = None

    def __post_init__(self) -> None:
        if self.kind not in QUESTIONS or self.asked not in QUESTIONS[self.kind]:
            raise ValueError(f"there is no {self.kind} question {self.asked!r}")
        if not {self.colour, self.other} <= {*COLORS, None}:
            raise ValueError(f"colours are {', '.join(COLORS)}")
        if (self.kind == "ternary") != (self.other is not None) or self.colour == self.other:
            raise ValueError("a ternary question is about two colours, any other about one")

    @property
    def text(self) -> str:
        """The question in words, as `read` understands it."""
        colours = (self.colour, self.other)
        return _FORMS[self.asked][0].format(*(f"the {c} object" for c in colours if c))

    def encode(self) -> np.ndarray:
        """(18,) float32: colour, other colour, kind and what is asked, each one-hot."""
        question = np.zeros(QUESTION_WIDTH, np.float32)
        question[COLORS.index(self.colour)] = 1
        if self.other is not None:
            question[len(COLORS) + COLORS.index(self.other)] = 1
        question[12 + list(QUESTIONS).index(self.kind)] = 1
        question[15 + QUESTIONS[self.kind].index(self.asked)] = 1
        return question


def encode_question(kind: str, asked: str, colour: str, other: str | None = None) -> np.ndarray:
    """`Question(...).encoded()`.

    Raises:
        ValueError: there is no such question.
    """
    return Question(kind, asked, colour, other).encode()


def get_question_kind(asked: str) -> str:
    """The kind that a question belongs to."""
    return next(kind for kind, every in QUESTIONS.items() if asked in every)


def parse_question(text: str) -> Question | None:
    """The question that an English sentence asks; None if it has none of the fixed forms.

    Raises:
        ValueError: the form is known, but it is about one colour twice.
    """
    plain = " ".join(text.lower().replace("gray", "grey").split()).rstrip("?. ")
    for asked, (_, pattern) in _FORMS.items():
        if found := re.fullmatch(pattern, plain):
            return Question(get_question_kind(asked), asked, *found.groups())
    return None


def list_example_questions(kinds: Collection[str] = tuple(QUESTIONS)) -> dict[str, list[str]]:
    """An example of each form of these kinds, about red and green objects."""
    return {
        kind: [
            Question(kind, asked, "red", "green" if kind == "ternary" else None).text
            for asked in QUESTIONS[kind]
        ]
        for kind in QUESTIONS
        if kind in kinds
    }
