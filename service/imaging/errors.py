"""The problem of an image that cannot be read."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from models.inputs.image_files.data import ImageError
from service.errors import make_problem


@contextmanager
def image_errors_at(where: str) -> Iterator[None]:
    """Convert an `ImageError` to a problem at the JSON pointer `where`.

    Raises:
        Problem: `invalid-image` or `unsupported-image`.
    """
    try:
        yield
    except ImageError as fault:
        raise make_problem(fault.kind, where, fault.code, fault.rule) from None
