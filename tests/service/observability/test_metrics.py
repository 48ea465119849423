"""The metrics that there are, and what requests add to them."""

from __future__ import annotations

from tests.service.endpoints.complete.test_api import body as picture
from tests.support.image_models import SCENE, SHAPE, look
from tests.support.prometheus import families, value

FAMILIES = {
    "basin_requests": "counter",
    "basin_problems": "counter",
    "basin_refusals_held": "counter",
    "basin_request_seconds": "histogram",
    "basin_energy_per_node": "histogram",
    "basin_energy_drop_per_node": "histogram",
    "basin_residual": "histogram",
    "basin_steps": "histogram",
    "basin_stops": "counter",
    "basin_classified": "counter",
    "basin_item_errors": "counter",
    "basin_windows": "counter",
    "basin_images": "counter",
    "basin_chain_steps": "counter",
    "basin_samples": "counter",
    "basin_acceptance": "histogram",
    "basin_jobs": "counter",
    "basin_jobs_unfinished": "gauge",
    "basin_jobs_dead": "gauge",
    "basin_cache": "counter",
    "basin_cache_bytes": "gauge",
    "basin_model_info": "gauge",
    "basin_queue_depth": "gauge",
    "basin_heap_bytes": "gauge",
}


def test_metrics(client, sample):
    one = sample(2)
    before = families(client)
    good = {"route": "/anomaly/score", "status": "200"}
    for _ in range(3):
        assert client.post("/anomaly/score", json=one.arrays()).status_code == 200
    client.post("/anomaly/score", json=one.arrays(dynamics={"steps": -1}))
    client.post("/classify", json={"smiles": ["CCO", "CC", "?"]})
    client.post("/classify", json={"smiles": ["?", "?"]})
    client.post("/complete", json=picture(num_samples=2))
    look(client, SCENE, SCENE)
    look(client, SCENE, question=SHAPE)
    client.get("/no/such/path")
    after = families(client)
    assert {name: after[name].type for name in FAMILIES} == FAMILIES
    assert "process_resident_memory_bytes" in after

    def grown(name, suffix, **labels):
        then = before.get(name)
        return value(after[name], suffix, **labels) - (value(then, suffix, **labels) if then else 0)

    assert grown("basin_requests", "_total", **good) == 3
    assert grown("basin_requests", "_total", route="unmatched", status="404") == 1
    assert grown("basin_problems", "_total", type="invalid-request") == 1
    assert grown("basin_stops", "_total", model="et-small", reason="step_limit") == 3
    for name in ("energy_per_node", "energy_drop_per_node", "residual", "steps"):
        assert grown(f"basin_{name}", "_count", model="et-small") == 3
        assert grown(f"basin_{name}", "_count", model="cdat-mol") == 2
    assert grown("basin_steps", "_sum", model="et-small") == 12
    assert grown("basin_classified", "_total", model="cdat-mol") == 2
    assert grown("basin_item_errors", "_total", model="cdat-mol", code="not_smiles") == 3
    assert grown("basin_stops", "_total", model="cdat-mol", reason="step_limit") == 2
    for phase in ("read", "parse", "molecules", "queue", "compute", "encode"):
        assert grown("basin_request_seconds", "_count", route="/classify", phase=phase) >= 1
    assert grown("basin_windows", "_total", model="et-tile") == 2
    assert grown("basin_steps", "_sum", model="et-tile") == 2 * 2 * 3
    assert grown("basin_stops", "_total", model="et-tile", reason="step_limit") == 2
    assert grown("basin_energy_per_node", "_count", model="et-tile") == 2
    for phase in ("read", "parse", "decode", "queue", "compute", "encode"):
        assert grown("basin_request_seconds", "_count", route="/complete", phase=phase) == 1
    assert grown("basin_images", "_total", model="ait-glyph") == 2
    assert grown("basin_images", "_total", model="ait-scene") == 1
    assert grown("basin_energy_per_node", "_count", model="ait-glyph") == 2
    assert grown("basin_steps", "_sum", model="ait-glyph") == 2 * 2 * 3
    for phase in ("read", "parse", "decode", "queue", "compute", "encode"):
        for route in ("/images/classify", "/images/answer"):
            assert grown("basin_request_seconds", "_count", route=route, phase=phase) == 1
    score = {"route": "/anomaly/score", "model": "et-small"}
    for phase in ("read", "parse", "queue", "compute", "encode", "total"):
        assert grown("basin_request_seconds", "_count", **score, phase=phase) == 3
    named = {sample.labels["model"] for sample in after["basin_request_seconds"].samples}
    assert "et-small" in named
    assert "mnist-3" not in named
    assert value(after["basin_model_info"]) == 11
    routes = {sample.labels["route"] for sample in after["basin_requests"].samples}
    documented = client.get("/openapi.json").json()["paths"].keys()
    assert routes <= documented | {"/openapi.json", "/docs", "unmatched"}
