"""Nothing of the site is cut off at the right edge of a window."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

# Of the text, what ends right of the window and has no box around it that scrolls.
FIND_CUT_OFF = """() => {
  const scrolls = (node) => ["auto", "scroll"].includes(getComputedStyle(node).overflowX);
  const isReachable = (node) => {
    for (let box = node; box.tagName !== "ARTICLE"; box = box.parentElement) {
      if (scrolls(box) && box.getBoundingClientRect().right <= innerWidth + 1) return true;
    }
    return false;
  };
  return [...document.querySelectorAll("article *")]
    .filter((node) => node.getBoundingClientRect().right > innerWidth + 1 && !isReachable(node))
    .map((node) => `${node.tagName}: ${node.textContent.slice(0, 80)}`);
}"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api")
    if (path := shutil.which("chromium") or shutil.which("google-chrome")) is None:
        pytest.skip("no chromium: install it to test the layout of the site")
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.mark.parametrize("width", [1280, 420])
def test_nothing_is_cut_off(site: Path, browser: Any, width: int) -> None:
    page = browser.new_page(viewport={"width": width, "height": 900})
    cut_off = dict[str, list[str]]()
    paths = sorted(site.rglob("*.html"))
    for path in paths:
        page.goto(path.as_uri())
        if page.evaluate("document.documentElement.scrollWidth > innerWidth"):
            cut_off[path.name] = ["the page is wider than the window"]
        if nodes := page.evaluate(FIND_CUT_OFF):
            cut_off[path.name] = nodes
    page.close()
    assert len(paths) > 40
    assert cut_off == {}
