"""Words that no text of the project uses, because they are hard to understand."""

from __future__ import annotations

import re
from pathlib import Path

from tests.support.paths import REPO

WORDS = re.compile(
    r"\b(whoever|nobody|strangers?|so many|is told|at once|what is there|it is none"
    r"|comes to the same)\b",
    re.IGNORECASE,
)
FOLDERS = ("service", "models", "training", "client", "basin", "deploy", "docker", "docs")
FOLDERS += ("README.md", "benchmarks", "examples")
SUFFIXES = frozenset((".py", ".md", ".yml", ".yaml", ".lua", ".json", ".sh", ".toml"))
RECORDS = "docs/decisions/"  # a decision is not edited once it is accepted


def _files(path: Path) -> list[Path]:
    files = [path] if path.is_file() else sorted(path.rglob("*"))
    return [file for file in files if file.suffix in SUFFIXES and file.is_file()]


def find_words(path: Path) -> list[str]:
    """Return `file:line: text` of each line below `path` with one of `WORDS`."""
    return [
        f"{file.relative_to(REPO)}:{number}: {line.strip()}"
        for file in _files(path)
        for number, line in enumerate(file.read_text().splitlines(), 1)
        if WORDS.search(line)
    ]


def test_words_to_avoid() -> None:
    found = [line for folder in FOLDERS for line in find_words(REPO / folder)]
    bad = [line for line in found if not line.startswith(RECORDS)]
    assert not bad, "\n".join(bad)
