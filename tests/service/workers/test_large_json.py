"""Large bodies of JSON go through a process of their own, and nobody can tell."""

from __future__ import annotations

import asyncio
import json
import os
import sys

import orjson
import pytest

from service.endpoints.anomaly.parse import parse_score
from service.errors import Problem
from service.http.cancellation import ClientDisconnected, run_until_deadline_or_disconnect
from service.media_types import JSON
from service.registry.handles import Scorer
from service.registry.registry import Registry
from service.settings import Settings
from service.workers import large_json, large_json_worker
from service.workers.large_json import (
    CONDENSED,
    LARGE_BODY_BYTES,
    MAX_INLINE_BYTES,
    LargeJsonParser,
)
from tests.support.bad_score_bodies import BAD_ENVELOPE, BAD_GRAPHS, BAD_JSON, text

BAD = BAD_JSON | BAD_ENVELOPE | BAD_GRAPHS


@pytest.fixture(scope="module")
def registry(checkpoints) -> Registry:
    registry = Registry()
    registry.load(checkpoints)
    return registry


@pytest.fixture(scope="module")
def client(start, checkpoints, wait, answers):
    server = start(checkpoints=checkpoints, default_anomaly_model="et-small")
    wait(lambda: answers(server, "/health/ready", 200))
    with server.client() as client:
        yield client


def settings(**changes) -> Settings:
    return Settings.model_validate({"default_anomaly_model": "et-small"} | changes)


def refusal(body, media_type, registry):
    with pytest.raises(Problem) as caught:
        parse_score(body, media_type, registry, settings())
    return caught.value.kind, caught.value.detail, caught.value.faults


@pytest.mark.parametrize("name", BAD)
def test_a_bad_body_is_refused_in_the_same_words(name, registry):
    body = text(BAD[name][0])
    models = {
        model.name: [model.features, model.relations, model.edge_features]
        for model in registry.list_models_of_kind(Scorer)
    }
    limits = {"max_nodes": settings().max_nodes, "max_edges": settings().max_edges}
    rules = orjson.loads(orjson.dumps({"models": models, "default": "et-small", **limits}))
    condensed = large_json_worker.condense(body, rules)
    assert refusal(condensed, CONDENSED, registry) == refusal(body, JSON, registry)


def padded(body) -> bytes:
    """The same JSON, as large as it takes."""
    return json.dumps(body).encode() + b" " * MAX_INLINE_BYTES


@pytest.mark.parametrize("shape", ["arrays", "rows"])
@pytest.mark.parametrize(
    ("model", "relations", "edge_features"),
    [("et-small", 1, 0), ("cdat-small", 2, 0), ("et-edges", 2, 2)],
)
def test_a_large_body_scores_like_a_small_one(
    client, sample, shape, model, relations, edge_features
):
    graph = sample(3, relations, edge_features=edge_features)
    body = getattr(graph, shape)(model=model, targets=graph.node_ids[:7], include=["trace"])
    small = client.post("/anomaly/score", json=body)
    headers = {"content-type": JSON}
    answer = client.post("/anomaly/score", content=padded(body), headers=headers)
    assert small.status_code == answer.status_code == 200, answer.text
    assert "condense" in answer.json()["timings_ms"]
    assert "condense" not in small.json()["timings_ms"]
    for part in ("results", "model", "dynamics", "convergence"):
        assert answer.json()[part] == small.json()[part]


def test_a_large_bad_body(client, sample):
    body = sample(3).arrays(targets=["nobody"])
    headers = {"content-type": JSON}
    answer = client.post("/anomaly/score", content=padded(body), headers=headers)
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["pointer"] == "/targets/0"


def test_what_is_beside_the_graph_is_small(client, sample):
    body = sample(3).arrays(model="x" * LARGE_BODY_BYTES)
    answer = client.post("/anomaly/score", json=body)
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["code"] == "too_long"
    assert len(answer.content) < 1000


def test_what_the_process_declines_is_parsed_here(client):
    body = padded({"graph_id": "none", "targets": [1]})
    answer = client.post("/anomaly/score", content=body, headers={"content-type": JSON})
    assert answer.status_code == 404
    larger = body + b" " * LARGE_BODY_BYTES
    answer = client.post("/anomaly/score", content=larger, headers={"content-type": JSON})
    assert answer.status_code == 413
    assert "`graph_id`" in answer.json()["detail"]


def condense(*bodies):
    """Condense each, and return the answers and the processes that were kept after them."""

    async def run():
        parser = LargeJsonParser()
        results = []
        for body in bodies:
            answer = await parser.condense(body, {}, settings())
            results.append((answer, parser._process))
        await parser.close()
        return results

    return asyncio.run(run())


def test_a_process_is_kept_unless_it_parsed_a_huge_body():
    small, huge = b"{}", b"{}" + b" " * (9 << 20)
    results = condense(small, small, huge, small)
    (first, one), (second, two), (third, none), (fourth, other) = results
    assert first == second == third == fourth
    assert first
    assert one is two is not None
    assert none is None
    assert other is not None
    assert other.pid != one.pid
    assert other.returncode is not None  # closed


def test_a_kept_process_that_was_killed_is_replaced():
    async def run():
        parser = LargeJsonParser()
        first = await parser.condense(b"{}", {}, settings())
        assert parser._process is not None
        parser._process.kill()
        await parser._process.wait()
        assert await parser.condense(b"{}", {}, settings()) == first
        await parser.close()

    asyncio.run(run())


def test_a_process_that_dies_is_told(monkeypatch):
    monkeypatch.setattr(large_json.sys, "executable", "/bin/false")
    with pytest.raises(Problem) as caught:
        condense(b"{}" * LARGE_BODY_BYTES)
    assert caught.value.kind == "internal-error"


@pytest.mark.parametrize("gone", [True, False])
def test_a_process_nobody_waits_for_is_killed(monkeypatch, tmp_path, gone):
    script = tmp_path / "hang"
    trace = tmp_path / "pid"
    script.write_text(
        f"#!{sys.executable}\nimport os, pathlib, time\n"
        f"pathlib.Path({str(trace)!r}).write_text(str(os.getpid()))\ntime.sleep(600)\n"
    )
    script.chmod(0o755)
    monkeypatch.setattr(large_json.sys, "executable", str(script))

    async def hang_up():
        while not trace.is_file() or not trace.read_text():
            await asyncio.sleep(0.01)
        if not gone:
            await asyncio.sleep(600)

    async def run():
        work = LargeJsonParser().condense(b"{}", {}, settings())
        await run_until_deadline_or_disconnect(work, hang_up, 600 if gone else 1)

    with pytest.raises(ClientDisconnected if gone else Problem) as caught:
        asyncio.run(run())
    assert gone or caught.value.kind == "deadline"
    with pytest.raises(ProcessLookupError):
        os.kill(int(trace.read_text()), 0)
