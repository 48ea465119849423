"""What `help`, `inspect` and editors show of the methods of both clients."""

from __future__ import annotations

import inspect
import re
import typing
from collections.abc import Callable
from typing import Any

import pytest
from basin_client import AsyncClient, Client, graph_operations, operations, transaction_operations
from basin_client.methods import AsyncMethods, Methods

from tests.client import method_stubs

MODULES = (operations, graph_operations, transaction_operations)


def build_functions() -> dict[str, Callable[..., Any]]:
    """Return the public functions that build a request, by name."""
    return {
        name: function
        for module in MODULES
        for name, function in inspect.getmembers(module, inspect.isfunction)
        if function.__module__.endswith("operations")
        and not name.startswith("_")
        and function.__annotations__["return"].startswith("Request[")
    }


FUNCTIONS = build_functions()


def test_every_function_is_a_method_of_both_clients() -> None:
    assert len(FUNCTIONS) >= 24
    for owner in (Methods, AsyncMethods):
        assert method_stubs.find_methods(owner).keys() == FUNCTIONS.keys()


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("owner", [Client, AsyncClient])
def test_signature_is_that_of_the_function(owner: type, name: str) -> None:
    method, function = getattr(owner, name), FUNCTIONS[name]
    of_method, of_function = inspect.signature(method), inspect.signature(function)
    first, *parameters = of_method.parameters.values()
    assert first.name == "self"
    assert parameters == list(of_function.parameters.values())
    assert of_function.return_annotation == f"Request[{of_method.return_annotation}]"
    hints = typing.get_type_hints(method)
    (result,) = typing.get_args(typing.get_type_hints(function)["return"])
    assert hints == {**typing.get_type_hints(function), "return": result}
    assert inspect.iscoroutinefunction(method) == (owner is AsyncClient)
    # Of an instance, as Jupyter shows it.
    bound = inspect.signature(getattr(owner(), name))
    assert list(bound.parameters.values()) == parameters


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("owner", [Client, AsyncClient])
def test_docstring_has_every_parameter_result_and_error(owner: type, name: str) -> None:
    method = getattr(owner, name)
    assert method.__name__ == name
    require_sections(method)


@pytest.mark.parametrize(
    "name", ["send", "submit", "graph_schema", "stream", "events", "watch_alerts"]
)
def test_methods_of_the_client_itself_are_described(name: str) -> None:
    require_sections(getattr(Client, name))
    assert inspect.getdoc(getattr(AsyncClient, name)) == f"As `Client.{name}`."


def require_sections(method: Callable[..., Any]) -> None:
    """Check a docstring for Args with each parameter, Returns (unless None), and Raises."""
    doc = inspect.getdoc(method) or ""
    summary, *sections = doc.split("\n\n")
    assert len(summary.splitlines()) == 1
    assert summary.endswith(".")
    entries = {section.partition("\n")[0]: section for section in sections}
    signature = inspect.signature(method)
    names = signature.parameters.keys() - {"self"}
    described = re.findall(r"^    (\w+):", entries.get("Args:", ""), re.MULTILINE)
    assert sorted(described) == sorted(names)
    assert ("Returns:" in entries) == (signature.return_annotation != "None")
    assert "Raises:" in entries


def test_stub_is_up_to_date() -> None:
    assert method_stubs.PATH.read_text() == method_stubs.stub_text(), (
        "run `python -m tests.client.method_stubs`"
    )


def test_call_without_an_argument_names_the_function() -> None:
    method: Any = Client().score  # without types, so that the wrong call is possible
    with pytest.raises(TypeError, match=r"score\(\) missing 1 required positional argument"):
        method()
