"""Every route asks for a key, over a socket; what is of one key is no other's."""

from __future__ import annotations

import json
import re
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Event

import httpx
import pytest
from starlette.routing import Route

from service.doors.keys import new_secret
from service.main import create_admin, create_app
from service.routes import ADMIN, ROUTERS
from service.settings import Settings
from tests.service.conftest import Server, Start, answers_with, make_sample, wait_until
from tests.service.knocking import Ring, bearer
from tests.service.test_service_bad_input import check
from tests.service.test_service_jobs import LATER, begin, over
from tests.service.test_service_sample import ENDLESS
from tests.service.test_service_sample import body as sampling

PAST = (datetime.now(UTC) - timedelta(seconds=1)).isoformat()
OPEN = {"/health/live", "/health/ready"}
HARDENED = {
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'",
    "cache-control": "no-store",
}


def routes_of(app, routers) -> list[tuple[str, str]]:
    """Whatever the app answers, documented or not, found by asking it."""
    routes = [*app.routes, *(route for router in routers for route in router.routes)]
    found = [route for route in routes if isinstance(route, Route)]
    paths = {(verb, route.path) for route in found for verb in route.methods or ()}
    assert len(paths) > 8
    return sorted((verb, re.sub(r"\{\w+\}", "thing", path)) for verb, path in paths)


PUBLIC = [r for r in routes_of(create_app(Settings()), ROUTERS) if r[1] not in OPEN]
OPERATORS = [
    route
    for route in routes_of(create_admin(create_app(Settings()).state.services), ADMIN)
    if route[1] not in OPEN
]


@pytest.fixture(scope="module")
def ring(tmp_path_factory: pytest.TempPathFactory) -> Ring:
    ring = Ring(tmp_path_factory.mktemp("keys") / "keys.json")
    ring.add("all")
    ring.add("other")
    ring.add("nothing", routes=[], models=[])
    ring.add("expired", expires=PAST)
    ring.add("operator", routes=["/admin"])
    ring.add("keeper", routes=["/admin/models"], models=["et-small"])
    ring.add("scorer", routes=["/anomaly", "GET /models"], models=["et-small"])
    ring.add("slow", rate={"per_second": 0.5, "burst": 2})
    ring.add("poor", quota={"cost": 1000, "seconds": 1000})
    return ring


@pytest.fixture(scope="module")
def guarded(
    start: Start, checkpoints: Path, ring: Ring, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Server, int]:
    """A server that asks for keys, and the port of its operators."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    one = start(
        checkpoints=checkpoints,
        default_anomaly_model="et-small",
        default_classify_model="cdat-mol",
        memory_store=tmp_path_factory.mktemp("memories"),
        keys=ring.path,
        admin_port=port,
        cache_bytes=1 << 20,
        log_level="debug",
    )
    wait_until(lambda: answers_with(one, "/health/ready", 200))
    return one, port


@pytest.fixture(scope="module")
def server(guarded: tuple[Server, int]) -> Server:
    return guarded[0]


@pytest.fixture
def ask(server: Server, ring: Ring) -> Iterator[Callable[..., httpx.Client]]:
    """A client with the key of a name."""
    clients = []

    def one(name: str) -> httpx.Client:
        headers = bearer(ring.secrets[name])
        clients.append(httpx.Client(base_url=server.url, timeout=60, headers=headers))
        return clients[-1]

    yield one
    for client in clients:
        client.close()


BAD_KEYS = {
    "none": {},
    "wrong": bearer(new_secret()),
    "malformed": bearer("basin_short"),
    "of another scheme": {"authorization": "Basic Zm9vOmJhcg=="},
    "empty": {"authorization": "Bearer"},
    "not ascii": {"authorization": "Bearer basin_\xe9".encode("latin-1")},
}


@pytest.mark.parametrize("why", [*BAD_KEYS, "expired"])
def test_every_route_refuses(guarded, ring: Ring, why: str) -> None:
    server, port = guarded
    headers = BAD_KEYS[why] if why in BAD_KEYS else bearer(ring.secrets["expired"])
    with httpx.Client(headers=headers) as client:
        for at, routes in ((server.port, PUBLIC), (port, OPERATORS)):
            for verb, path in [*routes, ("GET", "/nowhere"), ("PATCH", "/classify")]:
                answer = client.request(verb, f"http://127.0.0.1:{at}{path}")
                challenge = answer.headers["www-authenticate"]
                if verb == "HEAD":
                    assert answer.status_code == 401
                else:
                    check(answer, 401, "unauthenticated")
                assert challenge == ("Bearer" if why == "none" else 'Bearer error="invalid_token"')


def test_every_route_refuses_a_key_for_nothing(guarded, ring: Ring) -> None:
    """One that is for all of the public port opens nothing of the operators', and the reverse."""
    server, port = guarded
    for name, at, routes in (
        ("nothing", server.port, PUBLIC),
        ("nothing", port, OPERATORS),
        ("all", port, OPERATORS),
        ("operator", server.port, PUBLIC),
    ):
        with httpx.Client(headers=bearer(ring.secrets[name])) as client:
            for verb, path in routes:
                answer = client.request(verb, f"http://127.0.0.1:{at}{path}")
                assert answer.status_code == 403, (name, verb, path)
                assert "insufficient_scope" in answer.headers["www-authenticate"]
                if verb != "HEAD":
                    check(answer, 403, "forbidden")


