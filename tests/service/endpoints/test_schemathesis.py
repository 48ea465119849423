"""Schemathesis asks whatever the OpenAPI document allows, and what it does not."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.server import Server

# What no schema can say is answered 422: features of a model, SMILES that are none, a memory that
# points nowhere; what is no picture, or is too large, 415 and 413. Who gives it a millisecond is
# answered 504, as asked; who stores more than there is room for, 507.
SETTINGS = """
[checks.not_a_server_error]
expected-statuses = ["2xx", "3xx", "4xx", "504", "507"]
[checks.positive_data_acceptance]
expected-statuses = ["2xx", "404", "409", "413", "415", "422", "429", "504", "507"]

# Nor that bytes begin with JSON.
[[operations]]
include-path-regex = "/infer$"
[operations.checks.positive_data_acceptance]
expected-statuses = ["2xx", "400", "404", "409", "413", "415", "422", "429", "504", "507"]
"""
# The phase of boundary values makes thousands of cases, most of them for parts of a request that
# these routes have in common with the others.
FEWER = """
[[operations]]
include-path-regex = "^/(images/|complete|classify|v2/)"
[operations.phases.coverage]
enabled = false
"""
DEADLINE_MS = 60_000


def judged(server: Server, examples: int, folder: Path, config: str = SETTINGS) -> str:
    """What Schemathesis says, by all its checks; it fails where any of them does."""
    (folder / "settings.toml").write_text(config)
    run = [
        *(sys.executable, "-m", "schemathesis.cli", "--config-file", "settings.toml", "run"),
        *(f"{server.url}/openapi.json", "--max-examples", str(examples), "--seed", "1"),
        *("--checks", "all", "--continue-on-failure", "--request-timeout", "30", "--no-color"),
    ]
    done = subprocess.run(run, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-20_000:] + done.stderr[-4000:]
    answered = [line for line in server.log_lines() if line["event"] == "request"]
    late = [line for line in answered if line["status"] == 504 and line["ms"] >= DEADLINE_MS]
    broken = [line for line in answered if line["status"] == 500]
    assert late == broken == []
    return done.stdout


def cases(told: str) -> int:
    found = re.search(r"(\d+) generated", told)
    assert found
    return int(found[1])


def test_the_document_holds(server: Server, tmp_path: Path) -> None:
    assert cases(judged(server, 3, tmp_path, SETTINGS + FEWER)) > 2000


@pytest.mark.slow
@pytest.mark.timeout(3000)
def test_the_document_holds_thousands_of_times(server: Server, tmp_path: Path) -> None:
    assert cases(judged(server, 300, tmp_path)) > 5000
