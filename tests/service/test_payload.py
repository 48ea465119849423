"""Responses are bounded, and long lists are encoded part by part."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import orjson
import pytest

from service.errors import Problem
from service.payload import dump_parts, require_response_bytes, split_items, split_rows


@pytest.mark.parametrize("count", [0, 1, 1023, 1024, 1025, 5000])
def test_parts_of_a_list_are_encoded_as_the_list(count: int) -> None:
    items = [{"id": i, "text": "é,]"} for i in range(count)]
    document = {"a": 1, "items": dump_parts(split_items(iter(items))), "z": None}
    assert orjson.dumps(document) == orjson.dumps(document | {"items": items})


@pytest.mark.parametrize("shape", [(0,), (0, 3), (1,), (100_000,), (3, 70_000), (70_000, 3)])
def test_parts_of_an_array_are_encoded_as_the_array(shape: tuple[int, ...]) -> None:
    array = np.random.default_rng(0).random(shape).astype(np.float32)
    array[:1] = np.nan
    encoded = orjson.dumps(dump_parts(split_rows(array.T.copy().T)))
    assert encoded == orjson.dumps(array, option=orjson.OPT_SERIALIZE_NUMPY)


def test_other_threads_run_while_a_long_list_is_encoded() -> None:
    """orjson holds the GIL for a whole call."""
    turns, over = [0], threading.Event()

    def count() -> None:
        while not over.is_set():
            turns[0] += 1

    seen = list[int]()

    def parts() -> Iterator[list[Any]]:
        for part in split_items(range(200_000)):
            seen.append(turns[0])
            yield part

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    other = threading.Thread(target=count)
    other.start()
    try:
        for _ in range(50):  # where cores are busy the other thread may miss a whole list
            dump_parts(parts())
            if len(set(seen)) > 2:
                break
    finally:
        over.set()
        other.join()
        sys.setswitchinterval(interval)
    assert len(set(seen)) > 2


def test_a_response_that_would_be_too_large_is_refused_with_the_remedy() -> None:
    require_response_bytes(1000, 1000, "/targets", "Score fewer `targets`.")
    with pytest.raises(Problem) as caught:
        require_response_bytes(1001, 1000, "/targets", "Score fewer `targets`.")
    assert caught.value.status == 422
    assert [(fault.pointer, fault.code) for fault in caught.value.faults] == [
        ("/targets", "too_large")
    ]
    assert "1001 bytes; at most 1000 (BASIN_MAX_RESPONSE_BYTES)" in caught.value.detail
    assert caught.value.detail.endswith("Score fewer `targets`.")