def test_every_route_lets_its_key_in(guarded, ring: Ring) -> None:
    server, port = guarded
    for name, at, routes in (("all", server.port, PUBLIC), ("operator", port, OPERATORS)):
        with httpx.Client(headers=bearer(ring.secrets[name])) as client:
            for verb, path in routes:
                answer = client.request(verb, f"http://127.0.0.1:{at}{path}")
                assert answer.status_code not in (401, 403, 429), (name, verb, path)


def test_probes_need_no_key(guarded) -> None:
    for port in (guarded[0].port, guarded[1]):
        for path in OPEN:
            assert httpx.get(f"http://127.0.0.1:{port}{path}").status_code == 200


def test_a_stranger_is_refused_before_the_body_is_read(server: Server) -> None:
    head = b"POST /classify HTTP/1.1\r\nHost: h\r\nContent-Length: 60000000\r\n\r\n"
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as connection:
        connection.sendall(head)
        assert connection.recv(12) == b"HTTP/1.1 401"


def test_two_keys_are_none(server: Server, ring: Ring) -> None:
    header = f"Authorization: Bearer {ring.secrets['all']}\r\n".encode()
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as connection:
        connection.sendall(b"GET /models HTTP/1.1\r\nHost: h\r\n" + 2 * header + b"\r\n")
        assert connection.recv(12) == b"HTTP/1.1 401"


def test_a_key_sees_its_models_alone(ask) -> None:
    scorer, sample = ask("scorer"), make_sample(1)
    assert scorer.post("/anomaly/score", json=sample.arrays()).status_code == 200
    listed = scorer.get("/models").json()["models"]
    assert [model["name"] for model in listed] == ["et-small"]
    assert scorer.get("/models/et-small").status_code == 200
    for name in ("cdat-small", "cdat-mol", "no-such-model", "..", "*"):
        for body in (sample.arrays(model=name), {"model": name, "graph": 1}):
            check(scorer.post("/anomaly/score", json=body), 403, "forbidden")
    large = sample.arrays(model="cdat-small") | {"include": [" " * (5 << 20)]}
    assert scorer.post("/anomaly/score", json=large).status_code in (403, 422)
    for path in ("/models/cdat-small", "/models/nothing", "/models/et-tile/memories"):
        check(scorer.get(path), 403, "forbidden")
    check(scorer.post("/classify", json={"smiles": "CCO"}), 403, "forbidden")
    check(scorer.put("/models/et-small"), 403, "forbidden")
    check(scorer.get("/metrics"), 403, "forbidden")
    check(ask("all").post("/anomaly/score", json=sample.arrays(model="none")), 404, "unknown-model")


def test_an_operator_has_models_too(guarded, ring: Ring) -> None:
    keeper = bearer(ring.secrets["keeper"])
    with httpx.Client(base_url=f"http://127.0.0.1:{guarded[1]}", headers=keeper) as client:
        assert [model["name"] for model in client.get("/models").json()["models"]] == ["et-small"]
        assert client.put("/models/et-small").status_code == 200
        for verb in ("PUT", "DELETE"):
            check(client.request(verb, "/models/cdat-small"), 403, "forbidden")
        check(client.get("/metrics"), 403, "forbidden")
    metrics = httpx.get(f"{guarded[0].url}/metrics", headers=bearer(ring.secrets["all"])).text
    for name in ("et-small", "cdat-small"):
        assert f'basin_model_bytes{{model="{name}"}}' in metrics


