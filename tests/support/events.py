"""Read a stream of alerts."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx


def read_events(response: httpx.Response) -> Iterator[tuple[str, dict[str, Any]]]:
    """Id and data of the alerts of a stream."""
    fields = dict[str, str]()
    for line in response.iter_lines():
        if line:
            name, _, value = line.partition(": ")
            fields[name] = value
        elif "data" in fields:
            assert fields["event"] == "alert"
            yield fields["id"], json.loads(fields["data"])
            fields = {}
        else:
            fields = {}
