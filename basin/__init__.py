"""Basin: energy transformers in this process (`basin.load`), and the command line `basin`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from basin.local.model import Memory, Model

__all__ = ["Memory", "Model", "load"]


def load(name: str | Path, *, device: str = "auto", threads: int | None = None) -> Model | Memory:
    """Load a model or a memory into this process, without a server.

    Args:
        name: of one that ships, such as `et-photos` or `mnist-3`; or the folder of a checkpoint,
            or the file of a memory.
        device: `cpu`, `cuda`, `cuda:1`, or `auto` for a GPU if there is one.
        threads: of the CPU, for all of this process; those that torch has if None.

    Returns:
        A `Model` with `score`, `classify`, `complete` and so on, by what it was trained for; or a
        `Memory` with `sample`. They return what `basin_client.Client` returns.

    Raises:
        InputError: there is no such checkpoint, it is damaged, or this machine lacks the device.
    """
    from basin.local.model import load_model  # which imports torch, and takes seconds

    return load_model(name, device, threads)


def __getattr__(name: str) -> Any:
    """Resolve `basin.Model` and `basin.Memory` when they are first used (PEP 562)."""
    if name in ("Memory", "Model"):
        from basin.local import model

        return getattr(model, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
