"""What no answer and no log may tell, and what they must."""

from __future__ import annotations

import json
import socket
import time

import httpx
import pytest

from service.auth.keys import new_secret
from tests.service.endpoints.anomaly.test_bad_input import check
from tests.service.endpoints.jobs.test_api import begin, over
from tests.service.endpoints.sample.test_api import body as sampling
from tests.support.api_keys import Ring, bearer
from tests.support.checkpoints import make_sample
from tests.support.server import Server

HARDENED = {
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'",
    "cache-control": "no-store",
}


@pytest.mark.parametrize(
    "path",
    [
        "/models/..%2F..%2Fetc%2Fpasswd",
        "/models/%2e%2e",
        "/memories/..%2F..%2Fsecret",
        "/memories/%2e%2e%2f%2e%2e%2fkeys",
        "/jobs/..%2Fmodels",
        "/jobs/%00",
        "/models/%00/memories",
    ],
)
def test_no_path_leads_out(ask, path: str) -> None:
    for verb in ("GET", "PUT", "DELETE"):
        answer = ask("all").request(
            verb, path, json={"patterns": [[1.0]]} if verb == "PUT" else None
        )
        assert answer.status_code in (404, 405, 422), (verb, answer.text)
    check(ask("scorer").get("/anomaly/../memories"), 403, "forbidden")
    assert ask("scorer").get("/anomaly%2f..%2fmemories").status_code == 404


def test_neither_keys_nor_payloads_are_told(ask, ring: Ring, server: Server, wait) -> None:
    mark, number = "Xyzzy7recognisable", 0.123456789
    one = ask("all")
    unknown = new_secret()
    body = make_sample(8).arrays(dynamics={"steps": 1})
    body["graph"]["x"][0][0] = number
    body["graph"]["node_ids"][0] = mark
    headers = {"x-mark": mark, "idempotency-key": f'"{mark}"', "accept": "application/json"}
    sent = {"params": {"mark": mark, "show": mark}, "headers": headers}
    assert one.post("/anomaly/score", json=body, **sent).status_code == 200
    assert one.post("/anomaly/score", json={**body, "model": mark}, **sent).status_code >= 400
    one.post("/anomaly/score", content=f'{{"{mark}": {number}', **sent)
    one.post("/classify", json={"smiles": [mark, "CCO"]}, **sent)
    one.post("/complete", files={"image": (mark, mark.encode())}, **sent)
    one.put(f"/memories/{mark.lower()}!", json={"sequences": [mark]}, **sent)
    one.get(f"/models/{mark}/memories", **sent)
    one.get(f"/jobs/{mark}", **sent)
    one.get(f"/{mark}", **sent)
    told = begin(one, "/sample", sampling(memory=mark))
    over(one, wait, told)
    httpx.get(f"{server.url}/{mark}", headers=bearer(unknown))
    httpx.get(f"{server.url}/models", headers={"authorization": f"Bearer {mark}"})
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        connection.sendall(f"{mark} {mark}\r\n\r\n".encode())
        connection.recv(100)
    time.sleep(0.5)
    log, metrics = server.log.read_text(), ask("prometheus").get("/metrics").text
    for secret in (mark, mark.lower(), str(number), unknown, *ring.secrets.values()):
        assert secret not in log
        assert secret not in metrics
    entries = json.loads(ring.path.read_text())["keys"]
    assert not any(known in log for entry in entries for known in entry["sha256"])


def test_the_log_says_who_asked_for_what_and_what_it_cost(ask, server: Server, wait) -> None:
    ids = {"x-request-id": "audit-1"}
    one = make_sample(9)
    ask("all").post("/anomaly/score", json=one.arrays(dynamics={"steps": 3}), headers=ids)
    ask("nothing").get("/jobs/7", headers={"x-request-id": "audit-2"})
    ask("expired").get("/jobs/7", headers={"x-request-id": "audit-3"})

    def lines() -> dict[str, dict]:
        found = [line for line in server.log_lines() if line["event"] == "request"]
        return {line["request_id"]: line for line in found}

    wait(lambda: {"audit-1", "audit-2", "audit-3"} <= lines().keys())
    first, second, third = (lines()[f"audit-{i}"] for i in (1, 2, 3))
    assert (first["key"], first["route"], first["status"]) == ("all", "/anomaly/score", 200)
    assert (first["model"], first["cost"]) == ("et-small", 160 * 4)
    assert (second["key"], second["route"], second["status"]) == ("nothing", "/jobs/{id}", 403)
    assert (third["key"], third["status"]) == ("expired", 401)


def test_every_answer_is_hardened_and_no_other_site_may_read_it(ask, server: Server) -> None:
    site = {"origin": "https://a.example"}
    one = ask("all")
    answers = [
        one.get("/models", headers=site),
        one.get("/nothing", headers=site),
        one.post("/classify", json={"smiles": "CCO"}, headers=site),
        one.post("/classify", content="{", headers=site),
        httpx.get(server.url + "/models", headers=site),
        httpx.get(server.url + "/health/live", headers=site),
        httpx.options(
            server.url + "/classify", headers=site | {"access-control-request-method": "POST"}
        ),
    ]
    assert {answer.status_code for answer in answers} == {200, 401, 404, 415}
    for answer in answers:
        assert answer.headers.items() >= HARDENED.items()
        assert not any(name.startswith("access-control") for name in answer.headers)
        assert "server" not in answer.headers
    policy = httpx.get(server.url + "/docs").headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self';")
