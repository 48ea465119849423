"""The machine and the numeric precision that a result was computed with."""

from __future__ import annotations

import platform
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from lightning_fabric import Fabric

FULL_PRECISION = "32-true"
"""Lightning's name of float32."""


def precision_name(fabric: Fabric) -> str:
    """Return Lightning's name of the precision that `fabric` trains in, as "bf16-mixed"."""
    return str(fabric.strategy.precision.precision)


def processor_name() -> str:
    """Return the name of this machine's processor."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.is_file() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def describe_run(device: torch.device, precision: str, started_at: float) -> dict[str, Any]:
    """Return the fields of a result row that say how it was computed.

    Args:
        started_at: `time.perf_counter()` at the start of the computation.

    Returns:
        machine, torch version, precision, and seconds since `started_at`.
    """
    if device.type == "cuda":
        machine = torch.cuda.get_device_name(device)
    else:
        threads = torch.get_num_threads()
        machine = f"{processor_name()}, {threads} thread{'s' * (threads != 1)}"
    return {
        "machine": machine,
        "torch": torch.__version__,
        "precision": precision,
        "seconds": round(time.perf_counter() - started_at, 3),
    }


def format_machines(rows: Iterable[dict[str, Any]]) -> str:
    """Return one sentence that lists the machines of `rows`, each once; rows may lack a machine."""
    machines = {_format_machine(row) for row in rows}
    return f"{'; '.join(sorted(machines))}."


def _format_machine(row: dict[str, Any]) -> str:
    machine = row.get("machine", "A machine that was not noted")
    return f"{machine}, torch {row['torch']}" if "torch" in row else machine
