"""The manifests fit Kubernetes' schemas, the images, and what a server answers."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from service.app import create_app
from service.settings import Settings
from tests.support.paths import REPO

validate = pytest.importorskip("kubernetes_validate")
FOLDER = REPO / "deploy" / "kubernetes"
BASE = FOLDER / "base"
FILES = sorted(path for path in BASE.glob("*.yaml") if path.stem != "kustomization")
KUSTOMIZATION = yaml.safe_load((BASE / "kustomization.yaml").read_text())
IMAGES = yaml.safe_load((FOLDER / "kustomization.yaml").read_text())["images"]
EVERY = [one for path in FILES for one in yaml.safe_load_all(path.read_text())]
PODS = {
    one["metadata"]["name"]: one["spec"]["template"]
    for one in EVERY
    if one["kind"] in ("Deployment", "StatefulSet")
}
each_pod = pytest.mark.parametrize("name", PODS)


@pytest.mark.parametrize("one", EVERY, ids=lambda one: f"{one['kind']}-{one['metadata']['name']}")
def test_the_schema_of_kubernetes(one: dict[str, Any]) -> None:
    validate.validate(one, validate.latest_version(), strict=True)


def test_every_file_is_applied() -> None:
    assert sorted(KUSTOMIZATION["resources"]) == [path.name for path in FILES]


@each_pod
def test_a_pod_may_do_little(name: str) -> None:
    spec = PODS[name]["spec"]
    assert spec["automountServiceAccountToken"] is False
    assert spec["securityContext"]["runAsNonRoot"]
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    for container in spec["containers"]:
        allowed = container["securityContext"]
        assert allowed["readOnlyRootFilesystem"]
        assert not allowed["allowPrivilegeEscalation"]
        assert allowed["capabilities"] == {"drop": ["ALL"]}
        assert {"cpu", "memory"} <= container["resources"]["limits"].keys()
        mounted = {mount["name"] for mount in container["volumeMounts"]}
        volumes = {volume["name"] for volume in spec.get("volumes", [])} | {"data"}
        assert mounted <= volumes


def test_selectors_find_their_pods() -> None:
    labels = {name: PODS[name]["metadata"]["labels"] for name in PODS}
    for one in EVERY:
        selector = one["spec"].get("selector") or one["spec"].get("podSelector")
        if selector is not None:
            wanted = selector.get("matchLabels", selector)
            name = one["metadata"]["name"]
            assert wanted.items() <= labels[name].items(), name
        if one["kind"] == "HorizontalPodAutoscaler":
            assert one["spec"]["scaleTargetRef"]["name"] in PODS


def test_what_is_probed_is_there() -> None:
    paths = create_app(Settings()).openapi()["paths"].keys()
    for pod in PODS.values():
        for container in pod["spec"]["containers"]:
            for kind in ("startupProbe", "readinessProbe", "livenessProbe"):
                if "httpGet" in container.get(kind, {}):
                    assert container[kind]["httpGet"]["path"] in paths


def test_settings_and_metrics_are_the_server_s(tmp_path: Path) -> None:
    literals = KUSTOMIZATION["configMapGenerator"][0]["literals"]
    known = {f"BASIN_{name.upper()}" for name in Settings.model_fields}
    assert {literal.partition("=")[0] for literal in literals} <= known
    [scaler] = [one for one in EVERY if one["kind"] == "HorizontalPodAutoscaler"]
    metrics = [metric["pods"]["metric"]["name"] for metric in scaler["spec"]["metrics"]]
    text = create_app(Settings(job_store=tmp_path / "jobs")).state.context.metrics.render()
    adapter = FOLDER / "components/monitoring/adapter-values.yaml"
    [rule] = yaml.safe_load(adapter.read_text())["rules"]["custom"]
    exposed = re.search('__name__=~"(.+?)"', rule["seriesQuery"])[1]
    for metric in metrics:
        assert f"# TYPE {metric} gauge".encode() in text
        assert re.match(exposed, metric)
    targets = {m["pods"]["metric"]["name"]: m["pods"]["target"] for m in scaler["spec"]["metrics"]}
    half = str(Settings().queue_size // 2)
    assert targets["basin_queue_depth"] == {"type": "AverageValue", "averageValue": half}


def test_redis_has_the_options_of_compose() -> None:
    """A test of compose asks a real Redis what they give."""
    [container] = PODS["redis"]["spec"]["containers"]
    compose = yaml.safe_load((REPO / "docker-compose.yml").read_text())["services"]["redis"]
    assert container["command"] == compose["command"]
    assert container["image"] == compose["image"]
    limit = compose["deploy"]["resources"]["limits"]["memory"]
    assert container["resources"]["limits"]["memory"] == limit.replace("m", "Mi")


@pytest.mark.parametrize("name", ["server", "worker"])
def test_there_is_time_to_end(name: str) -> None:
    spec = PODS[name]["spec"]
    [container] = spec["containers"]
    before = container.get("lifecycle", {}).get("preStop", {}).get("sleep", {}).get("seconds", 0)
    needed = before + Settings().shutdown_timeout_s
    assert spec["terminationGracePeriodSeconds"] >= needed + 5


def test_images_are_of_one_version() -> None:
    renamed = {image["name"] for image in IMAGES}
    for pod in PODS.values():
        for container in pod["spec"]["containers"]:
            image = container["image"]
            assert image in renamed or re.search(r":\d+\.\d+\.\d+(-\w+)?$", image)
