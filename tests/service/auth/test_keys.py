"""Keys by themselves: what they admit, how their file is read, how much they may have."""

from __future__ import annotations

import asyncio
import hmac
import json
import math
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.auth.key_store import ApiKeyFileError, ApiKeyStore, parse_key_file
from service.auth.keys import ANONYMOUS, SECRET_PATTERN, ApiKey, hash_secret, new_secret
from service.auth.usage_limits import UsageLimits
from service.engine.engine import Engine
from service.errors import Problem
from service.observability.metrics import Metrics
from service.storage.limiter import LocalLimiter, TokenBucket

ENTRY = {"name": "one", "sha256": ["0" * 64], "routes": "*", "models": "*"}


def entry(**changes: object) -> dict[str, object]:
    return ENTRY | changes


def write(path: Path, *entries: dict[str, object]) -> Path:
    path.write_text(json.dumps({"keys": entries}))
    return path


def test_a_secret_is_256_bits_and_known_by_its_beginning() -> None:
    secrets = {new_secret() for _ in range(100)}
    assert len(secrets) == 100
    assert all(SECRET_PATTERN.fullmatch(secret) for secret in secrets)


@pytest.mark.parametrize(
    ("routes", "admitted", "refused"),
    [
        ("*", ["GET /jobs/1", "POST /classify", "GET /docs"], ["GET /admin/models", "GET /admin"]),
        (["/jobs"], ["GET /jobs/1", "DELETE /jobs/1/result"], ["GET /jobsy", "GET /job", "GET /"]),
        (
            ["GET /models"],
            ["GET /models/a"],
            ["PUT /models/a", "HEAD /models", "GET /admin/models"],
        ),
        (["/admin"], ["PUT /admin/models/a"], ["GET /models", "GET /administration"]),
        ([], [], ["GET /", "POST /classify"]),
    ],
)
def test_what_a_key_admits(routes: object, admitted: list[str], refused: list[str]) -> None:
    key = ApiKey.model_validate(entry(routes=routes))
    assert all(key.allows(*each.split(" ")) for each in admitted)
    assert not any(key.allows(*each.split(" ")) for each in refused)


@pytest.mark.parametrize(
    "bad",
    [
        {"name": "One"},
        {"name": "../up"},
        {"name": ""},
        {"sha256": []},
        {"sha256": ["0" * 63]},
        {"sha256": ["0" * 64, "0" * 64]},
        {"sha256": "0" * 64},
        {"routes": ["classify"]},
        {"routes": ["/"]},
        {"routes": ["get /models"]},
        {"routes": ["/jobs/{id}"]},
        {"routes": None},
        {"models": None},
        {"models": ["*"]},
        {"expires": "2030-01-01T00:00:00"},  # of which time zone?
        {"expires": "soon"},
        {"rate": {"per_second": 0, "burst": 1}},
        {"rate": {"per_second": 1, "burst": 0.5}},
        {"quota": {"cost": "Infinity", "seconds": 1}},
        {"quota": {"cost": 1}},
        {"role": "king"},
    ],
    ids=str,
)
def test_what_is_no_key(bad: dict[str, object]) -> None:
    with pytest.raises(ApiKeyFileError):
        parse_key_file(json.dumps({"keys": [entry(**bad)]}).encode())


@pytest.mark.parametrize(
    "raw", [b"", b"{}", b"[]", b'{"keys": 1}', b"\xff", b'{"keys": [], "a": 1}']
)
def test_what_is_no_file_of_keys(raw: bytes) -> None:
    with pytest.raises(ApiKeyFileError):
        parse_key_file(raw)


def test_a_fault_tells_where_and_not_what() -> None:
    with pytest.raises(ApiKeyFileError) as caught:
        parse_key_file(json.dumps({"keys": [entry(sha256=["basin_not-hashed"])]}).encode())
    assert "keys.0.sha256.0" in str(caught.value)
    assert "not-hashed" not in str(caught.value)


def test_names_and_hashes_stand_once() -> None:
    for other in ({"sha256": ["1" * 64]}, {"name": "two"}):
        with pytest.raises(ApiKeyFileError, match="unique"):
            parse_key_file(json.dumps({"keys": [ENTRY, entry(**other)]}).encode())


def test_a_key_is_found_and_every_hash_is_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secrets = [new_secret() for _ in range(3)]
    first, *others = map(hash_secret, secrets)
    file = write(tmp_path / "keys", entry(sha256=[first]), entry(name="two", sha256=others))
    ring, compared, compare_digest = ApiKeyStore(file), [], hmac.compare_digest

    def compare(known: str, sent: str) -> bool:
        compared.append(known)
        return compare_digest(known, sent)

    monkeypatch.setattr(hmac, "compare_digest", compare)
    found = [ring.find_by_secret(secret) for secret in (*secrets, new_secret(), "")]
    assert [key and key.name for key in found] == ["one", "two", "two", None, None]
    assert compared == [first, *others] * 5, "whichever it is, all are compared"
    assert (ring.find_by_name("two"), ring.find_by_name("three"), ring.find_by_name("")) == (
        found[1],
        None,
        None,
    )


