"""docker-compose.yml and the Dockerfiles agree with their schema, each other and the settings."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from service.settings import Settings
from tests.support.paths import REPO
from tests.support.redis_server import RedisServer

COMPOSE = yaml.safe_load((REPO / "docker-compose.yml").read_text())
SERVICES = COMPOSE["services"]
DOCKERFILES = sorted((REPO / "docker").glob("*.Dockerfile"))

each_service = pytest.mark.parametrize("service", SERVICES.values(), ids=SERVICES)
each_dockerfile = pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.stem)


def test_the_schema_of_compose() -> None:
    check = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec"]
    done = subprocess.run(
        [*check, REPO / "docker-compose.yml"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


@each_service
def test_a_service_may_do_little(service: dict[str, Any]) -> None:
    assert service["read_only"]
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert {"cpus", "memory", "pids"} <= service["deploy"]["resources"]["limits"].keys()
    assert "restart" in service
    assert "healthcheck" in service
    assert all(port.startswith("127.0.0.1:") for port in service.get("ports", []))


@each_service
def test_a_service_is_built_here_or_of_one_version(service: dict[str, Any]) -> None:
    if "build" not in service:
        assert re.search(r":v?\d+\.\d+\.\d+(-\w+)?$", service["image"])
        return
    text = (REPO / service["build"]["dockerfile"]).read_text()
    target = service["build"].get("target")
    assert target is None or f" AS {target}\n" in text


@each_service
def test_what_a_service_mounts_is_there(service: dict[str, Any]) -> None:
    for mount in service.get("volumes", []):
        source = mount.partition(":")[0]
        if source.startswith("."):
            assert (REPO / source).exists()
        elif not source.startswith("$"):
            assert source in COMPOSE["volumes"]


@each_service
def test_a_service_waits_for_services(service: dict[str, Any]) -> None:
    for name, wanted in service.get("depends_on", {}).items():
        assert "healthcheck" in SERVICES[name]
        assert wanted["condition"] == "service_healthy"
    assert set(service["networks"]) <= COMPOSE["networks"].keys()


def test_redis_keeps_what_is_stored(redis_server: Callable[..., RedisServer]) -> None:
    program, *options = SERVICES["redis"]["command"]
    assert program == "redis-server"
    server = redis_server(*options)
    assert server.list_warnings() == []
    settings = server.client.config_get("maxmemory", "appendfsync")
    assert settings["appendfsync"] == "everysec"
    container = SERVICES["redis"]["deploy"]["resources"]["limits"]["memory"]
    row = (
        "| `appendonly yes`, `appendfsync everysec`: the default of `appendfsync`, and what compose"
    )
    policy = "| `maxmemory-policy volatile-lru`, as compose and Kubernetes have"
    assert server.client.config_get("maxmemory-policy") == {"maxmemory-policy": "volatile-lru"}
    table = (REPO / "docs/operations.md").read_text()
    assert f"\n{row}" in table
    assert f"\n{policy}" in table
    # A quarter is for buffers, and for what changes while Redis forks to rewrite its log.
    assert int(container.removesuffix("m")) * 2**20 >= 1.25 * int(settings["maxmemory"])


def test_settings_of_the_server_are_settings() -> None:
    known = {f"BASIN_{name.upper()}" for name in Settings.model_fields}
    for name, service in SERVICES.items():
        named = {key for key in service.get("environment", {}) if key.startswith("BASIN_")}
        assert named <= (known if name != "training" else {"BASIN_DATA"})
    text = (REPO / "docker" / "server.Dockerfile").read_text()
    assert set(re.findall(r"\b(BASIN_\w+)=", text)) <= known


def test_prometheus_scrapes_services() -> None:
    config = yaml.safe_load((REPO / "docker/prometheus/prometheus.yml").read_text())
    [basin] = [job for job in config["scrape_configs"] if job["job_name"] == "basin"]
    [static], [found] = basin["static_configs"], basin["dns_sd_configs"]
    hosts = {target.partition(":")[0] for target in static["targets"]}
    assert hosts | set(found["names"]) <= SERVICES.keys()


def test_alerts_go_to_the_alertmanager() -> None:
    config = yaml.safe_load((REPO / "docker/prometheus/prometheus.yml").read_text())
    [manager] = config["alerting"]["alertmanagers"]
    [hosts] = manager["dns_sd_configs"]
    [name] = hosts["names"]
    assert SERVICES[name]["profiles"] == ["alerts"]
    assert f"127.0.0.1:{hosts['port']}:{hosts['port']}" in SERVICES[name]["ports"]
    # Its label for the address of the documentation reaches the rules, and not the receivers.
    assert config["global"]["external_labels"] == {"docs": "${DOCS_URL}"}
    assert "DOCS_URL" in SERVICES["prometheus"]["environment"]
    assert {"action": "labeldrop", "regex": "docs"} in config["alerting"]["alert_relabel_configs"]


def test_the_alertmanager_knows_the_alerts() -> None:
    config = yaml.safe_load((REPO / "docker/alertmanager/alertmanager.yml").read_text())
    rules = (REPO / "docker/prometheus/rules/basin.yml").read_text()
    alerts = set(re.findall(r"alert: (\w+)", rules))
    named = set(re.findall(r"Basin\w+", str(config["inhibit_rules"])))
    assert named
    assert named <= alerts
    receivers = {receiver["name"] for receiver in config["receivers"]}
    assert {
        route["receiver"] for route in [config["route"], *config["route"]["routes"]]
    } == receivers


@pytest.mark.parametrize(
    "command",
    [
        ("promtool", "check", "config", "docker/prometheus/prometheus.yml"),
        ("amtool", "check-config", "docker/alertmanager/alertmanager.yml"),
    ],
    ids=lambda command: command[0],
)
def test_the_configuration_is_valid(command: tuple[str, ...]) -> None:
    if shutil.which(command[0]) is None:
        pytest.skip(f"no {command[0]} (Debian: packages prometheus and prometheus-alertmanager)")
    done = subprocess.run(command, cwd=REPO, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@each_dockerfile
def test_what_a_dockerfile_copies_is_sent_to_the_build(path: Path) -> None:
    sent = re.findall(r"^!(.+)$", (REPO / ".dockerignore").read_text(), re.M)
    copied = re.findall(r"^COPY (?!--from)(\S+) \S+$", path.read_text(), re.M)
    assert set(copied) <= set(sent)
    assert all((REPO / source).exists() for source in copied)


@each_dockerfile
def test_images_have_the_torch_of_make(path: Path) -> None:
    [torch] = re.findall(r"^TORCH \?= (\S+)$", (REPO / "Makefile").read_text(), re.M)
    assert f"ARG TORCH={torch}\n" in path.read_text()


@each_dockerfile
def test_nobody_is_root(path: Path) -> None:
    assert "\nUSER 10001:10001\n" in path.read_text()
