"""POST /sample: what it draws, what it tells, what it refuses."""

from __future__ import annotations

import io
import json
import re
import time

import numpy as np
import pytest
import safetensors.numpy
from PIL import Image
from prometheus_client.parser import text_string_to_metric_families

from models.memories import ALPHABET
from service.endpoints.sample.schemas import SampleResponse
from tests.service.endpoints.anomaly.test_bad_input import check
from tests.support.bad_tensor_bodies import SAFETENSORS
from tests.support.paths import REPO
from tests.support.server import depth

RNG = np.random.default_rng(3)
PATTERNS = (RNG.standard_normal((8, 6)) * RNG.uniform(1, 9, (8, 1))).astype(np.float32)
QUICK = {"num_samples": 6, "chains": 3, "steps": 60, "burn_in": 20, "thin": 10, "beta": 50.0}


def body(**changes):
    return {"memory": {"patterns": PATTERNS.tolist()}, **QUICK} | changes


def tensors(request=None, **arrays) -> bytes:
    metadata = None if request is None else {"request": json.dumps(request)}
    return safetensors.numpy.save(arrays, metadata=metadata)


def post(client, content, content_type="application/json", **headers):
    raw = content if isinstance(content, bytes) else json.dumps(content).encode()
    return client.post("/sample", content=raw, headers={"content-type": content_type, **headers})


def answer(response) -> dict:
    assert response.status_code == 200, response.text
    SampleResponse.model_validate_json(response.content, strict=False)
    return response.json()


def test_vectors_and_all_that_is_told_of_them(client):
    found = answer(post(client, body(method="mala")))
    assert np.shape(found["samples"]) == (6, 6)
    told = found["diagnostics"]
    assert told["beta"] == 50
    assert len(told["chain_energy"]) == len(told["chain_acceptance"]) == 3
    assert 0.9 < told["acceptance"] <= 1
    assert told["novelty"] == pytest.approx(1 - told["max_cosine"])
    assert set(told["null"]) >= {"novelty", "diversity", "energy", "max_cosine", "entropy"}
    assert told["null"]["energy_closed_form"] == pytest.approx(-0.5 + 6 / 100)
    assert told["snr"] == pytest.approx((0.01 * 50 / 12) ** 0.5)
    assert set(told["r_hat"]) == {"energy", "state"}
    assert found["dynamics"] == {
        **QUICK,
        "beta": [50.0],
        "method": "mala",
        "step_size": 0.01,
        "heads": 1,
        "seed": 0,
        "clamped": 0,
    }
    assert found["memory"]["id"] is None
    assert (found["memory"]["patterns"], found["memory"]["dim"]) == (8, 6)
    assert found["inflection"]["beta_star"] > 0
    assert "spectrum" not in found


def test_the_least_beta_has_finite_samples(client):
    least = answer(post(client, body(beta=1e-12, step_size=1.0)))
    assert np.isfinite(least["samples"]).all()
    assert np.isfinite(least["diagnostics"]["energy"])


def test_cold_chains_return_the_patterns_with_their_length(client):
    found = answer(post(client, body(beta=1e6, num_samples=8, chains=8)))
    samples = np.array(found["samples"])
    gaps = np.linalg.norm(samples[:, None] - PATTERNS, axis=2)
    assert sorted(gaps.argmin(1)) == list(range(8))
    assert gaps.min(1).max() < 0.01 * np.linalg.norm(PATTERNS, axis=1).max()


def test_same_seed_same_samples(client):
    first, again, other = (answer(post(client, body(seed=s)))["samples"] for s in (1, 1, 2))
    assert first == again
    assert first != other


def test_the_forms_of_a_request_agree(client):
    inline = answer(post(client, body()))
    request = {name: value for name, value in body().items() if name != "memory"}
    as_tensor = answer(post(client, tensors(request, patterns=PATTERNS), SAFETENSORS))
    assert as_tensor["samples"] == inline["samples"]
    assert as_tensor["memory"]["sha256"] == inline["memory"]["sha256"]


def test_the_forms_of_an_answer_agree(client):
    for beta, names in ((50.0, ["samples"]), ([50.0, 5.0], ["samples_0", "samples_1"])):
        in_json = answer(post(client, body(beta=beta)))
        raw = post(client, body(beta=beta), accept=SAFETENSORS)
        assert raw.headers["content-type"] == SAFETENSORS
        arrays = safetensors.numpy.load(raw.content)
        assert set(arrays) == set(names)
        size = int.from_bytes(raw.content[:8], "little")
        rest = json.loads(json.loads(raw.content[8 : 8 + size])["__metadata__"]["response"])
        batches = in_json.get("spectrum", [in_json])
        told = rest.get("spectrum") or [rest["diagnostics"]]
        for name, batch, diagnostics in zip(names, batches, told, strict=True):
            np.testing.assert_array_equal(arrays[name], np.array(batch["samples"], np.float32))
            assert diagnostics == batch["diagnostics"]
        assert rest["dynamics"] == in_json["dynamics"]


