"""The site is whole, and the code in it runs."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from contextlib import closing
from html.parser import HTMLParser
from pathlib import Path

import pytest
import typer

from basin.cli import app as basin
from examples.walk import alike, blocks, run
from tests.support.paths import REPO
from training.__main__ import app

DOCS = REPO / "docs"
# `api.md` is run by tests/service/system/test_shipped.py; the commands of `training.md` take data.
_NOT_RUN = ("api.md", "training.md")
PAGES = sorted(
    path
    for path in DOCS.rglob("*.md")
    if path.parent.name != "site" and path.name not in _NOT_RUN and list(blocks(path.read_text()))
)


def _commands(page: str) -> Iterator[str]:
    for block in re.findall(r"^```console\n(.*?)^```", page, re.M | re.S):
        for line in block.replace("\\\n", " ").splitlines():
            yield line.partition(" #")[0].strip()
    yield from re.findall(r"`(python -m training [^`]+)`", page.replace("\n", " "))


COMMANDS = [
    (path.name, line)
    for path in (REPO / "README.md", *sorted(DOCS.rglob("*.md")))
    for line in dict.fromkeys(_commands(path.read_text()))
]


class Links(HTMLParser):
    """What a page fetches, and where its links lead."""

    def __init__(self) -> None:
        super().__init__()
        self.fetched, self.links = list[str](), list[str]()
        self.ids = set[str]()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        told = dict(attrs)
        if told.get("id"):
            self.ids.add(str(told["id"]))
        if tag in ("script", "img", "iframe") and told.get("src"):
            self.fetched.append(str(told["src"]))
        if tag == "link" and told.get("rel") in ("stylesheet", "icon", "preconnect", "preload"):
            self.fetched.append(str(told["href"]))
        if tag == "a" and told.get("href"):
            self.links.append(str(told["href"]))


def test_every_link_leads_somewhere_and_nothing_is_fetched_from_elsewhere(site: Path) -> None:
    read = dict[Path, Links]()
    for path in site.rglob("*.html"):
        read[path] = Links()
        read[path].feed(path.read_text())
    assert len(read) > 40
    for path, page in read.items():
        if path.name == "404.html":
            continue
        for link in (*page.fetched, *page.links):
            target, _, anchor = link.partition("#")
            if re.match(r"https?:|mailto:", link):
                assert link not in page.fetched
                continue
            there = (path.parent / target).resolve() if target else path
            assert there.is_file(), (path, link)
            if anchor and there in read:
                assert anchor in read[there].ids, (path, link)


def test_routes_formulas_and_cards_are_there(site: Path) -> None:
    routes = (site / "reference.html").read_text()
    assert 'id="post-anomalyscore"' in routes
    assert 'id="scoreresponse"' in routes
    formulas = (site / "mathematics.html").read_text()
    assert formulas.count("<math") > 20
    assert "arithmatex" not in formulas
    cards = {path.stem: path.read_text() for path in (site / "models").glob("*.html")}
    assert set(cards) == {path.name for path in (REPO / "checkpoints").iterdir() if path.is_dir()}
    for card in cards.values():
        assert "Data and terms" in card
        assert "library_name" not in card  # the metadata is for hubs


def test_the_page_comes_first_and_decisions_last(site: Path) -> None:
    sidebar = (site / "index.html").read_text().partition("md-nav--primary")[2]
    order = re.findall(r'href="([\w./-]+\.html)"', sidebar.partition("md-content")[0])
    pages = list(dict.fromkeys(order))
    assert pages[:3] == ["index.html", "page.html", "images.html"]
    decisions = [page for page in pages if page.startswith("decisions/")]
    assert len(decisions) == len(list((DOCS / "decisions").glob("*.md")))
    assert pages[-len(decisions) :] == decisions


@pytest.mark.parametrize("walk", ["chemist", "fraud", "pictures", "researcher", "transactions"])
def test_walks_of_users_have_a_picture(walk: str) -> None:
    page = (DOCS / "walks" / f"{walk}.md").read_text()
    assert re.search(r"^!\[[^\]]+\]\(\.\./figures/", page, re.M)


@pytest.fixture(scope="module")
def shipped(start, wait, answers) -> str:
    one = start()
    wait(lambda: answers(one, "/health/ready", 200))
    return one.url


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.relative_to(DOCS).as_posix())
def test_the_code_of_a_page_prints_what_it_says(path: Path, shipped: str) -> None:
    with closing(run(path.read_text(), shipped)) as each:
        for block, printed in each:
            assert block.prints is None or alike(printed, block.prints), f"{printed}\n{block}"


def test_there_is_a_walk_for_everyone() -> None:
    walks = {path.stem for path in PAGES if path.parent.name == "walks"}
    assert walks == {"transactions", "fraud", "chemist", "pictures", "researcher", "operator"}
    assert all(sum(1 for _ in blocks(path.read_text())) > 1 for path in PAGES if path.stem in walks)


def test_every_output_is_compared() -> None:
    for path in PAGES:
        page = path.read_text()
        told = len(re.findall(r"^```text$", page, re.M))
        compared = sum(block.prints is not None for block in blocks(page))
        assert told - compared == (path.name == "index.md"), path  # `make serve` is no output


def test_no_fence_is_overlooked() -> None:
    for path in DOCS.rglob("*.md"):
        opened = re.findall(r"^[ \t]*(?:```|~~~).*$", path.read_text(), re.M)
        assert all(re.fullmatch(r"```\w*", line) for line in opened), path


def test_no_other_code_is_in_the_docs() -> None:
    for path in DOCS.rglob("*.md"):
        fences = re.findall(r"^```(\w*)\n(.*?)^```$", path.read_text(), re.M | re.S)
        for language, code in fences:
            assert language in ("python", "sh", "text", "console", "json", ""), path
            if language == "json":
                json.loads(code)


@pytest.mark.parametrize(("page", "line"), COMMANDS)
def test_commands_that_take_long_are_commands(page: str, line: str) -> None:
    """They need data, hours or Docker, and are not run here; they are parsed."""
    words = [word for word in shlex.split(line) if not re.match(r"[A-Z_]+=", word)]
    if words[0] == "docker":
        files = [words[i + 1] for i, word in enumerate(words) if word == "-f"]
        assert all((REPO / file).is_file() for file in files)
        return
    if words[0] == "basin":
        command = typer.main.get_command(basin).commands[words[1]]  # type: ignore[attr-defined]
        command.make_context(words[1], words[2:])
        return
    assert words[:2] == ["python", "-m"]
    if words[2:] == ["training", "--help"]:
        return
    if words[2] == "training":
        command = typer.main.get_command(app).commands[words[3]]  # type: ignore[attr-defined]
        command.make_context(words[3], words[4:])
        return
    module = REPO / words[2].replace(".", "/")
    assert module.with_suffix(".py").is_file() or (module / "__main__.py").is_file()


def test_what_is_alike() -> None:
    assert alike("a 1.00 b\n", "a  1.01 b")
    assert not alike("a 1.00 b", "a 1.10 b")
    assert not alike("a 1.00 b", "c 1.00 b")
    assert not alike("1 2", "1")
    assert not alike("401", "403")
    assert not alike("60 nodes", "61 nodes")
    assert alike("-0.0001", "0.0001")
