"""Wheels, installed into an empty environment, serve the shipped models outside the checkout."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from tests.support.paths import REPO
from tests.support.server import wait_until

PACKAGES = ("basin", "basin_client", "models", "service", "training")
LOCAL = (".git", ".venv", "var", "site", "build", "runs", "*.egg-info", "__pycache__", ".*_cache")
CURL = re.compile(r"^curl (?:.*\\\n)*.*$", re.M)


def run(*command: object, cwd: Path = REPO) -> str:
    result = subprocess.run(
        list(map(str, command)), cwd=cwd, capture_output=True, text=True, timeout=280
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def build(source: Path, dist: Path) -> Path:
    """Build a wheel of a source tree or of a source distribution."""
    run(sys.executable, "-m", "pip", "wheel", "--no-deps", "--wheel-dir", dist, source)
    (wheel,) = dist.glob("*.whl")
    return wheel


def install(python: Path, *what: object) -> None:
    """Install as the Makefile does: with uv, or with pip where uv has no index."""
    uv = Path(sys.executable).with_name("uv")
    command = [uv, "pip", "install", "--quiet", "--python", python, *what]
    environment = os.environ | {"UV_HTTP_TIMEOUT": "15"}
    if subprocess.run(list(map(str, command)), capture_output=True, env=environment).returncode:
        run(python, "-m", "pip", "install", "--quiet", *what)


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the sources, in which builds leave what they like."""
    tree = tmp_path_factory.mktemp("packaging") / "tree"
    shutil.copytree(REPO, tree, ignore=shutil.ignore_patterns(*LOCAL))
    return tree


@pytest.fixture(scope="module")
def wheels(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    sources = {"basin-server": tree, "basin-client": tree / "client"}
    return {name: build(sources[name], tmp_path_factory.mktemp(name)) for name in sources}


def create_environment(folder: Path) -> Path:
    """Return Python of a new, empty environment."""
    run(sys.executable, "-m", "venv", folder)
    return folder / "bin" / "python"


def uninstall(python: Path, *names: str) -> None:
    """Uninstall, and check that no file of ours stays."""
    run(python, "-m", "pip", "uninstall", "--yes", *names)
    paths = run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))")
    left = [path for name in PACKAGES for path in Path(paths.strip()).glob(f"{name}/**/*")]
    assert [path for path in left if path.is_file()] == []


def test_the_source_distribution_has_all_that_the_wheel_has(
    tree: Path, wheels: dict[str, Path], tmp_path: Path
) -> None:
    code = "from setuptools.build_meta import build_sdist; print(build_sdist(%r))"
    for source, wheel in (
        (tree, wheels["basin-server"]),
        (tree / "client", wheels["basin-client"]),
    ):
        out = tmp_path / wheel.stem
        name = run(sys.executable, "-c", code % str(out), cwd=source).splitlines()[-1]
        again = build(out / name, tmp_path / f"{wheel.stem}-again")
        assert zipfile.ZipFile(again).namelist() == zipfile.ZipFile(wheel).namelist()


def test_the_wheel_has_the_models_and_the_page(wheels: dict[str, Path]) -> None:
    names = zipfile.ZipFile(wheels["basin-server"]).namelist()
    for folder in ("checkpoints", "memories"):
        shipped = [p for p in (REPO / folder).rglob("*") if p.is_file()]
        expected = {f"models/shipped/{path.relative_to(REPO).as_posix()}" for path in shipped}
        assert expected == {name for name in names if f"/shipped/{folder}/" in name}
    assert "service/endpoints/page/static/page.js" in names
    assert not any(name.startswith(("tests/", "basin_client/")) for name in names)


@contextmanager
def serve(python: Path, folder: Path) -> Iterator[str]:
    """Serve by `basin serve` in an empty folder, with a home of its own; yield the address."""
    for name in ("home", "empty"):
        (folder / name).mkdir()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    own = ("BASIN_", "XDG_", "PYTHONPATH", "NUMBA_")
    environment = {name: v for name, v in os.environ.items() if not name.startswith(own)}
    environment |= {"HOME": str(folder / "home"), "OMP_NUM_THREADS": "1"}
    command = [python.with_name("basin"), "serve", "--port", str(port)]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, cwd=folder / "empty", env=environment, stderr=log)
    url = f"http://127.0.0.1:{port}"

    def is_ready() -> bool:
        assert process.poll() is None, (folder / "log").read_text()
        try:
            return httpx.get(f"{url}/health/ready").status_code == 200
        except httpx.TransportError:
            return False

    try:
        wait_until(is_ready, 270)
        yield url
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0


@pytest.mark.timeout(600)  # on a first start all kernels are compiled
def test_installed_wheels_serve_the_shipped_models(wheels: dict[str, Path], tmp_path: Path) -> None:
    python, lone = (create_environment(tmp_path / name) for name in ("server", "client"))
    version = run(sys.executable, "-c", "import torch; print(torch.__version__)").strip()
    install(python, f"torch=={version.partition('+')[0]}", *wheels.values())
    install(lone, wheels["basin-client"])
    with serve(python, tmp_path) as url:
        models = {model["name"] for model in httpx.get(f"{url}/models").json()["models"]}
        assert models == {path.name for path in (REPO / "checkpoints").iterdir() if path.is_dir()}
        curls = CURL.findall((REPO / "README.md").read_text())
        assert curls
        for curl in curls:
            answer = run("sh", "-c", curl.replace("http://127.0.0.1:8000", url) + " --fail")
            assert json.loads(answer)["results"]
        page = httpx.get(url, headers={"accept": "text/html"}).text
        assert page.startswith("<!doctype html>")
        code = (
            "import sys; from basin_client import Client; print(len(Client(sys.argv[1]).models()))"
        )
        assert int(run(lone, "-c", code, url, cwd=tmp_path)) == len(models)
    assert list((tmp_path / "empty").iterdir()) == []
    assert (tmp_path / "home" / ".local" / "state" / "basin" / "jobs.sqlite").exists()
    uninstall(python, "basin-server", "basin-client")
    uninstall(lone, "basin-client")
