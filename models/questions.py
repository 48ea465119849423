"""What can be asked about the six objects of a Sort-of-CLEVR picture, and how it is written down.

After Santoro et al. 2017; questions on two objects are kimhc6028/relational-networks' addition.
"""

from __future__ import annotations

import numpy as np

COLOURS = ("red", "green", "blue", "orange", "grey", "yellow")
ANSWERS = ("yes", "no", "square", "circle", "0", "1", "2", "3", "4", "5")
QUESTIONS = {
    "non-relational": ("shape", "is left", "is above"),
    "relational": ("shape of the closest", "shape of the furthest", "others of its shape"),
    "ternary": ("objects between", "is any on the line", "obtuse triangles"),
}
WIDTH = 2 * len(COLOURS) + 6


def encode(kind: str, asked: str, colour: str, other: str | None = None) -> np.ndarray:
    """A question (18,) float32: colour, other colour, kind and what is asked, each one-hot.

    `other` belongs to ternary questions, and to them alone.

    Raises:
        ValueError: there is no such question.
    """
    if kind not in QUESTIONS or asked not in QUESTIONS[kind]:
        raise ValueError(f"there is no {kind} question {asked!r}")
    if colour not in COLOURS or (other is not None and other not in COLOURS):
        raise ValueError(f"colours are {', '.join(COLOURS)}")
    if (kind == "ternary") != (other is not None) or colour == other:
        raise ValueError("a ternary question is about two colours, any other about one")
    question = np.zeros(WIDTH, np.float32)
    question[COLOURS.index(colour)] = 1
    if other is not None:
        question[len(COLOURS) + COLOURS.index(other)] = 1
    question[12 + list(QUESTIONS).index(kind)] = 1
    question[15 + QUESTIONS[kind].index(asked)] = 1
    return question
