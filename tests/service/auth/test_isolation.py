"""What is of one key is no other's."""

from __future__ import annotations

import httpx
import numpy as np

from tests.service.endpoints.anomaly.test_bad_input import check
from tests.service.endpoints.jobs.test_api import LATER, begin, over
from tests.service.endpoints.sample.test_api import ENDLESS
from tests.service.endpoints.sample.test_api import body as sampling
from tests.support.api_keys import Ring, bearer
from tests.support.checkpoints import make_sample
from tests.support.completion import completed, pictures, send
from tests.support.image_files import saved
from tests.support.prometheus import families, value
from tests.support.server import Server


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
    metrics = httpx.get(
        f"{guarded[0].url}/metrics", headers=bearer(ring.secrets["prometheus"])
    ).text
    for name in ("et-small", "cdat-small"):
        assert f'basin_model_bytes{{model="{name}"}}' in metrics


def test_a_job_is_of_its_key(ask, server: Server, wait) -> None:
    one, other = ask("all"), ask("other")
    told = begin(one, "/sample", sampling())
    assert over(one, wait, told)["status"] == "done"
    mine = {"event": "job", "request_id": told["request_id"]}.items()
    (line,) = [line for line in server.log_lines() if mine <= line.items()]
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


def test_images_are_completed_from_memories_of_the_key_alone(ask) -> None:
    one, other = ask("all"), ask("other")
    image = np.arange(48, dtype=np.uint8).reshape(8, 6)
    stored = {"kind": "images", "shape": [8, 6], "patterns": [(image.ravel() / 255).tolist()]}
    mask = saved(np.repeat(np.uint8([0, 255]), 24).reshape(8, 6))
    assert one.put("/memories/faces", json=stored).status_code == 201
    check(send(other, saved(image), mask, memory="faces"), 404, "unknown-memory")
    [after] = pictures(completed(one, saved(image), mask, memory="faces"))
    np.testing.assert_array_equal(after, image)
    check(send(other, saved(image), mask, memory="faces"), 404, "unknown-memory")  # nor cached
    assert one.delete("/memories/faces").status_code == 204


def test_a_key_for_the_protocol_is_for_its_models_alone(ask) -> None:
    protocol, sample = ask("protocol"), make_sample(1)
    listed = {entry["name"] for entry in protocol.post("/v2/repository/index").json()}
    assert "et-small" in listed
    assert not listed & {"cdat-small", "cdat-mol", "et-tile"}
    names = {"x": ("FP32", sample.x), "edge_index": ("INT64", sample.edge_index)}
    inputs = [
        {"name": name, "shape": list(array.shape), "datatype": kind, "data": array.tolist()}
        for name, (kind, array) in names.items()
    ]
    at = "/v2/models/{}/infer"
    assert protocol.post(at.format("et-small"), json={"inputs": inputs}).status_code == 200
    assert protocol.post(at.format("cdat-small"), json={"inputs": inputs}).status_code == 403
    few = {"steps": 20, "burn_in": 10, "thin": 10, "chains": 1, "num_samples": 1}
    sampled = protocol.post(at.format("mnist-3"), json={"inputs": [], "parameters": few})
    assert sampled.status_code == 200
    assert protocol.post("/anomaly/score", json=sample.arrays()).status_code == 403
    refused = ask("scorer").post(at.format("et-small"), json={"inputs": inputs})
    assert (refused.status_code, list(refused.json())) == (403, ["error"])


def test_examples_name_the_models_of_the_key_alone(ask) -> None:
    documented = ask("all").get("/openapi.json")
    assert '"cdat-small"' in documented.text
    ask("all").get("/openapi.json")
    check(httpx.get(documented.url), 401, "unauthenticated")
    limited = ask("viewer").get("/openapi.json")
    assert limited.status_code == 200
    assert '"et-small"' in limited.text
    assert '"cdat-small"' not in limited.text


def test_metrics_show_a_key_its_own_alone(ask, guarded, ring: Ring) -> None:
    body = make_sample(11).arrays(dynamics={"steps": 1})
    for name in ("all", "other"):
        assert ask(name).post("/anomaly/score", json=body).status_code == 200
    own = families(ask("other"))
    assert own.keys() == {"basin_key_cost", "basin_key_cost_created"}
    keys = {sample.labels["key"] for family in own.values() for sample in family.samples}
    assert keys == {"other"}
    assert value(own["basin_key_cost"], "_total") > 0
    check(ask("scorer").get("/metrics"), 403, "forbidden")
    watching = families(ask("prometheus"))
    assert {"basin_requests", "basin_model_bytes", "basin_queue_depth"} <= watching.keys()
    keys = {sample.labels["key"] for sample in watching["basin_key_cost"].samples}
    assert {"all", "other"} <= keys
    headers = bearer(ring.secrets["operator"])
    admin = httpx.get(f"http://127.0.0.1:{guarded[1]}/metrics", headers=headers).text
    assert 'basin_key_cost_total{key="other"}' in admin