def test_a_file_is_read_again_all_of_it_or_nothing(tmp_path: Path) -> None:
    file, faults = write(tmp_path / "keys", ENTRY), []
    ring = ApiKeyStore(file, lambda: faults.append(1))

    def known(name: str) -> bool:
        ring.reload()
        return ring.find_by_name(name) is not None

    assert known("one")
    write(file, entry(name="two"))
    assert not known("one")
    assert known("two")
    assert not faults
    for fault in (b"{", json.dumps({"keys": [entry(name="three"), {}]}).encode()):
        file.write_bytes(fault)
        assert known("two"), "the old ones hold"
        assert not known("three")
    assert len(faults) == 2, "a fault is told once, however often it is seen"
    file.unlink()
    assert known("two")
    write(file)
    assert not known("two"), "an empty ring is a ring"
    assert len(faults) == 3


def test_no_file_no_ring(tmp_path: Path) -> None:
    (tmp_path / "bad").write_text("{")
    for path in (tmp_path / "none", tmp_path, tmp_path / "bad"):
        with pytest.raises(ApiKeyFileError):
            ApiKeyStore(path)


def test_keys_expire() -> None:
    now = datetime.now(UTC)
    for expires, over in ((None, False), (now - timedelta(1), True), (now + timedelta(1), False)):
        key = ApiKey.model_validate(entry(expires=expires and expires.isoformat()))
        assert key.is_expired is over
    assert not ANONYMOUS.is_expired


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_what_is_taken_comes_back_evenly() -> None:
    clock = Clock()
    limiter, limit = LocalLimiter(clock), TokenBucket(capacity=3, refill_per_s=2)

    def take(amount: float, name: str = "a") -> float:
        return asyncio.run(limiter.take(name, amount, limit))

    assert [take(1) for _ in range(4)] == [0, 0, 0, 0.5]
    assert take(3, "b") == 0, "names are apart"
    clock.now += 0.5
    assert (take(1), take(1)) == (0, 0.5)
    clock.now += 100
    assert (take(3), take(3)) == (0, 1.5), "it never grows beyond the most"
    asyncio.run(limiter.refund("a", 2, limit))
    assert (take(2), take(2)) == (0, 1.0)
    assert math.isinf(take(3.5))
    assert math.isinf(take(3.5, "new"))


def test_a_bucket_that_became_smaller_is_at_most_empty() -> None:
    limiter = LocalLimiter(Clock())
    large, small = TokenBucket(capacity=1000, refill_per_s=1), TokenBucket(3, 1)
    assert asyncio.run(limiter.take("a", 900, large)) == 0
    assert asyncio.run(limiter.take("a", 1, small)) == 1


@given(
    st.lists(st.tuples(st.floats(0, 10), st.floats(0.01, 50)), max_size=40),
    st.floats(1, 40),
    st.floats(0.1, 20),
)
def test_no_more_than_the_most_and_what_came_back(
    asked: list[tuple[float, float]], most: float, per_second: float
) -> None:
    """Whatever is asked, and after waiting as long as told it is there."""

    async def play() -> None:
        clock, limit, taken = Clock(), TokenBucket(most, per_second), 0.0
        limiter, start = LocalLimiter(clock), clock.now
        for pause, amount in asked:
            clock.now += pause
            late_s = await limiter.take("a", amount, limit)
            if math.isinf(late_s):
                assert amount > most
                continue
            if late_s:
                clock.now += late_s
                assert not await limiter.take("a", amount, limit)
            taken += amount
            assert taken <= (most + (clock.now - start) * per_second) * (1 + 1e-6)

    asyncio.run(play())


def test_what_found_no_place_is_given_back() -> None:
    engine = Engine(1, 1)
    tolls = UsageLimits(LocalLimiter(Clock()), metrics := Metrics())
    key = ApiKey.model_validate(entry(quota={"cost": 10, "seconds": 60}))

    async def spend(cost: float, kind: str | None = None) -> None:
        async with tolls.charge_quota(key, cost):
            if kind is not None:
                raise Problem(kind, "")

    def ends_with(kind: str, cost: float, raised: str | None = None) -> None:
        with pytest.raises(Problem) as caught:
            asyncio.run(spend(cost, raised))
        assert caught.value.kind == kind

    for _ in range(3):
        ends_with("queue-full", 8, "queue-full")
    ends_with("diverged", 8, "diverged")
    ends_with("quota-exceeded", 8)
    asyncio.run(spend(2))
    assert b'basin_key_cost_total{key="one"} 10.0' in metrics.render()
    engine.close()
