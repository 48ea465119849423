"""Run the code in a page of the documentation, and say where it prints something else.

Blocks of `python` share their names down the page; those of `sh` are each a shell of its own, which
stops at the first failure. What a block prints stands in the block of `text` behind it, if there is
one: the same words and whole numbers, others within two percent, for machines round differently.

    python -m examples.walk docs/walks/*.md [--server http://127.0.0.1:8000] [--write]

`--write` puts what was printed into the page.
"""

from __future__ import annotations

import argparse
import io
import math
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import chdir, redirect_stdout, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

EXAMPLES = Path(__file__).resolve().parent
ADDRESS = "http://127.0.0.1:8000"
SECOND = "8010"  # port of a server that a page starts itself
_BLOCK = re.compile(r"^```(python|sh)\n(.*?)^```\n(?:\n^```text\n(.*?)^```\n)?", re.M | re.S)
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:e-?\d+)?")


class Block(NamedTuple):
    """Code, what it is to print (None: nothing is said of that), and where it begins."""

    language: str
    code: str
    prints: str | None
    start: int


def blocks(page: str) -> Iterator[Block]:
    for found in _BLOCK.finditer(page):
        yield Block(found[1], found[2], found[3], found.start())


def run(page: str, server: str) -> Iterator[tuple[Block, str]]:
    """Run each block, in a folder with the examples in it; with what it prints.

    Raises:
        subprocess.CalledProcessError: a shell failed.
    """
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    names: dict[str, Any] = {"__name__": "__main__"}
    with TemporaryDirectory() as folder, chdir(folder):
        shutil.copytree(EXAMPLES, "examples", ignore=shutil.ignore_patterns("__pycache__"))
        try:
            for block in blocks(page):
                code = block.code.replace(ADDRESS, server).replace(SECOND, port)
                printed = _python(code, names) if block.language == "python" else _shell(code)
                yield block, printed.replace(server, ADDRESS).replace(port, SECOND)
        finally:
            if "basin" in names:
                names["basin"].close()
            if (pid := Path("server.pid")).exists():  # of a server that the page began
                with suppress(ProcessLookupError):
                    os.kill(int(pid.read_text()), signal.SIGTERM)


def alike(printed: str, told: str) -> bool:
    """Are these the same words and whole numbers, and all others within two percent?"""
    pairs = zip(_NUMBER.findall(printed), _NUMBER.findall(told), strict=False)
    words = (re.sub(r"\s+|-+", " ", _NUMBER.sub("#", text)).strip() for text in (printed, told))
    return len(set(words)) == 1 and all(_close(a, b) for a, b in pairs)


def _close(a: str, b: str) -> bool:
    if a.lstrip("-").isdigit() and b.lstrip("-").isdigit():
        return a == b
    return math.isclose(float(a), float(b), rel_tol=0.02, abs_tol=2e-3)


def written(page: str, server: str) -> str:
    """The page with what its blocks print."""
    parts, end = list[str](), 0
    for block, printed in run(page, server):
        found = _BLOCK.match(page, block.start)
        assert found is not None
        parts += [page[end : block.start], f"```{block.language}\n{block.code}```\n"]
        if printed.strip():
            parts.append(f"\n```text\n{printed.rstrip()}\n```\n")
        end = found.end()
    return "".join((*parts, page[end:]))


def _python(code: str, names: dict[str, Any]) -> str:
    out = io.StringIO()
    with redirect_stdout(out):
        exec(compile(code, "page", "exec"), names)
    return out.getvalue()


def _shell(code: str) -> str:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    env = os.environ | {"PATH": path, "PYTHONPATH": str(EXAMPLES.parent)}
    strict = ["bash", "-e", "-u", "-o", "pipefail", "-c", code]
    done = subprocess.run(strict, env=env, stdout=subprocess.PIPE, text=True, check=True)
    return done.stdout


def main() -> int:
    parser = argparse.ArgumentParser(description="Run the code in pages of the documentation.")
    parser.add_argument("pages", nargs="+", type=Path)
    parser.add_argument("--server", default=ADDRESS)
    parser.add_argument("--write", action="store_true")
    asked, wrong = parser.parse_args(), 0
    for path in asked.pages:
        page = path.read_text()
        if asked.write:
            path.write_text(written(page, asked.server))
            continue
        for block, printed in run(page, asked.server):
            if block.prints is not None and not alike(printed, block.prints):
                line = page.count("\n", 0, block.start) + 1
                print(f"{path}:{line} prints\n{printed}\nand not\n{block.prints}")
                wrong += 1
    return min(wrong, 1)


if __name__ == "__main__":
    sys.exit(main())
