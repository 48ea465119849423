"""Copies of shared memories on the disk of a server, checked against their digests."""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import final

import structlog

from models.files import write_file
from models.memories import MEMORY_FILE_SUFFIX, MemoryFileError, load_memory
from service.storage.memories import ID, Stamp, stamp_of
from service.storage.memory_index import INDEX_NAME, MemoryIndex, Version, is_unused

_OWNER = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")  # name of a key
_DAMAGED_SUFFIX = ".damaged"  # of a copy that is set aside


@final
class MemoryCopies:
    """Copies by field (`id` or `owner/id`), and an index of what is known of each.

    A copy that is missing or damaged is no longer in `versions`, but known to the index. Methods
    that change something are for one thread at a time.

    Args:
        drop: called with the path of a file that was replaced or deleted.
    """

    def __init__(self, root: Path, drop: Callable[[Path], None]) -> None:
        self._root, self._drop = root, drop
        self.index = MemoryIndex(root / INDEX_NAME)
        self.versions = dict[str, Version]()
        self._stamps = dict[str, Stamp]()  # of the files whose digest was compared

    def load(self) -> None:
        """Read the index, and compare all copies with it."""
        self.index.load()
        for path in self._root.rglob(f"*{MEMORY_FILE_SUFFIX}") if self._root.is_dir() else ():
            field = str(path.relative_to(self._root)).removesuffix(MEMORY_FILE_SUFFIX)
            if is_field(field) and not path.is_symlink():
                with suppress(OSError):  # else it is read from Redis again
                    sha256, self._stamps[field] = self._digest(path)
                    self._admit(field, sha256)

    def check(self) -> None:
        """Leave out the copies that were deleted or altered since they were last compared."""
        for field, version in list(self.versions.items()):
            path = self._path(field)
            try:
                if stamp_of(path.stat()) == self._stamps.get(field):
                    continue
                sha256, self._stamps[field] = self._digest(path)
            except OSError as error:
                self._leave_out(field, str(error))
            else:
                if sha256 != version.sha256:
                    self._set_aside(field)

    def doubt(self, field: str) -> None:
        """Have the next `check` read this copy."""
        self._stamps.pop(field, None)

    def read(self, field: str) -> bytes | None:
        """Return a copy, or None if it turns out to be missing or damaged."""
        version = self.versions[field]
        try:
            raw = self._path(field).read_bytes()
        except OSError as error:
            self._leave_out(field, str(error))
            return None
        try:
            if hashlib.sha256(raw).hexdigest() != version.sha256:
                raise MemoryFileError("its digest is wrong")
            if version.revision == 0:  # its digest is that of the file as it was found
                load_memory(raw)
        except MemoryFileError:
            self._set_aside(field)
            return None
        return raw

    def expect(self, versions: dict[str, Version]) -> None:
        """Record versions that are to be written or adopted."""
        new = {
            field: version
            for field, version in versions.items()
            if self.index.find(field, version.sha256) != version
        }
        for field, version in new.items():
            self.index.record(field, version, self.versions.get(field))
        if new:
            self.index.save()

    def write(self, field: str, version: Version, raw: bytes) -> bool:
        """Write a copy that was expected; if the disk is full, delete the old one, which would be
        out of date, and return False."""
        path = self._path(field)
        try:
            write_file(path, raw)
            stamp = stamp_of(path.stat())
        except OSError as error:
            structlog.get_logger().error("memory not copied", reason=f"{path}: {error}")
            self._unlink(path)
            self._forget_file(field)
            return False
        self._drop(path)
        self.versions[field], self._stamps[field] = version, stamp
        return True

    def delete(self, revisions: dict[str, int]) -> None:
        """Delete the copies of memories that were deleted, and remember that they were."""
        for field, revision in revisions.items():
            self.index.record_deletion(field, revision)
        if revisions:
            self.index.save()
        for field in revisions:
            path = self._path(field)
            self._forget_file(field)
            self._unlink(path)
            self._unlink(path.with_suffix(_DAMAGED_SUFFIX))

    def forget(self, field: str) -> None:
        """Forget the versions of which there is no copy."""
        self.index.forget(field)
        if (version := self.versions.get(field)) is not None:
            self.index.record(field, version, None)
        self.index.save()

    @property
    def fields(self) -> set[str]:
        """Of the memories with a copy or a known version."""
        return self.index.fields | self.versions.keys()

    def list_sizes(self, fields: Iterable[str]) -> dict[str, int]:
        """Return the sizes in bytes of those copies that are there."""
        stamps = {field: self._stamps.get(field) for field in fields}
        return {field: stamp[2] for field, stamp in stamps.items() if stamp is not None}

    def _path(self, field: str) -> Path:
        return self._root / f"{field}{MEMORY_FILE_SUFFIX}"

    def _admit(self, field: str, sha256: str) -> None:
        version = self.index.find(field, sha256)
        if field in self.index.deletions:  # the server was killed before it deleted the file
            self._unlink(self._path(field))
            self._forget_file(field)
        elif version is None and field in self.index.fields:
            self._set_aside(field)
        else:
            self.versions[field] = version or Version(sha256, 0)

    def _set_aside(self, field: str) -> None:
        """Rename a damaged copy, so that it is not served, and can be looked at."""
        path = self._path(field)
        with suppress(OSError):
            path.replace(path.with_suffix(_DAMAGED_SUFFIX))
        self._leave_out(field, "its content is not what was stored")

    def _leave_out(self, field: str, reason: str) -> None:
        path = self._path(field)
        structlog.get_logger().error("copy of a memory lost", reason=f"{path}: {reason}")
        self._forget_file(field)

    def _forget_file(self, field: str) -> None:
        self.versions.pop(field, None)
        self._stamps.pop(field, None)
        self._drop(self._path(field))

    def _digest(self, path: Path) -> tuple[str, Stamp]:
        with path.open("rb") as file:
            stamp = stamp_of(os.fstat(file.fileno()))
            return hashlib.file_digest(file, "sha256").hexdigest(), stamp

    def _unlink(self, path: Path) -> None:
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            structlog.get_logger().error("memory not deleted", reason=f"{path}: {error}")


def is_field(field: str) -> bool:
    """Whether this is `id` or `owner/id`; nothing else may become a path."""
    owner, slash, name = field.rpartition("/")
    return bool(ID.fullmatch(name)) and (not slash or bool(_OWNER.fullmatch(owner)))


def claim_folder(path: Path) -> Path:
    """Return this folder for copies, or `path-2`, `path-3`, … while others are in use.

    The claim is a POSIX lock of the process, and ends with it. A numbered folder that no process
    used for as long as deletions are remembered is emptied, since it would bring back what was
    deleted; a process that uses one touches its index every hour.
    """
    number = 1
    while True:
        folder = path if number == 1 else path.with_name(f"{path.name}-{number}")
        try:
            folder.mkdir(parents=True, exist_ok=True)
            handle = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        except OSError:
            return folder  # read-only, so there is nothing to claim
        try:
            fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)  # held while the handle is open
        except (BlockingIOError, PermissionError):
            os.close(handle)
            number += 1
            continue
        except OSError as error:  # a file system without locks
            structlog.get_logger().warning("folder not locked", reason=f"{folder}: {error}")
        if number > 1 and is_unused(folder / INDEX_NAME):
            for old in folder.iterdir():
                if old.is_dir():
                    shutil.rmtree(old)
                elif old.name != "lock":
                    old.unlink()
        return folder
