"""Full queues, slow and vanishing clients, deadlines, the end."""

from __future__ import annotations

import json
import signal
import socket
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.support.server import depth, gauge

HEAD = "POST /anomaly/score HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"


def send(server, body) -> socket.socket:
    """Send a request and wait for nothing."""
    content = json.dumps(body).encode()
    connection = socket.create_connection(("127.0.0.1", server.port), 10)
    connection.sendall(f"{HEAD}Content-Length: {len(content)}\r\n\r\n".encode() + content)
    return connection


@pytest.fixture
def endless(sample):
    """A request that would take hours."""
    return sample(1).arrays(dynamics={"steps": 100_000_000})


def test_whoever_hangs_up_frees_the_machine(idle, sample, endless, wait):
    connection = send(idle, endless)
    wait(lambda: depth(idle) == 1)
    connection.close()
    wait(lambda: depth(idle) == 0)
    with idle.client() as client:
        assert client.post("/anomaly/score", json=sample(1).arrays()).status_code == 200
    lines = [line for line in idle.log_lines() if line.get("status") == 499]
    assert lines
    assert lines[-1]["route"] == "/anomaly/score"


def test_a_full_queue_refuses_and_says_when_to_return(idle, sample, endless, wait):
    running, waiting = send(idle, endless), None
    try:
        wait(lambda: depth(idle) == 1)
        # Of another model: of the same, it is refused already because it would be late.
        steps = {"steps": 100_000_000}
        waiting = send(idle, sample(1, relations=2).arrays(model="cdat-small", dynamics=steps))
        wait(lambda: depth(idle) == 2)
        with idle.client() as client:
            refused = client.post("/anomaly/score", json=sample(1).arrays())
            assert client.get("/health/live").status_code == 200
        assert refused.status_code == 429
        assert refused.json()["type"] == "urn:basin:problem:queue-full"
        assert int(refused.headers["retry-after"]) >= 1
    finally:
        running.close()
        if waiting:
            waiting.close()


def test_what_would_be_late_is_refused_and_what_is_small_is_not(idle, sample, wait):
    # Of a size that no other test sends: those that hang up early are measured as short.
    long = sample(1).arrays(dynamics={"steps": 1_000_000})
    with idle.client() as client:
        assert client.post("/anomaly/score", json=sample(1).arrays()).status_code == 200
        for _ in range(2):  # nothing is refused by a guess: that it takes long is to be measured
            assert client.post("/anomaly/score", json=long).status_code == 504
        running = send(idle, long)
        try:
            wait(lambda: gauge(idle, "basin_backlog_seconds") > 0)
            refused = client.post("/anomaly/score", json=long)
            small = client.post("/anomaly/score", json=sample(1).arrays())
        finally:
            running.close()
    assert small.status_code == 200
    assert refused.status_code == 429
    assert refused.json()["type"] == "urn:basin:problem:queue-full"
    assert int(refused.headers["retry-after"]) >= 1


def test_the_deadline_stops_the_work(idle, endless):
    with idle.client() as client:
        response = client.post("/anomaly/score", json=endless)
    assert response.status_code == 504
    assert response.json()["type"] == "urn:basin:problem:deadline"


def test_a_request_may_have_less_time(idle, sample, endless):
    with idle.client() as client:
        late = client.post("/anomaly/score?timeout_ms=300", json=endless)
        known = client.post("/anomaly/score?timeout_ms=3999", json=sample(1).arrays())
    assert late.status_code == 504
    assert late.json()["steps"] > 0
    assert known.status_code == 200


@pytest.mark.parametrize("asked", ["0", "-1", "1.5", "", "1e3", "4001", "9" * 30, "1&timeout_ms=2"])
@pytest.mark.parametrize("headers", [{}, {"prefer": "respond-async"}], ids=["waits", "job"])
def test_time_that_cannot_be_had(narrow, sample, asked, headers):
    if headers and asked == "4001":
        asked = "99999999"  # a job may have more
    with narrow.client() as client:
        response = client.post(
            f"/anomaly/score?timeout_ms={asked}", json=sample(1).arrays(), headers=headers
        )
    assert response.status_code == 422
    assert response.json()["errors"][0]["pointer"] == "/timeout_ms"


def test_a_body_that_does_not_arrive(narrow):
    with socket.create_connection(("127.0.0.1", narrow.port), 10) as connection:
        connection.sendall(f'{HEAD}Content-Length: 500\r\n\r\n{{"graph":'.encode())
        answer = b"".join(iter(lambda: connection.recv(1 << 16), b""))  # until it is closed
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert b"urn:basin:problem:body-timeout" in answer


def test_a_body_cut_off(narrow, wait):
    before = len(narrow.log_lines())
    with socket.create_connection(("127.0.0.1", narrow.port), 10) as connection:
        connection.sendall(f'{HEAD}Content-Length: 500\r\n\r\n{{"graph":'.encode())
    wait(lambda: any(x.get("problem") == "incomplete-body" for x in narrow.log_lines()[before:]))


def test_graphs_over_the_limits(narrow, sample):
    with narrow.client() as client:
        for one, code in ((sample(1, nodes=101), "nodes"), (sample(1, nodes=100), "edges")):
            one.edge_index.resize((2, 301), refcheck=False)
            for body in (one.arrays(), one.rows()):
                problem = client.post("/anomaly/score", json=body)
                assert problem.status_code == 422
                assert problem.json()["errors"][0]["code"] == f"too_many_{code}"


def test_slow_work_does_not_hold_up_the_event_loop(idle, endless, wait):
    connection = send(idle, endless)
    wait(lambda: depth(idle) == 1)
    with idle.client() as client:
        start = time.monotonic()
        assert all(client.get("/models").status_code == 200 for _ in range(20))
        assert time.monotonic() - start < 2
    connection.close()


def test_no_models_no_service(start, tmp_path, sample, wait, answers):
    broken = tmp_path / "et-small"
    broken.mkdir()
    (broken / "manifest.json").write_text("{}")
    server = start(checkpoints=tmp_path, wait_for_models=True)

    wait(lambda: answers(server, "/health/live", 200))
    with server.client() as client:
        wait(lambda: any(x["event"] == "no model to serve" for x in server.log_lines()))
        assert client.get("/health/ready").status_code == 503
        for response in (
            client.get("/models"),
            client.get("/models/et-small"),
            client.post("/anomaly/score", json=sample(1).arrays()),
        ):
            assert response.status_code == 503
            assert response.json()["type"] == "urn:basin:problem:not-ready"
    assert any(line["event"] == "checkpoint refused" for line in server.log_lines())


def test_requests_in_flight_are_answered_before_the_end(start, checkpoints, sample, wait, answers):
    settings = {"default_anomaly_model": "et-small", "max_steps": 10_000}
    server = start("-m", "service", checkpoints=checkpoints, **settings)
    wait(lambda: answers(server, "/health/ready", 200))
    body = sample(1).arrays(dynamics={"steps": 1500})
    with server.client() as client, ThreadPoolExecutor(1) as pool:
        answer = pool.submit(client.post, "/anomaly/score", json=body)
        wait(lambda: depth(server) == 1 or answer.done())
        server.process.send_signal(signal.SIGTERM)
        assert answer.result().status_code == 200
    assert server.process.wait(30) == 0
    assert not any("error" in line.get("level", "") for line in server.log_lines())
