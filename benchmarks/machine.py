"""The machine a figure was measured on, in one line."""

from __future__ import annotations

import os
import platform

import torch

from training.machine import processor


def describe() -> str:
    return (
        f"{processor()}, {os.cpu_count()} cores, {torch.get_num_threads()} torch threads, "
        f"torch {torch.__version__}, Python {platform.python_version()}"
    )
