"""Background work that ends is started again; until it runs, the server is not ready."""

from __future__ import annotations

import asyncio
import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import structlog
from prometheus_client import CollectorRegistry

from service import supervisor as module
from service.errors import Problem
from service.supervisor import Supervisor
from tests.support.api_keys import Ring
from tests.support.checkpoints import FEATURES
from tests.support.server import Server, Start, wait_until

_GRAPH = {"x": [[0.5] * len(FEATURES)] * 2, "edge_index": [[0], [1]]}


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


@pytest.fixture
def supervisor(registry, monkeypatch) -> Supervisor:
    monkeypatch.setattr(module, "_FIRST_PAUSE_S", 0.1)
    return Supervisor(registry)


def _restarts(registry: CollectorRegistry, name: str) -> float | None:
    return registry.get_sample_value("basin_background_restarts_total", {"task": name})


async def _until_ready(supervisor: Supervisor) -> None:
    end = time.monotonic() + 10
    while time.monotonic() < end:
        try:
            supervisor.require_running()
        except Problem:
            await asyncio.sleep(0.01)
        else:
            return
    raise AssertionError("it is still down")


async def _fail() -> None:
    raise ValueError("spilt")


async def _return() -> None:
    pass


async def _be_cancelled() -> None:
    """Await what something else has cancelled."""
    other = asyncio.create_task(asyncio.sleep(60))
    other.cancel()
    await other


@pytest.mark.parametrize(
    ("end", "reason"),
    [(_fail, "ValueError('spilt')"), (_return, "it returned"), (_be_cancelled, "CancelledError()")],
)
def test_a_task_that_ends_is_started_again(supervisor, registry, end, reason):
    starts = 0

    async def work() -> None:
        nonlocal starts
        starts += 1
        if starts == 1:
            await end()
            return
        await asyncio.sleep(60)

    async def run() -> None:
        with structlog.testing.capture_logs() as lines:
            task = supervisor.start("mill", work)
            while not starts or not lines:
                await asyncio.sleep(0)
            with pytest.raises(Problem, match="not-ready") as raised:
                supervisor.require_running()
            assert "mill" in raised.value.detail
            await _until_ready(supervisor)
            assert starts == 2
            assert not task.done()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        (line,) = lines
        assert (line["task"], line["reason"]) == ("mill", reason)
        assert (line["exc_info"] is None) == (end is _return)

    asyncio.run(run())
    assert _restarts(registry, "mill") == 1


