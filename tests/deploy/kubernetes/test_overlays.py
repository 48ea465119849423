"""What kustomize makes of the overlays and components; custom resources as their documents say."""

from __future__ import annotations

import os
import re
import runpy
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from service.settings import Settings
from tests.support.paths import REPO

validate = pytest.importorskip("kubernetes_validate")
FOLDER = REPO / "deploy" / "kubernetes"
[VERSION, *_] = re.findall(r"^## (\d\S+)", (REPO / "CHANGELOG.md").read_text(), re.M)
COMPONENTS = sorted(path.name for path in (FOLDER / "components").iterdir())
CUSTOM = frozenset(("PodMonitor", "PrometheusRule"))
needs_kubectl = pytest.mark.skipif(shutil.which("kubectl") is None, reason="no kubectl on the path")
Resources = dict[tuple[str, str], dict[str, Any]]
"""Resources by kind and name."""


def render(folder: Path) -> Resources:
    command = ["kubectl", "kustomize", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    resources = yaml.safe_load_all(done.stdout)
    return {(each["kind"], each["metadata"]["name"]): each for each in resources}


def check_schemas(resources: Resources) -> None:
    for (kind, _), resource in resources.items():
        assert resource["metadata"]["namespace"] == "basin"
        if kind not in CUSTOM:
            validate.validate(resource, validate.latest_version(), strict=True)


def settings_of(resources: Resources) -> dict[str, str]:
    [settings] = [each["data"] for (kind, _), each in resources.items() if kind == "ConfigMap"]
    known = {f"BASIN_{name.upper()}" for name in Settings.model_fields}
    assert settings.keys() <= known
    return settings


@needs_kubectl
def test_the_default() -> None:
    resources = render(FOLDER)
    check_schemas(resources)
    for name in ("server", "worker"):
        [container] = resources["Deployment", name]["spec"]["template"]["spec"]["containers"]
        assert container["image"] == f"registry.example/basin-server:{VERSION}"


@needs_kubectl
def test_gpu() -> None:
    resources = render(FOLDER / "overlays" / "gpu")
    check_schemas(resources)
    assert settings_of(resources)["BASIN_DEVICE"] == "cuda"
    assert settings_of(resources)["BASIN_REDIS_URL"]
    for name in ("server", "worker"):
        pod = resources["Deployment", name]["spec"]["template"]["spec"]
        [container] = pod["containers"]
        assert container["image"] == f"registry.example/basin-server:{VERSION}-cuda"
        assert container["resources"]["limits"]["nvidia.com/gpu"] == 1
        assert [each["key"] for each in pod["tolerations"]] == ["nvidia.com/gpu"]


@needs_kubectl
def test_pvc() -> None:
    resources = render(FOLDER / "overlays" / "pvc")
    check_schemas(resources)
    settings = settings_of(resources)
    assert "BASIN_REDIS_URL" not in settings
    assert "BASIN_RUN_JOBS" not in settings  # by default a server runs them
    kinds = {kind for kind, _ in resources}
    assert not kinds & {"StatefulSet", "HorizontalPodAutoscaler"}
    assert [name for kind, name in resources if kind == "Deployment"] == ["server"]
    spec = resources["Deployment", "server"]["spec"]
    assert spec["replicas"] == 1
    assert spec["strategy"] == {"type": "Recreate"}
    volumes = {each["name"]: each for each in spec["template"]["spec"]["volumes"]}
    claim = volumes["state"]["persistentVolumeClaim"]["claimName"]
    assert ("PersistentVolumeClaim", claim) in resources
    # The image has its stores there.
    [mount] = [
        each["mountPath"]
        for each in spec["template"]["spec"]["containers"][0]["volumeMounts"]
        if each["name"] == "state"
    ]
    image = (REPO / "docker/server.Dockerfile").read_text()
    for store in ("JOB_STORE", "GRAPH_STORE", "MEMORY_STORE"):
        assert f"BASIN_{store}={mount}/" in image


@needs_kubectl
@pytest.mark.parametrize("component", COMPONENTS)
def test_a_component_beside_the_default(component: str, tmp_path: Path) -> None:
    relative = Path(os.path.relpath(FOLDER, tmp_path))
    kustomization = {
        "namespace": "basin",
        "resources": [str(relative / "base")],
        "components": [str(relative / "components" / component)],
    }
    (tmp_path / "kustomization.yaml").write_text(yaml.safe_dump(kustomization))
    resources = render(tmp_path)
    check_schemas(resources)
    assert ("Deployment", "server") in resources


def read(path: str) -> dict[str, Any]:
    return yaml.safe_load((FOLDER / "components" / path).read_text())


def test_every_file_of_a_component_is_applied() -> None:
    for component in COMPONENTS:
        listed = set(read(f"{component}/kustomization.yaml").get("resources", []))
        files = {path.name for path in (FOLDER / "components" / component).iterdir()}
        assert files - listed <= {"kustomization.yaml", "adapter-values.yaml"}


def test_the_pod_monitor_finds_what_serves_metrics() -> None:
    monitor = read("monitoring/podmonitor.yaml")
    assert (monitor["apiVersion"], monitor["kind"]) == ("monitoring.coreos.com/v1", "PodMonitor")
    assert monitor["spec"].keys() == {"selector", "podMetricsEndpoints"}
    [expression] = monitor["spec"]["selector"]["matchExpressions"]
    [endpoint] = monitor["spec"]["podMetricsEndpoints"]
    assert endpoint.keys() == {"port", "path", "interval", "authorization", "relabelings"}
    assert endpoint["path"] == "/metrics"
    assert endpoint["authorization"] == {"credentials": {"name": "basin-metrics-key", "key": "key"}}
    for name in expression["values"]:
        texts = (FOLDER / "base" / f"{name}.yaml").read_text().split("\n---\n")
        template = yaml.safe_load(texts[0])["spec"]["template"]
        assert template["metadata"]["labels"][expression["key"]] == name
        ports = template["spec"]["containers"][0]["ports"]
        assert endpoint["port"] in {port["name"] for port in ports}
    # The rules name this job.
    [relabeling] = endpoint["relabelings"]
    rules = (REPO / "docker/prometheus/rules/basin.yml").read_text()
    assert relabeling["targetLabel"] == "job"
    assert set(re.findall(r'job="(\w+)"', rules)) == {relabeling["replacement"]}


def test_the_rules_are_those_of_prometheus() -> None:
    script = runpy.run_path(str(FOLDER / "write_rules.py"))
    text = script["TARGET"].read_text()
    assert text == script["render_rules"](), "run python deploy/kubernetes/write_rules.py"
    resource = yaml.safe_load(text)
    assert (resource["apiVersion"], resource["kind"]) == (
        "monitoring.coreos.com/v1",
        "PrometheusRule",
    )
    rules = yaml.safe_load((REPO / "docker/prometheus/rules/basin.yml").read_text())
    assert resource["spec"] == rules


def test_the_ingress_lets_bodies_through() -> None:
    ingress = read("ingress/ingress.yaml")
    size = ingress["metadata"]["annotations"]["nginx.ingress.kubernetes.io/proxy-body-size"]
    assert size == f"{Settings().max_body_bytes >> 20}m"
    [rule], [tls] = ingress["spec"]["rules"], ingress["spec"]["tls"]
    assert tls["hosts"] == [rule["host"]]


def test_every_image_is_of_one_version() -> None:
    tags = {}
    for path in (FOLDER, FOLDER / "overlays/gpu", FOLDER / "overlays/pvc"):
        [image] = yaml.safe_load((path / "kustomization.yaml").read_text())["images"]
        tags[path.name] = image["newTag"]
    assert tags == {"kubernetes": VERSION, "gpu": f"{VERSION}-cuda", "pvc": VERSION}
