"""Whatever is sent, the server answers; while it is sent, others are answered as ever."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from hypothesis import strategies as st

from service.endpoints.common.schemas import ProblemDocument

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=12,
)


def changed_somewhere(data: Any, start: Any) -> bytes:
    """A good body of `start` with one value, anywhere in it, replaced by some JSON."""
    body = json.loads(data.draw(start))
    where = body
    while True:
        keys = list(where) if isinstance(where, dict) else list(range(len(where)))
        key = data.draw(st.sampled_from([*keys, "dynamics"] if where is body else keys))
        inner = where.get(key) if isinstance(where, dict) else where[key]
        if not isinstance(inner, dict | list) or not inner or data.draw(st.booleans()):
            break
        where = inner
    where[key] = data.draw(JSON)
    return json.dumps(body).encode()


def judge(response: Any, *statuses: int) -> None:
    """200, or a problem document of one of `statuses`."""
    if response.status_code != 200:
        assert response.status_code in statuses, response.text
        ProblemDocument.model_validate_json(response.content, strict=True)
        assert len(response.json()["errors"]) <= 20


def unharmed(server: Any, post: Any, good: bytes, bad: list[bytes]) -> None:
    """The good body has the same results while the bad ones are posted and refused."""
    with server.client() as client, ThreadPoolExecutor(8) as pool:
        expected = post(client, good).json()["results"]
        noise = [pool.submit(post, client, body) for body in bad]
        for _ in range(10):
            assert post(client, good).json()["results"] == expected
        assert all(400 <= future.result().status_code < 500 for future in noise)
