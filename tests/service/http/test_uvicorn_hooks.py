"""What `service/http/protocol.py` overrides or reads in uvicorn's HTTP protocol still exists.

uvicorn makes no promise about these names: `pyproject.toml` pins a minor version, and this test
fails first when the pin is raised to a version without one of them.
"""

from __future__ import annotations

import inspect

import pytest
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from service.http import protocol

OVERRIDDEN = {
    "connection_made": ["self", "transport"],
    "connection_lost": ["self", "exc"],
    "data_received": ["self", "data"],
    "on_message_begin": ["self"],
    "on_url": ["self", "url"],
    "on_header": ["self", "name", "value"],
    "on_headers_complete": ["self"],
    "on_body": ["self", "body"],
    "on_message_complete": ["self"],
    "on_response_complete": ["self"],
    "pause_writing": ["self"],
    "resume_writing": ["self"],
    "_start_asgi_task": ["self", "cycle", "app"],
}
CALLED = ("_unset_keepalive_if_required",)
ATTRIBUTES = ("connections", "cycle", "flow", "headers", "parser", "pipeline", "scope", "url")


@pytest.mark.parametrize("name", OVERRIDDEN)
def test_overridden_method_exists_with_the_same_parameters(name: str) -> None:
    method = getattr(HttpToolsProtocol, name)
    assert list(inspect.signature(method).parameters) == OVERRIDDEN[name]


def test_every_override_of_a_private_method_is_listed() -> None:
    own = vars(protocol.BoundedHttpProtocol)
    overrides = {name for name in own if hasattr(HttpToolsProtocol, name) and callable(own[name])}
    assert {name for name in overrides if not name.startswith("__")} == set(OVERRIDDEN)


@pytest.mark.parametrize("name", CALLED)
def test_called_private_method_exists(name: str) -> None:
    assert callable(getattr(HttpToolsProtocol, name))


def test_attributes_are_set_by_the_constructor() -> None:
    source = inspect.getsource(HttpToolsProtocol)
    for name in ATTRIBUTES:
        assert f"self.{name}" in source, name
