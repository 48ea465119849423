"""`basin serve` and `basin settings`: every setting of the server as an option."""

from __future__ import annotations

import inspect
import json
import os
import sys
from collections.abc import Mapping
from typing import Annotated, Any, NoReturn, cast

import typer
from rich.console import Console
from rich.table import Table

from service.settings.describe import SettingDescription, describe_settings

OWN_CODE = ("-P",)
"""Option of Python: a folder `models` or `service` where a command is run is not imported."""


def serve(**options: Any) -> NoReturn:
    """Run a server until SIGTERM.

    Every setting is an option and an environment variable; the option counts where both are given.
    Secrets (BASIN_REDIS_URL, BASIN_WEBHOOK_SECRET) are read from the environment alone.
    `basin settings WORD` searches them.
    """
    environment = to_environment(options, os.environ)
    os.execve(sys.executable, [sys.executable, *OWN_CODE, "-m", "service"], environment)


def to_environment(options: Mapping[str, Any], environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment with the variables of the options that are given."""
    variables = {setting.name: setting.variable for setting in describe_settings()}
    given = {name: value for name, value in options.items() if value is not None}
    texts = {name: str(v).lower() if isinstance(v, bool) else v for name, v in given.items()}
    return dict(environment) | {variables[name]: text for name, text in texts.items()}


def _to_parameter(setting: SettingDescription) -> inspect.Parameter:
    """Return the parameter of `serve` that is this setting."""
    default = f"; default {setting.default}" if setting.default else ""
    option = typer.Option(
        f"{setting.flag}/--no-{setting.flag.removeprefix('--')}"
        if setting.is_switch and setting.flag
        else setting.flag,
        help=f"{setting.description} ({setting.variable}{default})",
        rich_help_panel=setting.group,
        show_default=False,
        metavar=None if setting.is_switch else "VALUE",
    )
    kind: Any = bool if setting.is_switch else str
    return inspect.Parameter(
        setting.name,
        inspect.Parameter.KEYWORD_ONLY,
        default=None,
        annotation=Annotated[kind | None, option],
    )


# Typer reads the options of a command from the signature of its function.
_PARAMETERS = [_to_parameter(setting) for setting in describe_settings() if setting.flag]
cast(Any, serve).__signature__ = inspect.Signature(_PARAMETERS)
serve.__annotations__ = {parameter.name: parameter.annotation for parameter in _PARAMETERS}


def settings(
    words: Annotated[
        list[str] | None, typer.Argument(help="Show only settings that contain all of these words.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List the settings of the server: option, environment variable, default, what it does."""
    chosen = [each for each in describe_settings() if _contains(each, words or ())]
    if as_json:
        rows = [
            {
                "variable": each.variable,
                "flag": each.flag,
                "default": each.default or None,
                "group": each.group,
                "description": each.description,
            }
            for each in chosen
        ]
        print(json.dumps(rows, indent=1))
        return
    if not chosen:
        raise typer.BadParameter(f"No setting contains {' and '.join(words or ())}.")
    table = Table(show_edge=False, show_lines=True)
    table.add_column("option\nenvironment variable", no_wrap=True)  # to be copied whole
    table.add_column("default", overflow="fold")
    table.add_column("")
    for each in chosen:
        names = f"{each.flag or '(secret)'}\n{each.variable}"
        table.add_row(names, each.default, each.description)
    Console().print(table)


def _contains(setting: SettingDescription, words: Any) -> bool:
    text = f"{setting.variable} {setting.flag} {setting.group} {setting.description}".lower()
    return all(word.lower() in text for word in words)
