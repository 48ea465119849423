"""Take the pictures of the page that the docs show, with the browser that the system has.

    python -m docs.site.take_pictures [--server http://127.0.0.1:8000] [--browser chromium]

It needs a server with the checkpoints that ship, and writes docs/figures/page-<name>.jpg. The test
of the tab Pictures takes docs/figures/page.jpg.
"""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Callable
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

FIGURES = Path(__file__).parents[1] / "figures"
SIZE = 1100, 760  # CSS pixels, as wide as a figure in the text is on a large screen


def classify_molecules(page: Page) -> None:
    page.get_by_label("SMILES, one a line").fill(
        "O=[N+]([O-])c1ccc(N)cc1 nitroaniline\nCCO ethanol"
    )
    page.get_by_role("button", name="Classify").click()
    page.get_by_role("button", name="Why? nitroaniline").click()
    page.locator("img.drawing").wait_for()


def score_graph(page: Page) -> None:
    page.get_by_role("button", name="Score").click()
    page.locator(".graph canvas").first.wait_for(state="attached")
    page.get_by_role("button", name="n3", exact=True).click()
    page.get_by_text("What moves the score of n3").wait_for()
    page.get_by_label("Threshold").fill("0.15")


def score_transactions(page: Page) -> None:
    page.get_by_label("Model").locator("visible=true").select_option("cdat-payments")
    page.get_by_label("Transactions").wait_for()
    page.get_by_role("button", name="Score").click()
    page.get_by_text("of 4 are alerts.").wait_for()


def draw_energy(page: Page) -> None:
    page.get_by_role("button", name="Relax").wait_for()
    page.get_by_label("Model").locator("visible=true").select_option("cdat-ames")
    page.get_by_role("button", name="Relax").click()
    page.locator("#panel-energy .scroll tbody").get_by_text("1: cdat-ames,").wait_for()
    page.get_by_label("Steps of each block").fill("8")
    page.get_by_label("Keep the previous run in the chart").check()
    page.get_by_role("button", name="Relax").click()
    page.locator("#panel-energy .scroll tbody").get_by_text("2: cdat-ames,").wait_for()


PICTURES: dict[str, tuple[str, Callable[[Page], None]]] = {
    "molecules": ("molecules", classify_molecules),
    "graphs": ("graphs", score_graph),
    "transactions": ("graphs", score_transactions),
    "energy": ("energy", draw_energy),
}
"""The tab of each picture, and what is done there."""


def main() -> None:
    parser = argparse.ArgumentParser(description="Take the pictures of the page in the docs.")
    parser.add_argument("--server", default="http://127.0.0.1:8000")
    parser.add_argument(
        "--browser", default=shutil.which("chromium") or shutil.which("google-chrome")
    )
    given = parser.parse_args()
    if given.browser is None:
        parser.error("no browser: install Chromium, or name one with --browser")
    width, height = SIZE
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=given.browser, args=["--no-sandbox", "--force-prefers-reduced-motion"]
        )
        for name, (tab, use) in PICTURES.items():
            page = browser.new_page(viewport={"width": width, "height": height})
            page.set_default_timeout(60_000)
            page.goto(f"{given.server}/#{tab}")
            use(page)
            page.evaluate("scrollTo(0, 0)")
            page.wait_for_timeout(1000)  # until a graph has found its layout
            path = FIGURES / f"page-{name}.jpg"
            page.screenshot(path=path, type="jpeg", quality=80)
            print(path)
        browser.close()


if __name__ == "__main__":
    main()
