"""Rates, quotas, and keys that come and go while the server runs."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from threading import Event

import httpx

from tests.service.endpoints.anomaly.test_bad_input import check
from tests.support.api_keys import Ring, bearer
from tests.support.checkpoints import make_sample
from tests.support.server import Server


def test_too_many_requests(ask, server: Server) -> None:
    slow = ask("slow")
    answers = [slow.get("/models") for _ in range(4)]
    assert [answer.status_code for answer in answers[:2]] == [200, 200]
    check(answers[-1], 429, "rate-exceeded")
    seconds = int(answers[-1].headers["retry-after"])
    assert 1 <= seconds <= 2
    assert ask("all").get("/models").status_code == 200, "others have rates of their own"
    time.sleep(seconds)
    assert slow.get("/models").status_code == 200


def test_a_quota_is_of_cost(ask, server: Server) -> None:
    poor, one = ask("poor"), make_sample(7)
    price = (one.x.shape[0] + one.edge_index.shape[1]) * (2 + 1)  # 40 nodes, 120 edges
    body = one.arrays(dynamics={"steps": 2})
    first = poor.post("/anomaly/score", json=body)
    assert first.status_code == 200
    again = poor.post("/anomaly/score", json=body)
    assert again.headers["x-cache"] == "hit", "what is not computed costs nothing"
    assert poor.post("/anomaly/score", json=one.arrays(dynamics={"steps": 1})).status_code == 200
    left = 1000 - price - price * 2 // 3
    refused = poor.post("/anomaly/score", json=one.arrays(dynamics={"steps": 2, "beta": 1}))
    check(refused, 429, "quota-exceeded")
    assert 1 <= int(refused.headers["retry-after"]) <= price - left + 1
    never = poor.post("/anomaly/score", json=one.arrays(dynamics={"steps": 60}))
    check(never, 429, "quota-exceeded")
    assert "retry-after" not in never.headers
    assert httpx.get(server.url + "/metrics").status_code == 401
    metrics = ask("prometheus").get("/metrics").text
    assert f'basin_key_cost_total{{key="poor"}} {price + price * 2 // 3}.0' in metrics
    assert 'basin_key_refusals_total{key="",type="unauthenticated"}' in metrics
    assert 'basin_key_refusals_total{key="poor",type="quota-exceeded"} 2.0' in metrics


def test_keys_turn_under_traffic(ring: Ring, server: Server, wait) -> None:
    """A new key beside the old one, then in its place: no request of either is lost before."""
    current, over, seen = ring.add("turning"), Event(), []
    wait(lambda: httpx.get(server.url + "/models", headers=current).status_code == 200)
    first = old = current

    def ask() -> None:
        with server.client() as client:
            while not over.is_set():
                seen.append(client.get("/models", headers=current).status_code)

    with ThreadPoolExecutor() as pool:
        asking = [pool.submit(ask) for _ in range(2)]
        try:
            for _ in range(3):
                new, old = ring.turn("turning", keep=True), current
                wait(lambda new=new: httpx.get(server.url + "/models", headers=new).is_success)
                assert httpx.get(server.url + "/models", headers=old).is_success
                current, count = new, len(seen)
                wait(lambda count=count: len(seen) > count + 5)
            ring.path.write_text("{")  # whatever an editor leaves
            faults = bearer(ring.secrets["prometheus"])
            wait(
                lambda: (
                    "basin_key_faults_total 1.0"
                    in httpx.get(server.url + "/metrics", headers=faults).text
                )
            )
        finally:
            over.set()
            ring.write()
        for each in asking:
            each.result()
    assert set(seen) == {200}
    newest = ring.turn("turning", keep=False)
    wait(lambda: httpx.get(server.url + "/models", headers=newest).is_success)
    for gone in (first, old, current):
        assert httpx.get(server.url + "/models", headers=gone).status_code == 401
    assert any(line["event"].startswith("keys refused") for line in server.log_lines())


def test_a_key_expires_while_the_server_runs(ring: Ring, server: Server, wait) -> None:
    end = datetime.now(UTC) + timedelta(seconds=4)
    headers = ring.add("brief", expires=end.isoformat())
    wait(lambda: httpx.get(server.url + "/models", headers=headers).status_code == 200)
    wait(lambda: httpx.get(server.url + "/models", headers=headers).status_code == 401)
    assert datetime.now(UTC) >= end
