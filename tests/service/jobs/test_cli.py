"""`python -m service dead-jobs` over a damaged Redis."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from service.storage.memory_copies import claim_folder
from tests.support.redis_server import RedisServer
from tests.support.server import REPO


def test_damage_is_logged_on_stderr_and_no_folder_is_claimed(
    redis_server: Callable[..., RedisServer], tmp_path: Path
) -> None:
    redis = redis_server()
    redis.client.zadd("basin:jobs:waiting", {"ghost": 1})
    stores = {
        name: tmp_path / name.lower() for name in ("MEMORY_STORE", "GRAPH_STORE", "JOB_STORE")
    }
    copies = claim_folder(tmp_path / "memory_store-of-redis")  # as a server that runs beside
    before = sorted(tmp_path.rglob("*"))
    env = {
        **os.environ,
        **{f"BASIN_{name}": str(path) for name, path in stores.items()},
        "BASIN_REDIS_URL": redis.url,
    }
    command = [sys.executable, "-m", "service", "dead-jobs", "list"]
    done = subprocess.run(command, cwd=REPO, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (dead,) = map(json.loads, done.stdout.splitlines())
    assert (dead["id"], dead["reason"]) == ("ghost", "damaged: its hash is gone")
    logged = [json.loads(line) for line in done.stderr.splitlines()]
    assert "basin:job:ghost" in {line.get("key") for line in logged}
    assert {line["event"] for line in logged} == {"redis value is damaged"}
    assert copies.is_dir()
    assert sorted(tmp_path.rglob("*")) == before