def test_pauses_double_up_to_a_bound_and_begin_anew_after_a_steady_time(monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(module.random, "uniform", lambda low, high: high)
    pauses = module._Pauses()
    lengths = []
    for _ in range(9):
        lengths.append(pauses.next_s())
        clock[0] += lengths[-1] + 1
    assert lengths == [0.5, 1, 2, 4, 8, 16, 30, 30, 30]
    clock[0] += 60
    assert pauses.next_s() == 0.5


def test_a_task_may_return_when_it_is_over(supervisor, registry):
    async def run() -> None:
        await asyncio.wait_for(supervisor.start("mill", _return, lambda: True), 10)

    asyncio.run(run())
    assert _restarts(registry, "mill") == 0


def test_a_cancelled_task_is_not_down(supervisor):
    async def run() -> None:
        task = supervisor.start("mill", _fail)
        await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.wait({task})
        supervisor.require_running()

    asyncio.run(run())


def test_work_in_a_thread_goes_on_until_it_returns(supervisor, registry):
    ends = [ValueError("spilt"), KeyError("lost")]

    def work() -> None:
        if ends:
            raise ends.pop()

    thread = threading.Thread(target=supervisor.run_in_thread, args=("mill", work))
    thread.start()
    wait_until(lambda: len(ends) < 2, 10)
    with pytest.raises(Problem, match="not-ready"):
        supervisor.require_running()
    thread.join(10)
    assert not thread.is_alive()
    supervisor.require_running()
    assert _restarts(registry, "mill") == 2


def test_a_thread_that_fails_at_shutdown_ends(supervisor):
    def work() -> None:
        raise ValueError("spilt")

    supervisor.close()
    thread = threading.Thread(target=supervisor.run_in_thread, args=("mill", work), daemon=True)
    thread.start()
    thread.join(10)
    assert not thread.is_alive()


class _Faulty:
    """A server whose background tasks fail while a file says so."""

    def __init__(
        self, server: Server, folder: Path, headers: dict[str, str], scraper: dict[str, str]
    ) -> None:
        self.server, self._folder, self._scraper = server, folder, scraper
        self.client = httpx.Client(base_url=server.url, timeout=30, headers=headers)

    def break_task(self, name: str) -> None:
        (self._folder / name).touch()

    def mend(self, name: str) -> None:
        (self._folder / name).unlink()

    def read_readiness(self, path: str = "/health/ready") -> tuple[int, str]:
        answer = self.client.get(path)
        return answer.status_code, answer.text

    def is_down(self, name: str) -> bool:
        status, text = self.read_readiness()
        return status == 503 and name in text

    def count_restarts(self, name: str) -> float:
        text = self.client.get("/metrics", headers=self._scraper).text
        label = re.escape(f'basin_background_restarts_total{{task="{name}"}} ')
        match = re.search(rf"^{label}([0-9.]+)$", text, re.MULTILINE)
        return float(match[1]) if match else 0.0


@pytest.fixture(scope="module")
def faulty(start: Start, checkpoints: Path, tmp_path_factory) -> Iterator[_Faulty]:
    folder = tmp_path_factory.mktemp("faults")
    ring = Ring(folder / "keys.json")
    headers, scraper = ring.add("all"), ring.add("scraper", routes=["GET /metrics"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FAULTS", str(folder))
        server = start(
            "-m",
            "tests.support.server_with_faults",
            checkpoints=checkpoints,
            default_anomaly_model="et-small",
            keys=ring.path,
            webhook_origins="http://127.0.0.1:9",
            webhook_secret="whsec_" + "A" * 32,
        )
    one = _Faulty(server, folder, headers, scraper)
    wait_until(lambda: _is_ready(one))
    yield one
    one.client.close()


def _is_ready(faulty: _Faulty) -> bool:
    assert faulty.server.process.poll() is None, faulty.server.log.read_text()
    try:
        return faulty.read_readiness()[0] == 200
    except httpx.TransportError:
        return False


_TASKS = ("memory", "keys", "transactions", "nodes", "webhooks", "job store", "jobs")


@pytest.mark.parametrize("name", _TASKS)
def test_a_server_without_a_task_is_not_ready_until_it_runs(faulty, name):
    faulty.break_task(name)
    wait_until(lambda: faulty.is_down(name), 20)
    status = faulty.client.post("/anomaly/score", json={"graph": _GRAPH}).status_code
    assert status == 200  # what does not need the task goes on
    faulty.mend(name)
    wait_until(lambda: _is_ready(faulty), 40)
    assert faulty.count_restarts(name) >= 1
    lines = [line for line in faulty.server.log_lines() if line.get("task") == name]
    assert f"injected into {name}" in lines[0]["exception"]


def _run_job(faulty: _Faulty) -> bool:
    headers = {"prefer": "respond-async"}
    answer = faulty.client.post("/anomaly/score", json={"graph": _GRAPH}, headers=headers)
    assert answer.status_code == 202
    path = answer.headers["location"]
    wait_until(lambda: faulty.client.get(path).json()["status"] == "done", 20)
    return True


def test_jobs_run_after_their_task_has_failed(faulty):
    before = faulty.count_restarts("jobs")
    faulty.break_task("jobs")
    wait_until(lambda: faulty.count_restarts("jobs") > before, 20)
    faulty.mend("jobs")
    assert _run_job(faulty)


def test_compute_goes_on_after_a_fault_of_its_thread(faulty):
    faulty.break_task("compute")
    answer = faulty.client.post("/anomaly/score", json={"graph": _GRAPH})
    assert answer.status_code == 500  # which it was lost with, and not left without an answer
    assert faulty.is_down("compute")
    faulty.mend("compute")
    answer = faulty.client.post("/anomaly/score", json={"graph": _GRAPH})
    assert answer.status_code == 200
    wait_until(lambda: _is_ready(faulty), 20)
    assert faulty.count_restarts("compute") == 1


def test_graphs_are_written_after_a_fault_of_their_thread(faulty):
    graph = {"model": "et-small", "graph": _GRAPH | {"node_ids": ["a", "b"]}}
    faulty.break_task("graphs")
    answer = faulty.client.put("/graphs/g", json=graph)
    assert answer.status_code == 500
    assert faulty.is_down("graphs")
    faulty.mend("graphs")
    answer = faulty.client.put("/graphs/g", json=graph)
    assert answer.is_success, answer.text
    wait_until(lambda: _is_ready(faulty), 20)


def test_the_open_inference_protocol_is_not_ready_either(faulty):
    faulty.break_task("memory")
    wait_until(lambda: faulty.read_readiness("/v2/health/ready")[0] == 503, 20)
    faulty.mend("memory")
    wait_until(lambda: faulty.read_readiness("/v2/health/ready")[0] == 200, 40)


def test_the_watch_of_redis_is_started_again(
    start, checkpoints, redis_server, tmp_path, monkeypatch
):
    monkeypatch.setenv("FAULTS", str(tmp_path))
    redis = redis_server()
    server = start(
        "-m", "tests.support.server_with_faults", checkpoints=checkpoints, redis_url=redis.url
    )
    faulty = _Faulty(server, tmp_path, {}, {})
    with faulty.client:
        wait_until(lambda: _is_ready(faulty))
        faulty.break_task("redis")
        wait_until(lambda: faulty.is_down("redis"), 20)
        faulty.mend("redis")
        wait_until(lambda: _is_ready(faulty), 40)
        redis.kill()
        wait_until(lambda: '"away"' in faulty.read_readiness()[1], 20)
        redis.start()
        wait_until(lambda: '"up"' in faulty.read_readiness()[1], 20)
