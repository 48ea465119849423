"""Settings as their names, flags, defaults and descriptions, for docs and the command line."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pydantic import SecretStr
from pydantic.fields import FieldInfo

from models.paths import find_shipped, find_state_folder
from service.settings import PREFIX, Settings


@dataclass(frozen=True)
class SettingDescription:
    """One setting.

    Attributes:
        flag: option of `basin serve`; None for a secret, which other users of the machine would see
            among the arguments of the process.
        default: as text; empty where there is none.
    """

    name: str
    group: str
    variable: str
    flag: str | None
    default: str
    description: str
    is_switch: bool


def describe_settings() -> Iterator[SettingDescription]:
    """Yield all settings, group by group."""
    for group in Settings.groups():
        for name, field in group.model_fields.items():
            is_secret = SecretStr in (field.annotation, *getattr(field.annotation, "__args__", ()))
            assert field.description is not None
            yield SettingDescription(
                name=name,
                group=group.title,
                variable=PREFIX + name.upper(),
                flag=None if is_secret else "--" + name.replace("_", "-"),
                default=_default_text(field),
                description=field.description,
                is_switch=field.annotation is bool,
            )


def _default_text(field: FieldInfo) -> str:
    value = field.default
    if value is None or value == ():
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Path):
        return _short_path(value)
    return str(value)


def _short_path(path: Path) -> str:
    """A default path without the folder of this installation, which is another elsewhere."""
    for folder, label in ((find_state_folder(), "var"), (find_shipped(""), "")):
        if path.is_relative_to(folder):
            short = str(Path(label) / path.relative_to(folder))
            return short if path.suffix else short + "/"
    return str(path)


def to_markdown() -> str:
    """Return docs/settings.md."""
    lines = [
        "# Settings",
        "",
        "Each is an environment variable, and an option of `basin serve`: `BASIN_MAX_NODES` is",
        "`--max-nodes`. `BASIN_REDIS_URL` and `BASIN_WEBHOOK_SECRET`, which may hold secrets, are",
        "read from the environment alone. `basin settings WORD` searches them.",
        "",
        "In a checkout `checkpoints/`, `memories/` and `var/` are its folders. An installed wheel",
        "holds the first two, and for `var/` it takes the platform's folder for the state of",
        "programs, on Linux `~/.local/state/basin`; compiled kernels are in `~/.cache/basin`.",
    ]
    group = None
    for setting in describe_settings():
        if setting.group != group:
            group = setting.group
            lines += ["", f"## {group}", "", "| setting | default | |", "|---|---|---|"]
        default = f"`{setting.default}`" if setting.default else ""
        description = setting.description.replace("|", "\\|")
        lines.append(f"| `{setting.variable}` | {default} | {description} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(to_markdown(), end="")
