"""Two servers on a Redis that comes back older than what they have acknowledged."""

from __future__ import annotations

import pytest

from tests.support.checkpoints import FEATURES, RELATIONS
from tests.support.server import Server, answers_with, wait_until

RESTARTED = 'basin_redis_changes_total{change="restarted"} 1.0'
X = [0.5] * len(FEATURES)


@pytest.fixture
def servers(start, checkpoints, redis_server):
    store = redis_server("--appendonly", "no")
    settings = {"checkpoints": checkpoints, "redis_url": store.url, "run_jobs": False}
    both = [start(**settings, default_anomaly_model="cdat-small") for _ in range(2)]
    for server in both:
        wait_until(lambda server=server: answers_with(server, "/health/ready", 200))
    return store, both


def score(server: Server, target: str) -> tuple:
    with server.client() as client:
        body = {"graph_id": "g", "targets": [target], "neighborhood": {"hops": 2}}
        answer = client.post("/anomaly/score", json=body)
        assert answer.status_code == 200, answer.text
        [result] = answer.json()["results"]
        graph = answer.json()["graph"]
        return graph["revision"], graph["digest"], result["score"]


def has_metric(server: Server, line: str) -> bool:
    with server.client() as client:
        return line in client.get("/metrics").text


def is_up(server: Server) -> bool:
    with server.client() as client:
        return client.get("/health/ready").json()["redis"] == "up"


def test_two_servers_answer_the_same_after_redis_went_back(servers, start):
    store, (one, two) = servers
    edges = [{"source": "n1", "target": "n0", "type": RELATIONS[0]}]
    nodes = [{"id": f"n{i}"} | dict(zip(FEATURES, X, strict=True)) for i in range(3)]

    def patch(server: Server, id: str) -> dict:
        node = {"id": id} | dict(zip(FEATURES, [float(len(id))] * len(FEATURES), strict=True))
        edge = {"source": id, "target": "n0", "type": RELATIONS[0]}
        with server.client() as client:
            answer = client.patch("/graphs/g", json={"nodes": [node], "edges": [edge]})
            assert answer.status_code == 200, answer.text
            return answer.json()

    with one.client() as client:
        answer = client.put("/graphs/g", json={"nodes": nodes, "edges": edges})
        assert answer.status_code == 201, answer.text
        assert len(answer.json()["digest"]) == 16
    assert patch(one, "a")["revision"] == 2
    assert score(two, "n0") == score(one, "n0")
    store.client.save()
    lost = patch(one, "lost")
    assert lost["revision"] == 3
    before = score(one, "n0")
    assert before[:2] == (3, lost["digest"])

    store.kill()
    store.start()
    wait_until(lambda: has_metric(one, 'basin_redis_restored_total{part="graphs"} 1.0'))
    for server in (one, two):  # until one has noticed it, it has the graph as it was last known
        wait_until(lambda server=server: has_metric(server, RESTARTED) and is_up(server))
    for target in ("n0", "lost"):
        assert score(one, target) == score(two, target)
    assert score(two, "n0") == before

    with one.client() as client:
        assert client.get("/graphs/g").json()["digest"] == lost["digest"]
    after = patch(two, "c")
    assert after["revision"] == 4
    assert score(one, "c") == score(two, "c")
    assert score(one, "c")[:2] == (4, after["digest"])


def test_a_delete_that_is_refused_has_deleted_nothing(servers):
    store, (one, _) = servers
    nodes = [{"id": f"n{i}"} | dict(zip(FEATURES, X, strict=True)) for i in range(3)]
    with one.client() as client:
        assert client.put("/graphs/g", json={"nodes": nodes, "edges": []}).status_code == 201
        before = score(one, "n0")
        store.client.save()
        store.kill()
        wait_until(lambda: not is_up(one))
        assert client.delete("/graphs/g").status_code == 503
        assert score(one, "n0") == before
        store.start()
        wait_until(lambda: is_up(one))
        assert score(one, "n0") == before
        assert client.delete("/graphs/g").status_code == 204
        assert client.get("/graphs/g").status_code == 404
        store.client.hset("basin:graphs:", "g", b"garbage")
        listing = client.get("/graphs").json()
        assert listing == {"graphs": [], "damaged": ["g"]}
        answer = client.get("/graphs/g")
        assert (answer.status_code, answer.json()["type"][-13:]) == (503, "graph-damaged")
        assert client.put("/graphs/g", json={"nodes": nodes, "edges": []}).is_success
        assert client.get("/graphs").json()["graphs"][0]["revision"] == 1
