"""`select_media_type` against RFC 9110 section 12.5.1."""

from __future__ import annotations

import pytest
from starlette.requests import Request

from service.errors import Problem
from service.http.negotiation import select_media_type

OFFERED = ("application/json", "application/vnd.safetensors", "image/png")


def request_with(accept: str | None) -> Request:
    headers = [] if accept is None else [(b"accept", accept.encode())]
    return Request({"type": "http", "headers": headers})


@pytest.mark.parametrize(
    ("accept", "expected"),
    [
        (None, "application/json"),
        ("*/*", "application/json"),
        ("image/png", "image/png"),
        ("image/*", "image/png"),
        ("IMAGE/PNG", "image/png"),
        ("application/json;q=0.5, image/png;q=0.9", "image/png"),
        # A more specific range decides, whatever the quality of a wider one is.
        ("*/*, application/json;q=0", "application/vnd.safetensors"),
        ("application/*;q=0.2, application/json;q=0.1", "application/vnd.safetensors"),
        ("image/png;level=1;q=0.3, application/json;q=0.2", "image/png"),
        ("text/html, application/xhtml+xml, */*;q=0.8", "application/json"),
    ],
)
def test_the_type_of_the_highest_quality_is_selected(accept: str | None, expected: str) -> None:
    assert select_media_type(request_with(accept), OFFERED) == expected


@pytest.mark.parametrize(
    "accept", ["text/html", "application/json;q=0", "image/png;q=nonsense", "*/*;q=0", "image", ","]
)
def test_types_that_are_not_offered_are_refused(accept: str) -> None:
    with pytest.raises(Problem) as error:
        select_media_type(request_with(accept), OFFERED)
    assert error.value.kind == "not-acceptable"
    assert all(name in error.value.detail for name in OFFERED)