def test_a_spectrum_is_each_temperature_by_itself(client):
    both = answer(post(client, body(beta=[50, 5.0])))["spectrum"]
    for beta, batch in zip((50.0, 5.0), both, strict=True):
        alone = answer(post(client, body(beta=beta)))
        assert batch == {name: alone[name] for name in ("samples", "diagnostics")}


def test_auto_is_beta_star(client):
    found = answer(post(client, body(beta="auto")))
    assert found["diagnostics"]["beta"] == found["inflection"]["beta_star"]
    assert found["dynamics"]["beta"] == [found["inflection"]["beta_star"]]
    left_out = body()
    del left_out["beta"]
    assert answer(post(client, left_out))["samples"] == found["samples"]
    one = {"patterns": [[1.0, 2.0]]}
    check(post(client, body(beta="auto", memory=one)), 422, "invalid-request", "no_inflection")
    alone = answer(post(client, body(memory=one)))
    assert alone["inflection"]["beta_star"] is None


def test_what_is_clamped_comes_back_as_it_was(client):
    clamp = {"index": [4, 1], "values": [0.123456789, -7.5]}
    found = answer(post(client, body(clamp=clamp, beta=5.0)))
    samples = np.array(found["samples"], np.float32)
    assert (samples[:, [4, 1]] == np.array(clamp["values"], np.float32)).all()
    assert samples[:, [0, 2, 3, 5]].std(0).min() > 0
    assert found["dynamics"]["clamped"] == 2
    request = {n: v for n, v in body(beta=5.0).items() if n != "memory"}
    arrays = {
        "patterns": PATTERNS,
        "clamp_index": np.array(clamp["index"]),
        "clamp_values": np.array(clamp["values"]),
    }
    again = answer(post(client, tensors(request, **arrays), SAFETENSORS))
    assert again["samples"] == found["samples"]


def test_half_a_digit_is_completed(client):
    """Half of a stored image, cold: the rest of it."""
    raw = client.get("/memories/mnist-3", headers={"accept": SAFETENSORS}).content
    image = safetensors.numpy.load(raw)["items"][17].astype(np.float64) / 255
    index = list(range(392))
    request = {
        "memory": "mnist-3",
        "beta": 1e5,
        "num_samples": 2,
        "steps": 800,
        "clamp": {"index": index, "values": image.ravel()[:392].tolist()},
    }
    found = np.array(answer(post(client, request))["samples"])
    assert np.abs(found[:, :14] - image[:14]).max() < 1e-6
    assert np.abs(found[:, 14:] - image[14:]).mean() < 0.05


def test_given_states_are_where_chains_start(client):
    states = PATTERNS[[5, 0]]
    given = {"beta": 1e6, "steps": 2, "burn_in": 0, "thin": 1, "num_samples": 2, "chains": None}
    found = answer(post(client, body(init={"states": states.tolist()}, **given)))
    assert found["dynamics"]["chains"] == 2
    np.testing.assert_allclose(found["samples"], states, rtol=0.02, atol=0.02)
    request = {n: v for n, v in body(**given).items() if n != "memory"}
    again = post(client, tensors(request, patterns=PATTERNS, init=states), SAFETENSORS)
    assert answer(again)["samples"] == found["samples"]


def test_heads(client):
    found = answer(post(client, body(heads=3)))
    assert found["dynamics"]["heads"] == 3
    assert found["samples"] != answer(post(client, body()))["samples"]
    check(post(client, body(heads=7)), 422, "invalid-request", "out_of_range", "/heads")


def test_sequences(client):
    found = answer(post(client, {**QUICK, "memory": "rrm", "beta": 1e5}))
    assert found["memory"]["kind"] == "sequences"
    raw = client.get("/memories/rrm", headers={"accept": SAFETENSORS}).content
    stored = safetensors.numpy.load(raw)["items"]
    for sequence in found["samples"]:
        letters = np.array([ALPHABET.index(letter) for letter in sequence])
        same = (letters == stored) | (stored == 20)
        assert same.all(1).any()  # the copy of a stored one, with its gaps filled
    own = {"sequences": ["ACDE-", "AWDEF", "ACKEF", "MCDYF"]}
    assert len(answer(post(client, {**QUICK, "memory": own}))["samples"][0]) == 5


def test_returns_have_the_moments_of_their_history(client):
    history = 0.01 * RNG.standard_normal((40, 5)) + 0.001
    memory = {"kind": "returns", "patterns": history.tolist()}
    request = body(memory=memory, num_samples=30, beta=20.0, steps=400)
    samples = np.array(answer(post(client, request))["samples"])
    np.testing.assert_allclose(samples.mean(0), history.mean(0), atol=1e-6)
    np.testing.assert_allclose(samples.std(0), history.std(0), rtol=1e-3)


