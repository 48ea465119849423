"""The machine a figure was measured on, in one line, and its memory."""

from __future__ import annotations

import ctypes
import os
import platform

import torch

from training.common.hardware import processor_name


def describe() -> str:
    return (
        f"{processor_name()}, {os.cpu_count()} cores, {torch.get_num_threads()} torch threads, "
        f"torch {torch.__version__}, Python {platform.python_version()}"
    )


def keep_what_is_freed() -> None:
    """From here on, arrays of up to a gigabyte, as the heap of a server does by itself, between
    what others have on it: else each pass of a large graph would ask for its memory anew."""
    if platform.libc_ver()[0] == "glibc":
        for threshold in (-3, -1):  # M_MMAP_THRESHOLD, M_TRIM_THRESHOLD
            if not ctypes.CDLL(None).mallopt(threshold, 1 << 30):
                raise OSError("malloc takes no such threshold")
