"""Run kernels as plain Python, where compiling them for the types of a test takes seconds."""

from __future__ import annotations

from types import ModuleType

import pytest
from numba.core.registry import CPUDispatcher


def interpret(monkeypatch: pytest.MonkeyPatch, *modules: ModuleType) -> None:
    """Replace the kernels of these modules by the Python functions they are compiled from."""
    for module in modules:
        for name, value in list(vars(module).items()):
            if isinstance(value, CPUDispatcher):
                monkeypatch.setattr(module, name, value.py_func)
