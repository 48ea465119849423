"""What the groups of settings have in common."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import StringConstraints
from pydantic_settings import BaseSettings, SettingsConfigDict

PREFIX = "BASIN_"

Origin = Annotated[str, StringConstraints(pattern=r"^https?://[^/\s*?#]+$")]


class SettingsGroup(BaseSettings):
    """Settings that belong together, under one title in docs and in `basin serve --help`."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, env_ignore_empty=True, frozen=True)
    title: ClassVar[str]


def split_words(value: object) -> object:
    """Return the words of a text as a tuple, and anything else as it is."""
    return tuple(value.split()) if isinstance(value, str) else value
