"""Numbers at the ends of what can be represented: an answer, or what is allowed."""

from __future__ import annotations

import httpx

from tests.support.fuzz_numbers import Fuzzer, fuzz
from tests.support.server import Server


def test_any_number_is_answered(server: Server) -> None:
    counts, failures = fuzz(server.url, seed=1, numbers=range(400))
    assert failures == []
    assert counts["200"] > 50
    assert counts["422"] > 50


def test_a_request_can_be_repeated(server: Server) -> None:
    with httpx.Client(base_url=server.url, timeout=30) as client:
        once, again = Fuzzer(client), Fuzzer(client)
    assert [once.make(2, i) for i in range(50)] == [again.make(2, i) for i in range(50)]


def test_every_field_of_the_schemas_is_sent(server: Server) -> None:
    with httpx.Client(base_url=server.url, timeout=30) as client:
        fuzzer = Fuzzer(client)
    sent = b"".join(fuzzer.make(3, i).content for i in range(4000))
    schemas = fuzzer.document["components"]["schemas"]
    names = {
        name
        for schema in ("Dynamics", "Resonance", "AlertRule", "NeighborhoodKnobs", "SampleRequest")
        for name in schemas[schema]["properties"]
    }
    assert [name for name in sorted(names) if f'"{name}"'.encode() not in sent] == []