def test_a_job_is_of_its_key(ask, server: Server, wait) -> None:
    one, other = ask("all"), ask("other")
    told = begin(one, "/sample", sampling())
    assert over(one, wait, told)["status"] == "done"
    (line,) = [line for line in server.log_lines() if line["event"] == "job"]
    assert (line["key"], line["model"], line["status"]) == ("all", "sample", 200)
    assert line["cost"] > 0
    at = f"/jobs/{told['id']}"
    for path in (at, f"{at}/result", f"{at}/events"):
        check(other.get(path), 404, "unknown-job")
    check(other.delete(at), 404, "unknown-job")
    assert one.get(f"{at}/result").status_code == 200
    running = begin(one, "/sample", ENDLESS | {"steps": 1_000_000})
    at = f"/jobs/{running['id']}"
    for path in (at, f"{at}/result", f"{at}/events"):
        check(other.get(path), 404, "unknown-job")
    check(other.delete(at), 404, "unknown-job")
    assert one.get(at).json()["status"] == "running"
    assert one.delete(at).status_code == 204


def test_a_job_asks_again_whether_its_key_is_for_it(ask, ring: Ring, server: Server, wait) -> None:
    def known(client: httpx.Client) -> bool:
        return client.get("/models").status_code == 200

    ring.add("leaving")
    leaving = ask("leaving")
    wait(lambda: known(leaving))
    slow = begin(ask("all"), "/sample", ENDLESS | {"steps": 1_000_000})
    told = begin(leaving, "/anomaly/score", make_sample(3, 2).arrays(model="cdat-small"))
    over(leaving, wait, told)
    ring.add("leaving", models=["et-small"])  # another key of that name has its jobs
    wait(lambda: not known(leaving))
    leaving = ask("leaving")
    assert leaving.get(told["result"] or f"/jobs/{told['id']}/result").status_code == 200
    narrowed = begin(leaving, "/anomaly/score", make_sample(3, 2).arrays(model="cdat-small"))
    assert over(leaving, wait, narrowed)["status"] == "failed"
    answer = leaving.get(f"/jobs/{narrowed['id']}/result")
    assert (answer.status_code, answer.json()["type"]) == (403, "urn:basin:problem:forbidden")
    ask("all").delete(f"/jobs/{slow['id']}")
    ring.drop("leaving")


def test_an_idempotency_key_is_of_its_key(ask, wait) -> None:
    one, other, named = ask("all"), ask("other"), {"idempotency-key": '"mine"'}
    body, another = make_sample(4).arrays(), make_sample(5).arrays()
    assert one.post("/anomaly/score", json=body, headers=named).status_code == 200
    assert other.post("/anomaly/score", json=another, headers=named).status_code == 200
    check(one.post("/anomaly/score", json=another, headers=named), 422, "key-reused")
    mine = one.post("/anomaly/score", json=body, headers=named | LATER).json()
    other_one = other.post("/anomaly/score", json=body, headers=named | LATER).json()
    assert mine["id"] != other_one["id"]
    assert one.post("/anomaly/score", json=body, headers=named | LATER).json()["id"] == mine["id"]


def test_a_cached_answer_is_of_its_key(ask) -> None:
    body = make_sample(6).arrays()
    hits = [
        ask(name).post("/anomaly/score", json=body).headers.get("x-cache")
        for name in ("all", "all", "scorer", "other", "other")
    ]
    assert hits == [None, "hit", None, None, "hit"]


def test_a_memory_is_of_its_key(ask) -> None:
    one, other = ask("all"), ask("other")
    shipped = {memory["id"] for memory in one.get("/memories").json()["memories"]}
    patterns = {"patterns": [[1.0, 0.0], [0.0, 1.0]]}
    assert one.put("/memories/mine", json=patterns).status_code == 201
    check(other.get("/memories/mine"), 404, "unknown-memory")
    check(other.delete("/memories/mine"), 404, "unknown-memory")
    check(other.post("/sample", json=sampling(memory="mine")), 404, "unknown-memory")
    for path in ("/memories/all%2Fmine", "/memories/..%2Fall%2Fmine", "/memories/all"):
        assert other.get(path).status_code == 404
    assert other.put("/memories/mine", json={"patterns": [[5.0, 5.0, 5.0]]}).status_code == 201
    assert one.get("/memories/mine").json()["dim"] == 2
    assert other.get("/memories/mine").json()["dim"] == 3
    assert one.post("/sample", json=sampling(memory="mine")).status_code == 200
    assert {m["id"] for m in other.get("/memories").json()["memories"]} == shipped | {"mine"}
    assert other.delete("/memories/mine").status_code == 204
    assert one.delete("/memories/mine").status_code == 204


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
    metrics = ask("all").get("/metrics").text
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
            faults = bearer(ring.secrets["all"])
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
    log = server.log.read_text()
    for secret in (mark, mark.lower(), str(number), unknown, *ring.secrets.values()):
        assert secret not in log
        assert secret not in one.get("/metrics").text
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
    assert "cdn.jsdelivr.net" in one.get("/docs").headers["content-security-policy"]
