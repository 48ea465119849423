"""Nothing that a server reads is ever unpickled: no request, checkpoint, memory, job or answer."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.service.endpoints.jobs.test_api import begin, over
from tests.service.endpoints.sample.test_api import body
from tests.support.server import REPO, answers_with, wait_until

# But for numba, whose cache of kernels that it has compiled here is machine code, and a pickle.
_WATCHED = """
import sys
def hook(event, args):
    if event == "pickle.find_class":
        frame, names = sys._getframe(1), set()
        while frame is not None:
            names.add(frame.f_globals.get("__name__"))
            frame = frame.f_back
        if not any(str(name).startswith("numba.core") for name in names):
            sys.stderr.write('{"event": "unpickled", "by": "%s"}\\n' % sorted(map(str, names)))
            sys.stderr.flush()
sys.addaudithook(hook)
import service.__main__ as main
main.main()
"""
_UNSAFE = {"pickle", "cPickle", "dill", "joblib", "shelve", "marshal", "cloudpickle"}


def imported(path: Path) -> set[str]:
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module.partition(".")[0])
        elif isinstance(node, ast.Attribute) and ast.unparse(node) in ("torch.load", "torch.save"):
            names.add("pickle")
    return names


@pytest.mark.parametrize("package", ["service", "models", "training"])
def test_no_module_can(package: str) -> None:
    files = sorted((REPO / package).rglob("*.py"))
    assert files
    for path in files:
        assert not imported(path) & _UNSAFE, path


def test_no_server_does(start, checkpoints, redis_server, sample, wait) -> None:
    store = redis_server()
    server = start(
        *("-c", _WATCHED),
        checkpoints=checkpoints,
        default_anomaly_model="et-small",
        default_classify_model="cdat-mol",
        redis_url=store.url,
        cache_bytes=1 << 20,
        memory_store=store.folder / "memories",
    )
    wait_until(lambda: answers_with(server, "/health/ready", 200))
    with server.client() as client:
        for _ in range(2):  # computed, and from the cache
            assert client.post("/anomaly/score", json=sample(1).arrays()).status_code == 200
            assert client.post("/classify", json={"smiles": ["CCO"]}).status_code == 200
            assert client.post("/sample", json=body()).status_code == 200
        assert client.put("/memories/m", json={"patterns": [[1.0, 0.0]]}).status_code == 201
        assert client.get("/memories/m").status_code == 200
        over(client, wait, begin(client, "/sample", body(seed=2)))
        wait(lambda: store.client.keys("basin:answer:*"))
        for key in store.client.keys("*"):
            if store.client.type(key) == b"string":
                assert not store.client.get(key).startswith(b"\x80")
    lines = server.log_lines()
    assert any(line["event"] == "request" for line in lines)
    assert not [line for line in lines if line["event"] == "unpickled"]
