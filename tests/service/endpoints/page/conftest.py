"""A server with what ships, and a browser."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.support.server import Server


@pytest.fixture(scope="module")
def server(start, wait, answers, tmp_path_factory) -> Server:
    """All models and memories that ship."""
    folder = tmp_path_factory.mktemp("page")
    one = start(memory_store=folder / "memories", job_store=folder / "jobs.sqlite")
    wait(lambda: answers(one, "/health/ready", 200))
    return one


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    """The browser that the system has. While it is open, no other event loop can run in this
    process, so it is closed with the module."""
    playwright = pytest.importorskip("playwright.sync_api")
    if (path := shutil.which("chromium") or shutil.which("google-chrome")) is None:
        pytest.skip("no chromium: install it to test the pages")
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def open_page(chromium) -> Callable[..., Any]:
    """Opens a page of a server, as a context; what the browser complains of fails the test, and so
    does a request to any other server."""

    @contextmanager
    def opened(url: str, path: str = "/", *, complaints: int = 0, **context: Any) -> Iterator[Any]:
        said, others = list[str](), list[str]()
        browsing = chromium.new_context(**context)
        page = browsing.new_page()
        page.set_default_timeout(60_000)
        page.on("console", lambda message: said.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("request", lambda request: others.append(request.url))
        page.goto(f"{url}{path}")
        try:
            yield page
        finally:
            browsing.close()
        assert len(said) == complaints, said
        allowed = (url, "data:", "blob:")
        assert [other for other in others if not other.startswith(allowed)] == []

    return opened
