"""Files that are complete whenever they can be read, also after a crash."""

from __future__ import annotations

import logging
import os
import stat
import tempfile
from contextlib import suppress
from pathlib import Path

_LOG = logging.getLogger(__name__)
PARTIAL = ".partial-"  # prefix of the names of files that are being written


def write_file(path: Path, raw: bytes) -> None:
    """Write a file atomically, and flush it to disk. Missing folders are made; the permissions are
    those of the file that is replaced; a new one is for its owner alone.

    Raises:
        OSError: the file is as it was.
    """
    for folder in reversed(path.parents):
        if not folder.is_dir():
            folder.mkdir(exist_ok=True)
            sync_folder(folder.parent)
    handle, partial = tempfile.mkstemp(prefix=PARTIAL, dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            with suppress(FileNotFoundError):
                os.fchmod(handle, stat.S_IMODE(path.stat().st_mode))
            file.write(raw)
            file.flush()
            os.fsync(handle)
        Path(partial).replace(path)
    except BaseException:
        Path(partial).unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Flush the directory entries of `folder` to disk.

    They have changed already, so a failure is logged: the change counts, but a power cut may undo
    it.
    """
    try:
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
    except OSError as error:
        _LOG.warning("A power cut may undo the last change in %s: not synced: %s", folder, error)
