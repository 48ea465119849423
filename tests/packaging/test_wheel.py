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
    """Build a source distribution, and a wheel of it."""
    code = "from setuptools.build_meta import build_sdist; print(build_sdist(%r))"
    name = run(sys.executable, "-c", code % str(dist), cwd=source).splitlines()[-1]
    run(sys.executable, "-m", "pip", "wheel", "--no-deps", "--wheel-dir", dist, dist / name)
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
    """The wheels, built from source distributions, so that these lack nothing."""
    return {
        name: build(source, tmp_path_factory.mktemp(name))
        for name, source in (("basin-server", tree), ("basin-client", tree / "client"))
    }


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


def list_files(wheel: Path) -> set[str]:
    return {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}


def test_the_wheels_have_all_code_and_what_ships(wheels: dict[str, Path]) -> None:
    server = [p for name in ("basin", "models", "service", "training") for p in walk(REPO / name)]
    shipped = [p for name in ("checkpoints", "memories") for p in walk(REPO / name)]
    expected = {path.relative_to(REPO).as_posix() for path in server}
    expected |= {f"models/shipped/{path.relative_to(REPO).as_posix()}" for path in shipped}
    assert list_files(wheels["basin-server"]) == expected
    client = {path.relative_to(REPO / "client") for path in walk(REPO / "client" / "basin_client")}
    assert list_files(wheels["basin-client"]) == {path.as_posix() for path in client}


def walk(folder: Path) -> list[Path]:
    """Files of a folder, without what Python and numba cache there."""
    return [p for p in folder.rglob("*") if p.is_file() and "__pycache__" not in p.parts]


@contextmanager
def serve(python: Path, folder: Path) -> Iterator[str]:
    """Serve by `basin serve` in an empty folder, with a home of its own; yield the address."""
    for name in ("home", "empty", "empty/models"):
        (folder / name).mkdir()
    # A package of the user's, which is not to be taken for that of the server.
    (folder / "empty" / "models" / "__init__.py").write_text("raise ImportError")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    own = ("BASIN_", "XDG_", "PYTHONPATH", "NUMBA_")
    environment = {name: v for name, v in os.environ.items() if not name.startswith(own)}
    environment |= {"HOME": str(folder / "home"), "OMP_NUM_THREADS": "1"}
    environment["NUMBA_DISABLE_JIT"] = "1"  # compiling all kernels takes a minute
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


@pytest.mark.timeout(600)  # installing torch may take minutes
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
    assert [path.name for path in (tmp_path / "empty").iterdir()] == ["models"]
    assert (tmp_path / "home" / ".local" / "state" / "basin" / "jobs.sqlite").exists()
    uninstall(python, "basin-server", "basin-client")
    uninstall(lone, "basin-client")
