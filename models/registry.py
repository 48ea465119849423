"""Which architectures exist: every concrete `Architecture` in `models/architectures/`."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from functools import cache

import models.architectures
from models.base import Architecture


@cache
def find_architectures() -> dict[str, type[Architecture]]:
    """Architecture classes by name."""
    found: dict[str, type[Architecture]] = {}
    for module in pkgutil.iter_modules(models.architectures.__path__):
        namespace = importlib.import_module(f"models.architectures.{module.name}")
        for member in vars(namespace).values():
            if (
                inspect.isclass(member)
                and issubclass(member, Architecture)
                and not inspect.isabstract(member)
                and member.__module__ == namespace.__name__
            ):
                found[member.name] = member
    return found
