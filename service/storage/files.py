"""Files that are complete whenever they can be read, also after a crash."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

PARTIAL = ".partial-"  # prefix of the names of files that are being written


def write_file(path: Path, raw: bytes) -> None:
    """Write a file atomically, and flush it to disk. Its folder is made if it is missing.

    Raises:
        OSError: nothing has changed.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, partial = tempfile.mkstemp(prefix=PARTIAL, dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(raw)
            file.flush()
            os.fsync(file.fileno())
        Path(partial).replace(path)
    except BaseException:
        Path(partial).unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Flush the directory entries of `folder` to disk."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
