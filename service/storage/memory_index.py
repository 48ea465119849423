"""What a server knows of the memories that all servers share, in a file beside its copies."""

from __future__ import annotations

import hashlib
import os
import re
import time
from contextlib import suppress
from pathlib import Path
from typing import Literal, NamedTuple, final

import structlog
from pydantic import BaseModel, ValidationError

from models.files import write_file

INDEX_NAME = "index.json"
KEEP_DELETIONS = 10_000
KEEP_DELETIONS_MS = 30 * 24 * 3600 * 1000
_TOUCH_S = 3600.0
_ENTRY = re.compile(r"([0-9a-f]{64})(?: (\d{1,15}))?")


class Version(NamedTuple):
    """A content of a memory.

    Revisions are times of Redis in milliseconds, and rise with each change of a memory. That of a
    content whose time is not known is 0, so that any other replaces it.
    """

    sha256: str  # of the file
    revision: int

    @classmethod
    def from_entry(cls, entry: bytes) -> Version | None:
        """Return the version in an entry of Redis, or None if it has no such form."""
        match = _ENTRY.fullmatch(entry.decode(errors="replace"))
        return None if match is None else cls(match[1], int(match[2] or 0))

    def to_entry(self) -> str:
        return f"{self.sha256} {self.revision}"


def parse_score(score: float | None) -> int:
    """Return the revision of a deletion by its score in Redis, or -1 if no server wrote it."""
    return int(score) if score is not None and 0 <= score < 1e15 and score % 1 == 0 else -1


class _Content(BaseModel):
    format: Literal[1] = 1
    versions: dict[str, list[Version]] = {}
    deletions: dict[str, int] = {}


@final
class MemoryIndex:
    """Versions and deletions of memories by field (`id` or `owner/id`), as of the last change.

    A version is recorded before its file is written, beside that of the file there is; the digest
    of the file then tells which of the two it is, also after a crash in between. Without the
    index, as after its loss, copies have revision 0.

    Not thread-safe.
    """

    def __init__(self, path: Path) -> None:
        self._path, self._content = path, _Content()

    def load(self) -> None:
        """Read the file; a damaged one is logged, and left out."""
        try:
            digest, _, text = self._path.read_bytes().partition(b"\n")
            if hashlib.sha256(text).hexdigest().encode() != digest:
                raise ValueError("its digest is wrong")
            self._content = _Content.model_validate_json(text)
        except FileNotFoundError:
            pass
        except (OSError, ValueError, ValidationError) as error:
            reason = f"{self._path}: {error}"
            structlog.get_logger().error("index of memories not read", reason=reason)

    def save(self) -> None:
        """Write the file; if that fails, log it: the copies are then compared with Redis anew."""
        text = self._content.model_dump_json().encode()
        digest = hashlib.sha256(text).hexdigest().encode()
        try:
            write_file(self._path, digest + b"\n" + text)
        except OSError as error:
            reason = f"{self._path}: {error}"
            structlog.get_logger().error("index of memories not written", reason=reason)

    def touch(self) -> None:
        """Show that the index is in use, also where nothing changes for long; see `is_unused`."""
        with suppress(OSError):  # there may be none yet
            if time.time() - self._path.stat().st_mtime > _TOUCH_S:
                os.utime(self._path)

    @property
    def fields(self) -> set[str]:
        """Of the memories that are known and not deleted."""
        return set(self._content.versions)

    @property
    def deletions(self) -> dict[str, int]:
        """Revisions of deletions by field, oldest first."""
        return self._content.deletions

    def find(self, field: str, sha256: str) -> Version | None:
        """Return the version of a memory with this digest."""
        versions = self._content.versions.get(field, [])
        return next((version for version in versions if version.sha256 == sha256), None)

    def get_revision(self, field: str) -> int:
        """Return the last revision of a memory that is known, or -1."""
        return max(
            (version.revision for version in self._content.versions.get(field, [])), default=-1
        )

    def record(self, field: str, version: Version, present: Version | None) -> None:
        """Add a version whose file is to replace that of `present`."""
        others = [present] if present is not None and present.sha256 != version.sha256 else []
        self._content.versions[field] = [version, *others]
        self.deletions.pop(field, None)

    def record_deletion(self, field: str, revision: int) -> None:
        self._content.versions.pop(field, None)
        self.deletions.pop(field, None)
        self.deletions[field] = revision
        bound = revision - KEEP_DELETIONS_MS
        for other in [name for name, deleted in self.deletions.items() if deleted < bound]:
            del self.deletions[other]
        while len(self.deletions) > KEEP_DELETIONS:
            del self.deletions[next(iter(self.deletions))]

    def forget(self, field: str) -> None:
        """Remove a memory that is lost."""
        self._content.versions.pop(field, None)


def is_unused(path: Path) -> bool:
    """Whether this index was last in use so long ago that its memories may have been deleted, and
    the deletions forgotten."""
    try:
        age_s = time.time() - path.stat().st_mtime
    except FileNotFoundError:
        return False
    return age_s > KEEP_DELETIONS_MS / 1000
