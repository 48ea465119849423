"""Memories: those that ship with the server, and those that clients store."""

from __future__ import annotations

import copy
import hashlib
import os
import re
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from enum import IntEnum
from io import BufferedReader
from pathlib import Path

import structlog

from models.files import PARTIAL, sync_folder, write_file
from models.memories import (
    MEMORY_FILE_SUFFIX,
    Memory,
    MemoryCard,
    MemoryFileError,
    load_memory,
    read_card,
)
from service.errors import Problem, make_problem

ID = re.compile(r"[a-z0-9](?:[a-z0-9_-]|\.(?!\.)){0,63}")
_CACHED = 256 << 20  # bytes of decoded memories in the cache
_ABANDONED_S = 3600.0
Stamp = tuple[int, int, int]
"""Inode, time and size, which distinguish a file from the one that replaced it."""


class StoreLimit(IntEnum):
    """A limit that a memory to be stored would exceed, as the Redis script returns it."""

    COUNT = -1  # memories of one API key
    BYTES = -2  # of all memories
    SHARE = -3  # bytes of one API key


class MemoryStore:
    """Memories by id, one file each; thread-safe.

    Each API key has a folder of its name for the memories that it stores; all keys see the memories
    that ship. A key may store `max_count` memories. All memories together may have `max_bytes`, of
    which a key may take as many as it leaves free, so that no key can fill the store.

    A write goes to a temporary file that then replaces the old one atomically, so a reader always
    finds a complete file.
    """

    def __init__(
        self, shipped: Path, own: Path, max_count: int, max_bytes: int, cached: int = _CACHED
    ) -> None:
        self._shipped, self._root, self._own = shipped, own, own
        self._max_count, self._max_bytes, self._max_cached = max_count, max_bytes, cached
        self._writing, self._caching = threading.Lock(), threading.Lock()
        self._cache: OrderedDict[Path, tuple[Stamp, MemoryCard, Memory]] = OrderedDict()
        self._checking = threading.Lock()
        self._checked: dict[Path, str] = {}  # SHA-256 of files that were decoded

    def scoped_to(self, owner: str) -> MemoryStore:
        """Return the store as the API key of this name sees it."""
        if not owner:
            return self
        view = copy.copy(self)
        view._own = self._root / owner
        return view

    def prepare(self) -> None:
        """Remove temporary files older than an hour, which a killed process left behind. Errors are
        ignored, since the folder may be read-only."""
        for path in self._root.rglob(f"{PARTIAL}*") if self._root.is_dir() else ():
            with suppress(OSError):
                if time.time() - path.stat().st_mtime > _ABANDONED_S:
                    path.unlink()

    def follow(self) -> None:
        """Take over what other servers have changed, where they share a Redis."""

    def list_cards(self) -> dict[str, MemoryCard]:
        """Return the cards of all memories, by id.

        Raises:
            Problem: the folders cannot be read.
        """
        cards = {}
        for folder in (self._own, self._shipped):
            for path in self._list_files(folder):
                try:
                    with path.open("rb") as file:
                        cards[path.name.removesuffix(MEMORY_FILE_SUFFIX)] = self.read_card(file)
                except (MemoryFileError, OSError) as error:
                    structlog.get_logger().error("memory refused", reason=f"{path}: {error}")
        return dict(sorted(cards.items()))

    def fingerprint(self) -> bytes:
        """Return a hash that changes whenever a memory is stored or deleted.

        Raises:
            Problem: the folders cannot be read.
        """
        files = []
        for folder in (self._own, self._shipped):
            for path in self._list_files(folder):
                try:
                    files.append((path.name, self._mark(path)))
                except (FileNotFoundError, MemoryFileError):
                    pass  # deleted just now, or damaged, which is reported when it is sampled
                except OSError as error:
                    raise _unread(path, error) from None
        return hashlib.sha256(repr(files).encode()).digest()

    def get_card(self, name: str) -> MemoryCard:
        """Return the card of a memory, by the head of its file alone unless that is damaged.

        Raises:
            Problem: there is no such memory, or its file is damaged.
        """
        with suppress(MemoryFileError), self._open(name) as file:
            return self.read_card(file)
        with self.open(name) as file:
            return self.read_card(file)

    @staticmethod
    def read_card(file: BufferedReader) -> MemoryCard:
        """Read the card at the start of a file."""
        return read_card(_head(file))

    def open(self, name: str) -> BufferedReader:
        """Open the file of a memory; replacing the memory does not affect the open file.

        All of it is read first, so that nothing of a damaged file is sent.

        Raises:
            Problem: there is no such memory, it cannot be read, or its file is damaged.
        """
        with _refuse_damaged(name):
            return self._open_intact(name)

    def _open_intact(self, name: str) -> BufferedReader:
        """As `open`.

        Raises:
            MemoryFileError: its file is damaged.
        """
        file = self._open(name)
        try:
            path, sha256 = Path(file.name), hashlib.file_digest(file, "sha256").hexdigest()
            if self._checked.get(path) != sha256:
                with self._checking:  # one at a time: this takes a multiple of its size in memory
                    file.seek(0)
                    self._decode(path, file.read())
                self._checked[path] = sha256
            file.seek(0)
        except OSError as error:
            file.close()
            raise _unread(Path(file.name), error) from None
        except BaseException:
            file.close()
            raise
        return file

    def _open(self, name: str) -> BufferedReader:
        """As `open`, without reading the file."""
        if ID.fullmatch(name):
            for folder in (self._shipped, self._own):
                path = folder / f"{name}{MEMORY_FILE_SUFFIX}"
                if path.is_file() and not path.is_symlink():
                    try:
                        return path.open("rb")
                    except FileNotFoundError:  # it was deleted just now
                        break
                    except OSError as error:
                        raise _unread(path, error) from None
        raise unknown_memory()

    def get(self, name: str) -> tuple[MemoryCard, Memory]:
        """Return a memory and its card, from the cache if it is there.

        Raises:
            Problem: there is no such memory, or its file is damaged.
        """
        with _refuse_damaged(name):
            return self._load(name)

    def _load(self, name: str) -> tuple[MemoryCard, Memory]:
        """As `get`.

        Raises:
            MemoryFileError: its file is damaged.
        """
        with self._open(name) as file:
            path, stamp = Path(file.name), stamp_of(os.fstat(file.fileno()))
            with self._caching:
                held = self._cache.get(path)
                if held is not None and held[0] == stamp:
                    self._cache.move_to_end(path)
                    return held[1:]
            card, memory = self._decode(path, file.read())
        with self._caching:
            self._cache[path] = (stamp, card, memory)
            self._cache.move_to_end(path)
            held_bytes = sum(kept.nbytes for _, _, kept in self._cache.values())
            while held_bytes > self._max_cached:
                _, (_, _, dropped) = self._cache.popitem(last=False)
                held_bytes -= dropped.nbytes
        return card, memory

    def put(self, name: str, raw: bytes) -> bool:
        """Store the file of a memory; return whether the id is new.

        Raises:
            Problem: an invalid id or one of a memory that ships, a limit, or a full disk.
        """
        self.require_writable_id(name)
        path = self._own / f"{name}{MEMORY_FILE_SUFFIX}"
        with self._writing:
            if (limit := self._exceeded_limit(path, len(raw))) is not None:
                raise self.store_full_error(limit)
            new = not path.exists()
            try:
                self._write(path, raw)
            except OSError as error:
                structlog.get_logger().error("memory not stored", reason=f"{path}: {error}")
                raise unavailable(
                    "The disk is full or cannot be written. The server log has the reason."
                ) from None
        return new

    def delete(self, name: str) -> None:
        """Delete a stored memory.

        Raises:
            Problem: there is no such memory, or it ships with the server.
        """
        self.require_writable_id(name)
        path = self._own / f"{name}{MEMORY_FILE_SUFFIX}"
        with self._writing:
            try:
                path.unlink()
            except FileNotFoundError:
                raise unknown_memory() from None
            except OSError as error:
                structlog.get_logger().error("memory not deleted", reason=f"{path}: {error}")
                raise unavailable(
                    "The disk cannot be written. The server log has the reason."
                ) from None
            sync_folder(path.parent)
            self._drop(path)

    def _exceeded_limit(self, path: Path, size: int) -> StoreLimit | None:
        """Return the limit that a file of `size` bytes would exceed; `memories_redis._PUT` has the
        same rules."""
        others = [p for p in self._root.rglob(f"*{MEMORY_FILE_SUFFIX}") if p != path]
        sizes = {other: other.stat().st_size for other in others}
        own = [other for other in others if other.parent == path.parent]
        if len(own) >= self._max_count:
            return StoreLimit.COUNT
        free = self._max_bytes - sum(sizes.values()) - size
        if free < 0:
            return StoreLimit.BYTES
        if self._own != self._root and sum(sizes[other] for other in own) + size > free:
            return StoreLimit.SHARE
        return None

    def store_full_error(self, limit: int) -> Problem:
        """Return the error for a `StoreLimit`."""
        detail = {
            StoreLimit.COUNT: (
                f"At most {self._max_count} memories (BASIN_MAX_MEMORIES) may be stored per API "
                "key."
            ),
            StoreLimit.BYTES: (
                f"Stored memories may take at most {self._max_bytes} bytes together "
                "(BASIN_MAX_MEMORY_BYTES)."
            ),
            StoreLimit.SHARE: (
                "The memories of this API key would exceed its share of the "
                f"{self._max_bytes} bytes (BASIN_MAX_MEMORY_BYTES) for all stored memories: a key "
                "may use at most half of what other keys leave."
            ),
        }[StoreLimit(limit)]
        return Problem("store-full", f"{detail} Delete one first.")

    def require_writable_id(self, name: str) -> None:
        """
        Raises:
            Problem: an invalid id, or that of a memory that ships.
        """
        if not ID.fullmatch(name):
            rule = (
                "A memory id has 1 to 64 characters of a-z, 0-9, -, _ and ., and starts with a "
                "letter or digit."
            )
            raise make_problem("invalid-request", "/id", "not_allowed", rule)
        if (self._shipped / f"{name}{MEMORY_FILE_SUFFIX}").is_file():
            raise Problem(
                "memory-ships",
                "This id belongs to a memory that ships with the server, which is read-only. "
                "Choose another id.",
            )

    def _list_files(self, folder: Path) -> list[Path]:
        """Return the files of a folder.

        Raises:
            Problem: the folder exists but cannot be read.
        """
        return _files(folder)

    def _decode(self, path: Path, raw: bytes) -> tuple[MemoryCard, Memory]:
        """Read the content of a file.

        Raises:
            MemoryFileError: it was altered.
        """
        return load_memory(raw)

    def _mark(self, path: Path) -> object:
        """Return a value that changes when the file is replaced."""
        return stamp_of(path.stat())

    def _write(self, path: Path, raw: bytes) -> None:
        """Write a file atomically; the caller holds `_writing`."""
        write_file(path, raw)
        self._drop(path)

    def _drop(self, path: Path) -> None:
        with self._caching:
            self._cache.pop(path, None)
            self._checked.pop(path, None)


