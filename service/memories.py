"""The memories that are kept: some that ship, and those that clients have stored."""

from __future__ import annotations

import os
import re
import tempfile
import threading
from collections import OrderedDict
from pathlib import Path

import structlog

from models.memories import SUFFIX, Card, Memory, MemoryFileError, card_of, load
from service.errors import Problem, refuse

_ID = re.compile(r"[a-z0-9](?:[a-z0-9_-]|\.(?!\.)){0,63}")
_CACHED = 8  # memories held decoded
_PARTIAL = ".partial-"


class MemoryStore:
    """Memories by id, each one file; safe to use from several threads of one process.

    Writing goes to a file beside and replaces in one move, so a reader finds the old memory or
    the new one, whenever the process ends.
    """

    def __init__(self, shipped: Path, own: Path, max_count: int, max_bytes: int) -> None:
        self._shipped, self._own = shipped, own
        self._max_count, self._max_bytes = max_count, max_bytes
        self._writing = threading.Lock()
        self._cache: OrderedDict[tuple[Path, int, int], tuple[Card, Memory]] = OrderedDict()

    def clean(self) -> None:
        """Remove what a writer left behind that was killed."""
        for path in self._own.glob(f"{_PARTIAL}*") if self._own.is_dir() else ():
            path.unlink(missing_ok=True)

    def cards(self) -> dict[str, Card]:
        """Every memory there is, by id."""
        found = {}
        for folder in (self._own, self._shipped):
            for path in sorted(folder.glob(f"*{SUFFIX}")) if folder.is_dir() else ():
                try:
                    found[path.name.removesuffix(SUFFIX)] = card_of(_head(path))
                except (MemoryFileError, OSError) as error:
                    structlog.get_logger().error("memory refused", reason=f"{path}: {error}")
        return dict(sorted(found.items()))

    def card(self, name: str) -> Card:
        """
        Raises:
            Problem: there is no such memory.
        """
        return card_of(_head(self._find(name)))

    def raw(self, name: str) -> bytes:
        """The file of a memory."""
        return self._find(name).read_bytes()

    def get(self, name: str) -> tuple[Card, Memory]:
        """A memory, ready to be sampled."""
        path = self._find(name)
        about = path.stat()
        key = (path, about.st_mtime_ns, about.st_size)
        if (held := self._cache.get(key)) is None:
            held = load(path.read_bytes())
            self._cache[key] = held
            while len(self._cache) > _CACHED:
                self._cache.popitem(last=False)
        return held

    def put(self, name: str, raw: bytes) -> bool:
        """Store the file of a memory; was there none of this id before?

        Raises:
            Problem: an id that is none or belongs to a memory that ships, or no room.
        """
        path = self._own / f"{self._checked(name)}{SUFFIX}"
        with self._writing:
            self._own.mkdir(parents=True, exist_ok=True)
            others = [p for p in self._own.glob(f"*{SUFFIX}") if p != path]
            if len(others) >= self._max_count:
                detail = f"{self._max_count} memories may be stored; delete one first"
                raise Problem("store-full", detail)
            if sum(p.stat().st_size for p in others) + len(raw) > self._max_bytes:
                detail = f"stored memories may take {self._max_bytes} bytes together"
                raise Problem("store-full", detail)
            new = not path.exists()
            handle, partial = tempfile.mkstemp(prefix=_PARTIAL, dir=self._own)
            try:
                with os.fdopen(handle, "wb") as file:
                    file.write(raw)
                    file.flush()
                    os.fsync(file.fileno())
                Path(partial).replace(path)
            except BaseException:
                Path(partial).unlink(missing_ok=True)
                raise
            _sync(self._own)
        return new

    def delete(self, name: str) -> None:
        """
        Raises:
            Problem: there is no such memory, or it ships.
        """
        path = self._own / f"{self._checked(name)}{SUFFIX}"
        with self._writing:
            if not path.is_file():
                raise _unknown()
            path.unlink()
            _sync(self._own)

    def _checked(self, name: str) -> str:
        if not _ID.fullmatch(name):
            rule = "an id has up to 64 of a-z, 0-9, -, _ and ., and starts with a letter or digit"
            raise refuse("invalid-request", "/id", "not_allowed", rule)
        if (self._shipped / f"{name}{SUFFIX}").is_file():
            raise Problem("memory-ships", "choose another id for a memory of your own")
        return name

    def _find(self, name: str) -> Path:
        if _ID.fullmatch(name):
            for folder in (self._shipped, self._own):
                path = folder / f"{name}{SUFFIX}"
                if path.is_file() and not path.is_symlink():
                    return path
        raise _unknown()


def _unknown() -> Problem:
    return refuse(
        "unknown-memory", "/memory", "unknown_memory", "GET /memories lists those there are"
    )


def _head(path: Path) -> bytes:
    """The header of a file, which holds its card."""
    with path.open("rb") as file:
        size = file.read(8)
        return size + file.read(min(int.from_bytes(size, "little"), 1 << 20))


def _sync(folder: Path) -> None:
    """Make a change of names in `folder` last."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
