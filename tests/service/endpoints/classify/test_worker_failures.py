"""SMILES that hang or crash what reads them, clients that leave: nobody else notices."""

from __future__ import annotations

import json
import re
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

HANGS, CRASHES = "[Xe]", "[Ne]"
TIMEOUT_S, BUDGET_S = 1.0, 6.0


@pytest.fixture(scope="module")
def troubled(start, checkpoints, wait, answers):
    server = start(
        *("-m", "tests.support.server_with_failing_smiles"),
        checkpoints=checkpoints,
        default_classify_model="cdat-mol",
        smiles_timeout_s=TIMEOUT_S,
        smiles_budget_s=BUDGET_S,
        smiles_processes=2,
    )
    wait(lambda: answers(server, "/health/ready", 200))
    return server


@pytest.fixture
def idle(troubled, wait):
    """The troubled server, with nothing to do before and after."""
    wait(lambda: depth(troubled) == 0)
    yield troubled
    wait(lambda: depth(troubled) == 0)


def depth(server):
    with server.client() as client:
        found = re.search(r"^basin_queue_depth (\S+)$", client.get("/metrics").text, re.MULTILINE)
    assert found
    return float(found[1])


def codes(response):
    assert response.status_code == 200, response.text
    return [result.get("error", {}).get("code", "ok") for result in response.json()["results"]]


def post(client, *smiles):
    return client.post("/classify", json={"smiles": smiles})


def test_what_hangs_or_crashes_is_an_item_error(idle):
    with idle.client() as client:
        start = time.monotonic()
        answer = post(client, "CCO", HANGS, "CC", CRASHES, "c1ccccc1", "?")
        assert codes(answer) == ["ok", "timeout", "ok", "parser_crashed", "ok", "not_smiles"]
        assert time.monotonic() - start < BUDGET_S + 4
        told = {result["index"]: result for result in answer.json()["results"]}
        assert told[1] == {
            "index": 1,
            "input": HANGS,
            "status": "error",
            "error": {
                "code": "timeout",
                "detail": "Reading the SMILES took longer than allowed (BASIN_SMILES_TIMEOUT_S).",
            },
        }
        alone = post(client, "CC").json()["results"][0]
        assert alone["predictions"]["mutagen"]["probability"] == pytest.approx(
            told[2]["predictions"]["mutagen"]["probability"], abs=1e-6
        )
        counted = client.get("/metrics").text
    for code in ("timeout", "parser_crashed", "not_smiles"):
        assert f'basin_item_errors_total{{code="{code}",model="cdat-mol"}} 1.0' in counted
    assert 'basin_classified_total{model="cdat-mol"} 4.0' in counted


def test_a_request_has_a_budget(idle):
    with idle.client() as client:
        start = time.monotonic()
        response = post(client, *[HANGS] * 40)
        assert time.monotonic() - start < BUDGET_S + 6
    assert response.status_code == 422
    found = [error["code"] for error in response.json()["errors"]]
    assert set(found) == {"timeout", "not_reached"}
    assert found[0] == "timeout"


def test_other_requests_are_not_slowed(idle):
    with idle.client() as client, ThreadPoolExecutor(4) as pool:
        expected = post(client, "CCO", "CCN").json()["results"]
        trouble = [pool.submit(post, client, *[HANGS] * 40) for _ in range(4)]
        time.sleep(0.5)
        start = time.monotonic()
        assert client.get("/models").status_code == 200
        assert client.get("/memories").status_code == 200
        graph = {"graphs": [{"x": [[0, 1.0]], "edge_index": [[], []]}], "model": "et-shape"}
        assert client.post("/classify", json=graph).status_code == 200
        assert time.monotonic() - start < 2
        # A molecule waits for its turn, not for all that hang before it.
        assert post(client, "CCO", "CCN").json()["results"] == expected
        assert time.monotonic() - start < BUDGET_S
        assert not all(future.done() for future in trouble)
        assert {future.result().status_code for future in trouble} == {422}


def test_whoever_hangs_up_leaves_nothing_broken(idle, wait):
    content = json.dumps({"smiles": [HANGS] * 40}).encode()
    head = "POST /classify HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    connections = []
    for _ in range(3):
        connection = socket.create_connection(("127.0.0.1", idle.port), 10)
        connection.sendall(f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content)
        connections.append(connection)
    wait(lambda: depth(idle) == 3)
    start = time.monotonic()
    for connection in connections:
        connection.close()
    wait(lambda: depth(idle) == 0, 3)
    with idle.client() as client:
        assert codes(post(client, "CCO", HANGS, "CC")) == ["ok", "timeout", "ok"]
    assert time.monotonic() - start < BUDGET_S + 4
    gone = [line for line in idle.log_lines() if line.get("status") == 499]
    assert [line["route"] for line in gone] == ["/classify"] * 3


def test_requests_do_not_mix(idle):
    def ask(i):
        chain, bad = "C" * (i % 9 + 1), {3: HANGS, 5: CRASHES}.get(i, "?")
        with idle.client() as client:
            response = post(client, chain, bad, chain + "O")
        code = {HANGS: "timeout", CRASHES: "parser_crashed"}.get(bad, "not_smiles")
        assert codes(response) == ["ok", code, "ok"]
        told = [result.get("canonical_smiles") for result in response.json()["results"]]
        assert told == [chain, None, chain + "O"]

    with ThreadPoolExecutor(10) as pool:
        list(pool.map(ask, range(20)))


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="looks at processes as Linux does")
def test_no_process_is_left_behind(start, checkpoints, wait, answers):
    server = start(checkpoints=checkpoints, default_classify_model="cdat-mol", smiles_processes=3)
    wait(lambda: answers(server, "/health/ready", 200))
    with server.client() as client:
        assert post(client, "CCO").status_code == 200

    def living():
        tasks = Path(f"/proc/{server.process.pid}/task").iterdir()
        return [child for task in tasks for child in (task / "children").read_text().split()]

    wait(lambda: len(living()) == 3)
    children = living()
    server.process.terminate()
    server.process.wait(30)
    wait(lambda: not any(Path(f"/proc/{child}").exists() for child in children), 5)
    assert not any("error" in line.get("level", "") for line in server.log_lines())


def test_no_process_where_no_model_reads_smiles(start, tmp_path, checkpoints, wait, answers):
    (tmp_path / "et-shape").symlink_to(checkpoints / "et-shape")
    server = start(checkpoints=tmp_path, default_classify_model="et-shape")
    wait(lambda: answers(server, "/health/ready", 200))
    wait(lambda: any(line["event"] == "model ready" for line in server.log_lines()))
    with server.client() as client:
        refused = post(client, "CCO")
    assert refused.status_code == 422
    assert refused.json()["errors"][0]["code"] == "not_read"
