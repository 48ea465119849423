"""No response is larger than BASIN_MAX_RESPONSE_BYTES: it is refused before it is computed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import safetensors.numpy

from service.endpoints.anomaly.infer import ENTRY_BYTES
from tests.service.endpoints.anomaly.test_bad_input import check
from tests.support.checkpoints import make_sample
from tests.support.server import Server, Start, wait_until

NODES, LIMIT = 200, 20_000


@pytest.fixture(scope="module")
def narrow(start: Start, checkpoints: Path, answers: Callable[..., bool], wait) -> Server:
    server = start(
        checkpoints=checkpoints,
        models="et-small,cdat-mol",
        default_anomaly_model="et-small",
        default_classify_model="cdat-mol",
        max_response_bytes=LIMIT,
    )
    wait(lambda: answers(server, "/health/ready", 200))
    return server


@pytest.fixture
def client(narrow: Server) -> Iterator[httpx.Client]:
    with narrow.client() as client:
        yield client


def _was_computed(server: Server, answer: httpx.Response) -> bool:
    """Whether the request came so far that it had a cost, by its log line."""
    request_id, lines = answer.headers["x-request-id"], list[dict[str, Any]]()

    def is_logged() -> bool:
        lines.extend(each for each in server.log_lines() if each.get("request_id") == request_id)
        return bool(lines)

    wait_until(is_logged)
    return lines[0]["cost"] is not None


def test_scores_as_json(client: httpx.Client, narrow: Server) -> None:
    sample = make_sample(0, nodes=NODES)
    refused = client.post("/anomaly/score", json=sample.arrays())
    check(refused, 422, "invalid-request")
    [fault] = refused.json()["errors"]
    assert (fault["pointer"], fault["code"]) == ("/targets", "too_large")
    assert "Score fewer `targets`, or accept application/vnd.safetensors" in fault["detail"]
    assert not _was_computed(narrow, refused)
    few = sample.arrays(targets=sample.node_ids[:100])
    answer = client.post("/anomaly/score", json=few)
    assert answer.status_code == 200
    assert _was_computed(narrow, answer)
    assert len(answer.content) / 100 == pytest.approx(ENTRY_BYTES, rel=0.2)
    explained = sample.arrays(targets=sample.node_ids[:10], include=["explanation"])
    check(client.post("/anomaly/score", json=explained), 422, "invalid-request")


def test_scores_as_tensors(client: httpx.Client) -> None:
    accept = {"accept": "application/vnd.safetensors"}
    answer = client.post(
        "/anomaly/score", json=make_sample(0, nodes=NODES).arrays(), headers=accept
    )
    assert answer.status_code == 200
    assert len(safetensors.numpy.load(answer.content)["results.score"]) == NODES
    large = make_sample(0, nodes=LIMIT // 30).arrays()
    refused = client.post("/anomaly/score", json=large, headers=accept)
    check(refused, 422, "invalid-request")
    assert "send a part of the graph" in refused.json()["detail"]


def test_the_open_inference_protocol(client: httpx.Client, narrow: Server) -> None:
    sample = make_sample(0, nodes=300)
    tensors = {"x": ("FP32", sample.x), "edge_index": ("INT64", sample.edge_index)}
    inputs = [
        {
            "name": name,
            "datatype": datatype,
            "shape": list(array.shape),
            "data": np.asarray(array).reshape(-1).tolist(),
        }
        for name, (datatype, array) in tensors.items()
    ]
    path = "/v2/models/et-small/infer"
    refused = client.post(path, json={"inputs": inputs})
    assert refused.status_code == 422
    assert "binary_data" in refused.json()["error"]
    assert not _was_computed(narrow, refused)
    in_bytes = {"inputs": inputs, "parameters": {"binary_data_output": True}}
    assert client.post(path, json=in_bytes).status_code == 200
    one = {"inputs": inputs, "outputs": [{"name": "score"}]}
    assert client.post(path, json=one).status_code == 200


def test_classes(client: httpx.Client) -> None:
    assert client.post("/classify", json={"smiles": ["CCO"] * 5}).status_code == 200
    refused = client.post("/classify", json={"smiles": ["CCO"] * 100})
    check(refused, 422, "invalid-request")
    assert "send fewer inputs" in refused.json()["detail"]
