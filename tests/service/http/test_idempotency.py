"""`Idempotency-Key`: how it is read, and which requests it refuses."""

from __future__ import annotations

import pytest
from starlette.requests import Request

from service.auth.keys import ANONYMOUS
from service.errors import Problem
from service.http import idempotency
from service.http.idempotency import IdempotencyKeys, idempotency_key


def request_with(*keys: str) -> Request:
    headers = [(b"idempotency-key", key.encode("latin-1")) for key in keys]
    return Request({"type": "http", "headers": headers, "user": ANONYMOUS})


@pytest.mark.parametrize(
    ("sent", "key"),
    [('"abc"', "abc"), ("abc", "abc"), (' "a b" ', "a b"), (f'"{"k" * 255}"', "k" * 255)],
)
def test_a_key_is_a_quoted_or_a_bare_string(sent: str, key: str) -> None:
    assert idempotency_key(request_with(sent)) == key


def test_no_header_is_no_key() -> None:
    assert idempotency_key(request_with()) is None


@pytest.mark.parametrize("sent", ['""', "a b", '"a', "k" * 256, '"ä"', '"a\tb"'])
def test_a_malformed_key_is_refused(sent: str) -> None:
    with pytest.raises(Problem, match="bad-request"):
        idempotency_key(request_with(sent))


def test_two_keys_are_refused() -> None:
    with pytest.raises(Problem, match="bad-request"):
        idempotency_key(request_with('"a"', '"a"'))


def test_a_key_belongs_to_its_first_request() -> None:
    keys = IdempotencyKeys(60)
    with keys.reserve("k", b"one"):
        with pytest.raises(Problem, match="key-in-use"), keys.reserve("k", b"one"):
            pass
        with pytest.raises(Problem, match="key-reused"), keys.reserve("k", b"two"):
            pass
        with keys.reserve("other", b"two"):
            pass
    with keys.reserve("k", b"one"):  # it ended, so it may come again
        pass
    with pytest.raises(Problem, match="key-reused"), keys.reserve("k", b"two"):
        pass


def test_a_key_is_free_again_after_an_error() -> None:
    keys = IdempotencyKeys(60)
    with pytest.raises(ZeroDivisionError), keys.reserve("k", b"one"):
        raise ZeroDivisionError
    with keys.reserve("k", b"one"):
        pass


def test_keys_expire_and_the_oldest_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(idempotency.time, "monotonic", lambda: now)
    keys = IdempotencyKeys(10, max_keys=2)
    for name in ("a", "b", "c"):
        with keys.reserve(name, b"one"):
            pass
    with keys.reserve("a", b"two"):  # dropped for c
        pass
    now = 11.0
    with keys.reserve("c", b"two"):  # expired
        pass


def test_many_of_one_client_drop_none_of_another() -> None:
    keys = IdempotencyKeys(60, max_keys=4)
    for key in ("few\nk", *(f"many\n{number}" for number in range(9))):
        with keys.reserve(key, b"one"):
            pass
    with pytest.raises(Problem, match="key-reused"), keys.reserve("few\nk", b"two"):
        pass
    with keys.reserve("many\n0", b"two"):  # dropped
        pass
