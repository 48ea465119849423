"""Every promise of docs/promises.md names tests that are there."""

from __future__ import annotations

import re

import pytest

from tests.support.paths import REPO

_PAGE = (REPO / "docs" / "promises.md").read_text()
_ROWS = [line for line in _PAGE.splitlines() if re.match(r"\| (?!promise )(?!-)", line)]


@pytest.mark.parametrize("row", [line for line in _ROWS if not line.startswith("|---")])
def test_a_promise_is_held_by_tests(row: str) -> None:
    tests = re.findall(r"`(tests/[\w/]+\.py)::(test_\w+)`", row)
    assert tests, "no test is named"
    for path, name in tests:
        source = (REPO / path).read_text()
        assert re.search(rf"^\s*(async )?def {name}\(", source, re.MULTILINE), f"{path}::{name}"


def test_there_are_promises() -> None:
    assert len(_ROWS) > 20
