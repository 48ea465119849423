"""Log lines are JSON whatever they tell, and cost nobody an answer."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

_CONFIGURED = """
import logging, sys
import structlog
from service.observability import logs
logs.configure("info")
log = structlog.get_logger()
"""


def run(script: str, **how) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", _CONFIGURED + script], check=True, text=True, timeout=60, **how
    )


@pytest.fixture(scope="module")
def told() -> list[str]:
    script = """
log.debug("not told")
log.info("request", ms=1.5, key=None)
log.warning("odd", size=10**30, name="\\udc80", at=object())
try:
    raise RuntimeError("spilt")
except RuntimeError:
    log.exception("failed", request_id="r")
logging.getLogger("uvicorn.error").info("of %s", "uvicorn")
"""
    return run(script, stderr=subprocess.PIPE).stderr.splitlines()


@pytest.fixture(scope="module")
def lines(told) -> list[dict]:
    return [json.loads(line) for line in told]


def test_lines_of_others_are_written_alike(told):
    assert told[0].startswith('{"ms":1.5,')
    assert '"event":"of uvicorn"' in told[-1]


def test_lines_have_a_level_and_a_time(lines):
    found = [(line["event"], line["level"]) for line in lines]
    expected = [("request", "info"), ("odd", "warning"), ("failed", "error")]
    assert found == [*expected, ("of uvicorn", "info")]
    assert all(line["timestamp"].endswith("Z") for line in lines)
    assert (lines[0]["ms"], lines[0]["key"]) == (1.5, None)


def test_what_json_has_no_word_for_is_told_too(lines):
    assert (lines[1]["size"], lines[1]["name"]) == (10**30, "\udc80")
    assert lines[1]["at"].startswith("<object")


def test_a_failure_is_told_with_where_it_was(lines):
    assert "RuntimeError: spilt" in lines[2]["exception"]


@pytest.mark.parametrize("end", ["os.close(2)", "os.dup2(full[1], 2), os.close(full[0])"])
def test_where_nobody_listens_work_goes_on(end):
    script = f"""
import os
full = os.pipe()
{end}
for _ in range(3):
    log.info("lost")
print("done")
"""
    assert run(script, stdout=subprocess.PIPE).stdout == "done\n"
