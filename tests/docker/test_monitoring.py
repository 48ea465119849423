"""What Prometheus and Grafana are given: rules that fire when they should, and panels that show
something, asked of a real Prometheus that scrapes a server under load."""

from __future__ import annotations

import io
import re
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import matplotlib as mpl
import numpy as np
import pytest
import yaml
from dashboards import DASHBOARDS, FOLDER, render_files
from grafana_foundation_sdk.models.dashboard import Dashboard, Panel
from panels import list_panels
from pictures import draw
from PIL import Image

from benchmarks.monitored import prometheus
from tests.support.checkpoints import Sample
from tests.support.server import REPO, Server, Start, answers_with, wait_until

DOCKER = REPO / "docker"
needs_prometheus = pytest.mark.skipif(
    shutil.which("prometheus") is None, reason="there is no prometheus (Debian's package has it)"
)
needs_promtool = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="there is no promtool (Debian's package prometheus)"
)


def test_the_dashboards_are_those_of_their_source() -> None:
    there = {path.name: path.read_text() for path in FOLDER.glob("*.json")}
    assert there == render_files(), "run python docker/grafana/dashboards.py"


@needs_promtool
@pytest.mark.parametrize(
    "command",
    [
        ("check", "rules", "rules/basin.yml"),
        ("test", "rules", "tests/basin.yml"),
    ],
)
def test_the_rules_do_what_they_say(command: tuple[str, ...]) -> None:
    done = subprocess.run(
        ["promtool", *command], cwd=DOCKER / "prometheus", capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr


def read_alerts() -> list[dict[str, Any]]:
    rules = yaml.safe_load((DOCKER / "prometheus/rules/basin.yml").read_text())
    return [rule for group in rules["groups"] for rule in group["rules"] if "alert" in rule]


def test_every_alert_is_tested() -> None:
    tests = yaml.safe_load((DOCKER / "prometheus/tests/basin.yml").read_text())["tests"]
    cases = [case for test in tests for case in test["alert_rule_test"]]
    fired = {case["alertname"] for case in cases if case["exp_alerts"]}
    assert fired == {rule["alert"] for rule in read_alerts()}


@pytest.mark.parametrize("rule", read_alerts(), ids=lambda rule: rule["alert"])
def test_an_alert_has_a_runbook(rule: dict[str, Any]) -> None:
    base, _, anchor = rule["annotations"]["runbook_url"].partition("#")
    assert base == "{{ $externalLabels.docs }}operations.html"
    headings = re.findall(r"^#+ (.+)$", (REPO / "docs/operations.md").read_text(), re.M)
    [heading] = [heading for heading in headings if heading.lower() == anchor]
    text = (REPO / "docs/operations.md").read_text()
    runbook = text.split(f"### {heading}\n")[1].split("\n#")[0]
    assert rule["alert"] == heading or f"`{rule['alert']}`" in runbook
    assert f"`{rule['labels']['severity']}`" in runbook
    for part in ("Seen", "Means", "Look at", "Do"):
        assert f"- **{part}**: " in runbook


def _png(pixels: np.ndarray) -> bytes:
    out = io.BytesIO()
    Image.fromarray(pixels.astype(np.uint8)).save(out, "PNG")
    return out.getvalue()


def load(server: Server, make: Callable[..., Sample], seconds: float) -> None:
    """One request after the other, of every kind; some are refused."""
    picture = {"image": _png(np.full((40, 40, 3), 99)), "mask": _png(np.eye(40) * 255)}
    patterns = np.random.default_rng(0).standard_normal((5, 8)).tolist()
    requests: list[dict[str, Any]] = [
        {"url": "/anomaly/score", "json": make(0).arrays(model="et-small")},
        {
            "url": "/anomaly/score",
            "json": make(1).arrays(model="et-small", dynamics={"tolerance": 0.9}),
        },
        {"url": "/classify", "json": {"model": "cdat-mol", "smiles": ["CCO", "no"]}},
        {"url": "/complete", "files": picture, "data": {"model": "et-tile"}},
        {
            "url": "/images/classify",
            "files": {"image": picture["image"]},
            "data": {"model": "ait-glyph"},
        },
        {
            "url": "/sample",
            "json": {
                "memory": {"patterns": patterns},
                "num_samples": 4,
                "steps": 40,
                "burn_in": 10,
                "method": "mala",
            },
        },
        {"url": "/anomaly/score", "json": {"model": "et-small", "graph": {}}},
        {
            "url": "/anomaly/score",
            "json": make(0).arrays(model="et-small"),
            "headers": {"prefer": "respond-async"},
        },
    ]
    end, statuses = time.monotonic() + seconds, set()
    with httpx.Client(base_url=server.url, timeout=60) as client:
        while time.monotonic() < end:
            for request in requests:
                statuses.add(client.post(**request).status_code)
    assert statuses == {200, 202, 422}


@needs_prometheus
def test_every_panel_shows_something(
    start: Start, checkpoints: Path, sample: Callable[..., Sample], tmp_path: Path
) -> None:
    server = start(checkpoints=checkpoints, cache_bytes=1_000_000)
    wait_until(lambda: answers_with(server, "/health/ready", 200))
    host = server.url.removeprefix("http://")
    with prometheus(host, "500ms") as prometheus_client:
        load(server, sample, 8)
        groups = prometheus_client.get("/api/v1/rules").raise_for_status().json()["data"]["groups"]
        rules = [rule for group in groups for rule in group["rules"]]
        assert {rule["health"] for rule in rules} <= {"ok", "unknown"}
        assert len(rules) > 10
        for page in DASHBOARDS.values():
            _require_choices(prometheus_client, page)
            for annotation in page.annotations.list_val:
                _query(prometheus_client, annotation.expr)
            for panel in list_panels(page):
                _require_shown(prometheus_client, panel)
            mpl.use("agg")
            with Image.open(draw(page, prometheus_client, 20, tmp_path)) as picture:
                assert picture.width > 1000


def _query(prometheus_client: httpx.Client, query: str) -> list[dict[str, Any]]:
    query = re.sub(r"\$(model|route)\b", ".*", query.replace("$__rate_interval", "10s"))
    answer = prometheus_client.get("/api/v1/query", params={"query": query}).json()
    assert answer["status"] == "success", f"{query}: {answer}"
    return answer["data"]["result"]


def _require_choices(prometheus_client: httpx.Client, page: Dashboard) -> None:
    for variable in page.templating.list_val or ():
        metric, label = re.fullmatch(r"label_values\((\w+), (\w+)\)", variable.query).groups()
        url = f"/api/v1/label/{label}/values"
        answer = prometheus_client.get(url, params={"match[]": metric}).json()
        assert answer["data"], f"{page.title}: nothing to choose by {label}"


def _require_shown(prometheus_client: httpx.Client, panel: Panel) -> None:
    """A panel shows each query, with the labels of its legend, unless it says what it means that
    there is nothing to show."""
    may_be_empty = panel.field_config.defaults.no_value is not None
    for target in panel.targets:
        end = time.monotonic() + 5  # a rate needs two scrapes after what it counts
        while not (result := _query(prometheus_client, target.expr)):
            if may_be_empty or time.monotonic() > end:
                break
            time.sleep(0.2)
        assert result or may_be_empty, f"{panel.title}: nothing for {target.expr}"
        for series in result:
            for label in re.findall(r"{{(\w+)}}", target.legend_format):
                assert label in series["metric"], f"{panel.title}: no {label}"


def test_panels_are_described() -> None:
    for page in DASHBOARDS.values():
        panels = list(list_panels(page))
        assert any(panel.type_val == "stat" for panel in panels)
        for panel in panels:
            assert panel.description, panel.title
            assert panel.field_config.defaults.unit, panel.title
        assert {annotation.name for annotation in page.annotations.list_val} == {
            "Restarts",
            "Model loads",
            "Alerts",
        }


def test_alerts_that_panels_name_are_alerts() -> None:
    alerts = {rule["alert"] for rule in read_alerts()}
    text = "".join(panel.description for page in DASHBOARDS.values() for panel in list_panels(page))
    named = set(re.findall(r"\bBasin[A-Z]\w+", text))
    assert named
    assert named <= alerts
