"""`basin serve`, `basin settings` and what the command line says without its extras."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from basin_client.errors import _LIBRARIES
from typer.testing import CliRunner

from basin.cli import app
from basin.serve import to_environment
from service.settings import Settings
from service.settings.describe import describe_settings, to_markdown
from tests.support.paths import REPO

CODE = ("models", "service", "training", "basin", "client")
COMMAND = [sys.executable, "-m", "basin"]


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("BASIN_")}
    return subprocess.run(
        [*COMMAND, *arguments],
        capture_output=True,
        text=True,
        env=clean | environment,
        timeout=120,
        cwd=REPO,
    )


def test_every_setting_but_secrets_is_an_option() -> None:
    text = CliRunner().invoke(app, ["serve", "--help"], env={"COLUMNS": "400"}).stdout
    for setting in describe_settings():
        assert setting.variable in text
        if setting.flag is not None:
            assert f"{setting.flag} " in text
    secrets = {setting.name for setting in describe_settings() if setting.flag is None}
    assert secrets == {"redis_url", "webhook_secret"}
    for group in Settings.groups():
        assert f"─ {group.title} ─" in text


def test_options_become_variables_of_the_environment() -> None:
    options = {"max_nodes": "7", "open": True, "ui": False, "host": None}
    environment = to_environment(options, {"BASIN_MAX_NODES": "5", "BASIN_HOST": "::1"})
    assert environment == {
        "BASIN_MAX_NODES": "7",
        "BASIN_OPEN": "true",
        "BASIN_UI": "false",
        "BASIN_HOST": "::1",
    }


def test_settings_are_grouped_completely() -> None:
    names = [name for group in Settings.groups() for name in group.model_fields]
    assert sorted(names) == sorted(Settings.model_fields)


def test_the_settings_in_the_docs_are_those_of_the_code() -> None:
    assert (REPO / "docs" / "settings.md").read_text() == to_markdown()


def test_names_of_settings_are_printed_whole_on_a_narrow_terminal(monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    printed = CliRunner().invoke(app, ["settings"]).stdout
    for setting in describe_settings():
        assert f"{setting.variable} " in printed


def test_settings_are_searched() -> None:
    rows = json.loads(CliRunner().invoke(app, ["settings", "redis", "seconds", "--json"]).stdout)
    assert {row["variable"] for row in rows} == {"BASIN_REDIS_TIMEOUT_S", "BASIN_JOB_LEASE_S"}
    table = CliRunner().invoke(app, ["settings", "Deadline"], env={"COLUMNS": "200"}).stdout
    assert "--deadline-s" in table
    assert "BASIN_DEADLINE_S" in table
    nothing = CliRunner().invoke(app, ["settings", "teapot"])
    assert nothing.exit_code == 2
    assert "No setting contains teapot" in nothing.stderr


def test_a_wrong_option_and_a_wrong_value_end_with_a_message(tmp_path: Path) -> None:
    unknown = run("serve", "--max-nodess", "3")
    assert unknown.returncode == 2
    assert "--max-nodes" in unknown.stderr
    wrong = run("serve", "--max-nodes", "many")
    assert wrong.returncode == 1
    assert wrong.stderr.startswith("BASIN_MAX_NODES (--max-nodes): ")


def test_a_server_without_a_model_ends(tmp_path: Path) -> None:
    arguments = ("serve", "--port", "0", "--checkpoints", str(tmp_path))
    stores = {f"BASIN_{name}_STORE": str(tmp_path / name) for name in ("JOB", "GRAPH", "MEMORY")}
    result = run(*arguments, "--log-format", "text", **stores)
    assert result.returncode == 4
    assert "no model to serve" in result.stderr
    assert "BASIN_WAIT_FOR_MODELS" in result.stderr


def test_the_version_is_that_of_the_file() -> None:
    result = CliRunner().invoke(app, ["--version"])
    assert result.stdout == f"basin {(REPO / 'client' / 'VERSION').read_text()}"


@pytest.mark.parametrize(
    ("hidden", "arguments", "advice"),
    [
        ("pandas", ("classify", "CCO"), "pip install 'basin-server[cli]'"),
        ("lightning_fabric", ("train", "--help"), "pip install 'basin-server[train]'"),
    ],
)
def test_a_missing_extra_is_named(hidden: str, arguments: tuple[str, ...], advice: str) -> None:
    """With a library hidden, as in an environment without the extra."""
    code = f"""
import importlib.util, sys
find = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None if name == {hidden!r} else find(name, *rest)
from basin.cli import main
main()
"""
    result = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, cwd=REPO
    )
    assert result.returncode == 1
    assert advice in result.stderr


def test_extras_that_messages_name_exist() -> None:
    """Of both distributions."""
    for name, file in (
        ("basin-server", "pyproject.toml"),
        ("basin-client", "client/pyproject.toml"),
    ):
        extras = tomllib.loads((REPO / file).read_text())["project"]["optional-dependencies"]
        sources = [p for folder in CODE for p in (REPO / folder).rglob("*.py")]
        text = "\n".join(path.read_text() for path in sources)
        named = set(re.findall(rf"pip install '{name}\[(\w+)\]'", text))
        if name == "basin-client":
            named |= set(_LIBRARIES)  # of which its one message is made
        assert named
        assert named <= set(extras), name