@contextmanager
def _refuse_damaged(name: str) -> Iterator[None]:
    """Change a `MemoryFileError` in the context, about the memory `name`, to a problem."""
    try:
        yield
    except MemoryFileError as error:
        structlog.get_logger().error(
            "memory refused", file=f"{name}{MEMORY_FILE_SUFFIX}", reason=str(error)
        )
        raise Problem(
            "memory-damaged",
            "The file of this memory is damaged; the server log has the reason. Store the memory "
            "anew, or have the file restored.",
        ) from None


def stamp_of(about: os.stat_result) -> Stamp:
    return about.st_ino, about.st_mtime_ns, about.st_size


def unavailable(detail: str) -> Problem:
    return Problem("memories-unavailable", detail, headers={"retry-after": "1"})


def _files(folder: Path) -> list[Path]:
    """
    Raises:
        Problem: the folder exists but cannot be read.
    """
    try:
        return sorted(path for path in folder.iterdir() if path.name.endswith(MEMORY_FILE_SUFFIX))
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise _unread(folder, error) from None


def _unread(path: Path, error: OSError) -> Problem:
    structlog.get_logger().error("memory not read", reason=f"{path}: {error}")
    return unavailable("The memories cannot be read. The server log has the reason.")


def unknown_memory() -> Problem:
    detail = "No such memory. GET /memories lists the memories of this API key."
    return make_problem("unknown-memory", "/memory", "unknown_memory", detail)


def _head(file: BufferedReader) -> bytes:
    """Read the header of a file, which contains its card."""
    size = file.read(8)
    return size + file.read(min(int.from_bytes(size, "little"), 1 << 20))
