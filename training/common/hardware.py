"""Where the rows of a table were made."""

from __future__ import annotations

import platform
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from lightning_fabric import Fabric

PLAIN = "32-true"


def precision_of(fabric: Fabric) -> str:
    """In which numbers it trains, by Lightning's name."""
    return str(fabric.strategy.precision.precision)


def processor() -> str:
    """The name of this machine's processor."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.is_file() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def made(device: torch.device, precision: str, since: float) -> dict[str, Any]:
    """What a row tells of its making: machine, torch, precision, and seconds since `since`, by
    `time.perf_counter`."""
    on_gpu = device.type == "cuda"
    threads = torch.get_num_threads()
    cpu = f"{processor()}, {threads} thread{'s' * (threads != 1)}"
    return {
        "machine": torch.cuda.get_device_name(device) if on_gpu else cpu,
        "torch": torch.__version__,
        "precision": precision,
        "seconds": round(time.perf_counter() - since, 3),
    }


def machines(rows: Iterable[dict[str, Any]]) -> str:
    """Every machine that rows were made on, as a sentence; those that do not tell are named so."""
    found = {_machine(row) for row in rows}
    return f"{'; '.join(sorted(found))}."


def _machine(row: dict[str, Any]) -> str:
    machine = row.get("machine", "A machine that was not noted")
    return f"{machine}, torch {row['torch']}" if "torch" in row else machine