def test_a_picture(client):
    request = {**QUICK, "memory": "mnist-3", "beta": [1e5, 200.0]}
    response = post(client, request, accept="image/png")
    assert response.headers["content-type"] == "image/png"
    picture = Image.open(io.BytesIO(response.content))
    assert picture.size == (6 * 30 - 2, 2 * 30 - 2)
    told = json.loads(picture.text["basin"])  # type: ignore[attr-defined]
    assert [b["beta"] for b in told["spectrum"]] == [1e5, 200.0]
    samples = answer(post(client, request))["spectrum"][0]["samples"]
    first = np.asarray(picture)[:28, :28]
    np.testing.assert_array_equal(first, np.rint(255 * np.array(samples[0])))
    colour = RNG.uniform(0, 1, (5, 12))
    memory = {"kind": "images", "shape": [2, 2, 3], "patterns": colour.tolist()}
    picture = Image.open(io.BytesIO(post(client, body(memory=memory), accept="image/png").content))
    assert (picture.mode, picture.size) == ("RGB", (3 * 4 - 2, 2 * 4 - 2))


@pytest.mark.parametrize(
    ("accept", "content_type"),
    [
        ("*/*", "application/json"),
        ("application/*;q=0.5, image/png;q=0.9", "image/png"),
        ("image/*, application/json;q=0.2", "image/png"),
        ("text/html, */*;q=0.1", "application/json"),
        ("application/json;q=0, */*", SAFETENSORS),
    ],
)
def test_negotiation(client, accept, content_type):
    response = post(client, {**QUICK, "memory": "mnist-3"}, accept=accept)
    assert response.headers["content-type"] == content_type


def test_the_docs_ask_for_threes(client):
    """The request of docs/api.md."""
    readme = (REPO / "docs" / "api.md").read_text()
    [request] = re.findall(r"/sample .*?-d '(.*?)'", readme, re.DOTALL)
    response = client.post(
        "/sample",
        content=request,
        headers={"content-type": "application/json", "accept": "image/png"},
    )
    assert response.status_code == 200, response.text
    assert Image.open(io.BytesIO(response.content)).size == (8 * 30 - 2, 3 * 30 - 2)


def test_what_is_not_acceptable(client):
    check(post(client, body(), accept="text/html"), 406, "not-acceptable")
    check(post(client, body(), accept="application/json;q=0"), 406, "not-acceptable")
    check(post(client, body(), accept="image/png"), 406, "not-acceptable")


ENDLESS = {"memory": "mnist-3", "steps": 1_000_000, "chains": 20, "beta": 2000.0, "thin": 10_000}


def test_whoever_hangs_up_stops_the_chains(narrow, wait):
    from tests.service.system.test_load import socket

    wait(lambda: depth(narrow) == 0)
    content = json.dumps(ENDLESS).encode()
    head = (
        "POST /sample HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(content)}\r\n\r\n"
    )
    connection = socket.create_connection(("127.0.0.1", narrow.port), 10)
    connection.sendall(head.encode() + content)
    wait(lambda: depth(narrow) == 1)
    connection.close()
    start = time.monotonic()
    wait(lambda: depth(narrow) == 0, 3)
    with narrow.client() as client:
        assert post(client, body()).status_code == 200  # the compute thread is free
    assert time.monotonic() - start < 3.5


def test_the_deadline_stops_the_chains(narrow):
    with narrow.client() as client:
        check_slow = post(client, ENDLESS)
        assert check_slow.status_code == 504
        assert check_slow.json()["type"] == "urn:basin:problem:deadline"
        assert post(client, body()).status_code == 200


def test_metrics(client):
    def families():
        text = client.get("/metrics").text
        return {f.name: f for f in text_string_to_metric_families(text)}

    def value(name, **labels):
        family = families()[name]
        return sum(
            s.value
            for s in family.samples
            if not s.name.endswith(("_created", "_sum", "_bucket"))
            and labels.items() <= s.labels.items()
        )

    answer(post(client, body()))
    steps, samples = value("basin_chain_steps", method="mala"), value("basin_samples")
    accepted = value("basin_acceptance")
    answer(post(client, body(method="mala", beta=[1.0, 2.0])))
    assert value("basin_chain_steps", method="mala") - steps == 2 * 3 * 60
    assert value("basin_samples", kind="vectors") - samples <= 12
    assert value("basin_samples") - samples == 12
    assert value("basin_acceptance") - accepted == 2


def test_chains_that_stand_still_say_so(client):
    """Zero acceptance, and why there is no R-hat."""
    body = {"memory": "mnist-3", "beta": 2000, "method": "mala", "step_size": 0.3, "chains": 2}
    body |= {"num_samples": 2, "steps": 200, "burn_in": 0, "thin": 1}
    diagnostics = client.post("/sample", json=body).json()["diagnostics"]
    assert (diagnostics["acceptance"], diagnostics["ess"]) == (0, None)
    assert diagnostics["r_hat"] == {"energy": None, "state": None}
    [note] = diagnostics["notes"]
    assert note.startswith("2 of 2 chains stand still")
    short = body | {"method": "ula", "step_size": 0.01, "steps": 3}
    [note] = client.post("/sample", json=short).json()["diagnostics"]["notes"]
    assert "each chain has 3 recorded steps after burn_in, and 4 are needed" in note
