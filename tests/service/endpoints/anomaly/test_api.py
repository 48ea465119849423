"""What POST /anomaly/score answers to a good request."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from models import checkpoint
from models.base import DynamicsParams
from service.endpoints.anomaly.schemas import ScoreResponse

MODELS = {"et-small": 1, "cdat-small": 2}
SAFETENSORS = {"content-type": "application/vnd.safetensors"}


def post(client, body, **headers):
    if isinstance(body, bytes):
        return client.post("/anomaly/score", content=body, headers=SAFETENSORS | headers)
    return client.post("/anomaly/score", json=body, headers=headers)


def scored(client, body):
    response = post(client, body)
    assert response.status_code == 200, response.text
    return response.json()


def by_node(answer):
    return {result["node_id"]: result["score"] for result in answer["results"]}


@pytest.mark.parametrize("model", MODELS)
def test_the_answer_is_what_the_checkpoint_computes(client, checkpoints, sample, model):
    one = sample(3, MODELS[model])
    loaded = checkpoint.load_checkpoint(checkpoints / model)
    network, manifest = loaded.network, loaded.manifest
    output = network.infer(network.pack([one.graph()]), [DynamicsParams()])  # type: ignore[attr-defined]
    answer = scored(client, one.arrays(model=model))
    logits = np.array([result["score"] for result in answer["results"]])
    np.testing.assert_allclose(logits, output.logits.numpy(), rtol=1e-5, atol=1e-6)
    probability = manifest.calibration(logits)
    for result, p, name in zip(answer["results"], probability, one.node_ids, strict=True):
        assert result["node_id"] == name
        assert result["probability"] == pytest.approx(p)
        assert result["threshold"] == manifest.threshold
        assert result["label"] == int(result["probability"] >= manifest.threshold)
    ranks = [result["rank"] for result in answer["results"]]
    assert sorted(ranks) == list(range(1, len(ranks) + 1))
    assert np.argsort(ranks).tolist() == np.argsort(-logits, kind="stable").tolist()
    assert answer["model"] == {"name": model, "version": "1.2.3", "sha256": loaded.sha256}


@pytest.mark.parametrize("model", MODELS)
def test_the_answer_fits_its_schema(client, sample, model):
    body = sample(3, MODELS[model]).arrays(model=model, include=["trace", "components"])
    response = post(client, body)
    ScoreResponse.model_validate_json(response.content, strict=True)
    answer = response.json()
    found, components = answer["convergence"], answer["convergence"]["components"]
    for end in ("initial", "final"):
        total = sum(change[end] for change in components.values())
        assert total == pytest.approx(found[f"energy_{end}"], rel=1e-6)
    drop = found["energy_initial"] - found["energy_final"]
    assert found["energy_drop"] == pytest.approx(drop)
    percentile = found["energy_percentile"]
    assert 0 <= percentile <= 100
    assert found["out_of_distribution"] is not (0.5 <= percentile <= 99.5)
    blocks = len(answer["dynamics"]["beta"])
    first = [entry for entry in found["trace"] if entry["step"] == 0]
    assert [entry["block"] for entry in first] == list(range(blocks))
    assert sum(entry["energy"] for entry in first) == pytest.approx(found["energy_initial"])
    assert len(found["trace"]) == found["steps"] + blocks
    assert all(("storage" in entry) == (model == "cdat-small") for entry in found["trace"])
    assert "compute;dur=" in response.headers["server-timing"]


@pytest.mark.parametrize("model", MODELS)
def test_arrays_rows_and_safetensors_score_alike_to_the_bit(client, sample, model):
    one = sample(4, MODELS[model])
    arrays, rows, tensors = (
        scored(client, send(model=model)) for send in (one.arrays, one.rows, one.tensors)
    )
    assert arrays["results"] == rows["results"] == tensors["results"]
    assert arrays["convergence"] == rows["convergence"] == tensors["convergence"]


def test_rows_may_give_features_as_a_list(client, sample):
    one = sample(4)
    body = one.rows()
    body["nodes"] = [{"id": n, "x": x} for n, x in zip(one.node_ids, one.x.tolist(), strict=True)]
    assert scored(client, body)["results"] == scored(client, one.arrays())["results"]


def test_relations_go_by_name_or_number(client, sample):
    one = sample(4, 2)
    body = one.arrays(model="cdat-small")
    before = scored(client, body)
    names = ["follows", "pays"]
    body["graph"]["edge_type"] = [names[i] for i in body["graph"]["edge_type"]]
    assert scored(client, body)["results"] == before["results"]


@pytest.mark.parametrize("model", MODELS)
def test_relabelling_permutes_the_scores(client, sample, model):
    one = sample(5, MODELS[model])
    order = np.random.default_rng(0).permutation(len(one.x))
    place = np.argsort(order)
    moved = type(one)(
        one.x[order],
        place[one.edge_index],
        one.edge_type,
        [one.node_ids[i] for i in order],
    )
    before = by_node(scored(client, one.arrays(model=model)))
    after = by_node(scored(client, moved.arrays(model=model)))
    assert after == pytest.approx(before, rel=1e-4, abs=1e-5)


def test_targets_choose_and_order_the_results(client, sample):
    one = sample(6)
    whole = by_node(scored(client, one.arrays()))
    targets = [one.node_ids[i] for i in (7, 2, 30)]
    for body in (
        one.arrays(targets=targets),
        one.rows(targets=targets),
        one.tensors(targets=np.array([7, 2, 30])),
    ):
        results = scored(client, body)["results"]
        assert [result["node_id"] for result in results] == targets
        assert all(whole[result["node_id"]] == result["score"] for result in results)
        assert sorted(result["rank"] for result in results) == [1, 2, 3]


def test_nodes_without_ids_go_by_their_rows(client, sample):
    body = sample(6).arrays(targets=[7, 2])
    del body["graph"]["node_ids"]
    assert [result["node_id"] for result in scored(client, body)["results"]] == [7, 2]


def test_equal_nodes_rank_in_order(client):
    body = {"graph": {"x": [[0.5] * 5] * 4, "edge_index": [[], []]}, "targets": [3, 1, 0, 2]}
    assert [result["rank"] for result in scored(client, body)["results"]] == [4, 2, 1, 3]


def test_no_edges_loops_and_repeated_edges_are_fine(client, sample):
    one = sample(7)
    alone = one.arrays()
    alone["graph"]["edge_index"] = [[], []]
    loops = one.arrays()
    loops["graph"]["edge_index"] = [list(range(40)), list(range(40))]
    assert scored(client, loops)["results"] == scored(client, alone)["results"]
    rows = one.rows()
    rows["edges"] = []
    assert scored(client, rows)["results"] == scored(client, alone)["results"]
    empty = type(one)(one.x, np.empty((2, 0), np.int64), None, one.node_ids)
    assert scored(client, empty.tensors())["results"] == scored(client, alone)["results"]
    twice = one.arrays()
    twice["graph"]["edge_index"] = [2 * end for end in twice["graph"]["edge_index"]]
    assert scored(client, twice)["results"] == scored(client, one.arrays())["results"]
    single = {"graph": {"x": [[1, 2, 3, 4, 5]], "edge_index": [[0], [0]]}}
    assert len(scored(client, single)["results"]) == 1


@pytest.mark.parametrize("dtypes", [(np.float64, np.int32), (np.float16, np.int64)])
def test_tensor_types(client, sample, dtypes):
    one = sample(8)
    as_float, as_int = dtypes
    cast = type(one)(one.x.astype(as_float), one.edge_index.astype(as_int), None, one.node_ids)
    plain = type(one)(cast.x.astype(np.float32), one.edge_index, None, one.node_ids)
    assert scored(client, cast.tensors())["results"] == scored(client, plain.arrays())["results"]


@pytest.mark.parametrize("deterministic", [True, False])
def test_company_changes_nothing(server, sample, deterministic):
    """To the bit where that is asked for, else up to rounding."""
    graphs = [sample(seed, nodes=20 + seed) for seed in range(12)]
    knobs = {"noise": 0.1, "deterministic": deterministic}
    bodies = [g.arrays(dynamics={"seed": i, **knobs}) for i, g in enumerate(graphs)]
    with server.client() as client, ThreadPoolExecutor(12) as pool:
        alone = [scored(client, body) for body in bodies]
        for _ in range(3):
            together = list(pool.map(lambda body: scored(client, body), bodies))
            for one, other in zip(alone, together, strict=True):
                if deterministic:
                    assert one["results"] == other["results"]
                scores = [[r["score"] for r in each["results"]] for each in (one, other)]
                np.testing.assert_allclose(*scores, rtol=1e-4, atol=1e-5)
                assert one["dynamics"] == other["dynamics"]
                energies = [each["convergence"]["energy_final"] for each in (one, other)]
                assert energies[0] == pytest.approx(energies[1], rel=1e-5)
                assert one["convergence"]["steps"] == other["convergence"]["steps"]
