"""Write `client/basin_client/methods.pyi`: `python -m tests.client.method_stubs`."""

from __future__ import annotations

import inspect
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from typing import Any

from basin_client.methods import AsyncMethods, Methods

from tests.support.paths import REPO

PATH = REPO / "client" / "basin_client" / "methods.pyi"
_HEAD = """\
# Written by `python -m tests.client.method_stubs` from the functions that `methods.py` names.

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, TypeVar

import numpy as np

from basin_client.images import ImageInput
from basin_client.request import AlertOptions, AlertRule, Dynamics, Include, Request
from basin_client.results import (
    ClassificationResult,
    CompletionResult,
    ImageResult,
    SampleResult,
    Scores,
)

T = TypeVar("T")
"""


def find_methods(owner: type) -> dict[str, Callable[..., Any]]:
    """Return the methods that are made from functions, by name."""
    return {name: value for name, value in vars(owner).items() if hasattr(value, "__wrapped__")}


def stub_text() -> str:
    """Return the text of the stub, as Ruff formats it."""
    lines = [_HEAD, *_class_lines(Methods, "def"), *_class_lines(AsyncMethods, "async def")]
    command = [sys.executable, "-m", "ruff", "format", "--stdin-filename", str(PATH), "-"]
    return subprocess.run(
        command, input="\n".join(lines), capture_output=True, text=True, check=True
    ).stdout


def _class_lines(owner: type, keyword: str) -> Iterator[str]:
    yield f"class {owner.__name__}(ABC):"
    yield "    @abstractmethod"
    yield f"    {keyword} send(self, request: Request[T]) -> T: ..."
    for name, method in find_methods(owner).items():
        yield f"    {keyword} {name}{_without_quotes(inspect.signature(method))}:"
        yield textwrap.indent(f'"""{inspect.getdoc(method)}\n"""', " " * 8)


class _Text(str):
    """Text that a signature shows without quotes."""

    def __repr__(self) -> str:
        return str(self)


def _without_quotes(signature: inspect.Signature) -> inspect.Signature:
    """Return a signature whose annotations, which are text, print as code."""
    parameters = [
        parameter.replace(annotation=_Text(parameter.annotation))
        if parameter.annotation is not parameter.empty
        else parameter
        for parameter in signature.parameters.values()
    ]
    returned = _Text(signature.return_annotation)
    return signature.replace(parameters=parameters, return_annotation=returned)


if __name__ == "__main__":
    PATH.write_text(stub_text())
