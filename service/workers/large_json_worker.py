"""The process that parses large JSON bodies in turn, see `service.workers.large_json`."""

from __future__ import annotations

import gc
import os
import signal
import sys
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import orjson
import safetensors.numpy

from service.errors import Problem, make_problem
from service.validation.json_body import parse_json_object
from service.validation.json_graph import parse_json_graph
from service.workers.large_json import LARGE_BODY_BYTES, LENGTH_BYTES

_GRAPH_FIELDS = ("graph", "nodes", "edges", "targets", "labels", "transactions")
_MAX_FIELDS = 64
_MAX_REST_BYTES = 1 << 16  # bytes of JSON


@dataclass(frozen=True)
class _Schema:
    features: tuple[str, ...]
    relations: tuple[str, ...]
    edge_features: tuple[str, ...]


@dataclass(frozen=True)
class _Limits:
    max_nodes: int
    max_edges: int


def main() -> None:
    gc.disable()  # while a body is parsed: looking for garbage takes longer than parsing
    os.nice(5)  # large bodies wait for small ones, not the reverse
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which ends this one
    source, sink = sys.stdin.buffer, sys.stdout.buffer
    while line := source.readline():
        rules = orjson.loads(line)
        size = rules["size"]
        answer = condense(source.read(size), rules, size <= LARGE_BODY_BYTES) or b""
        sink.write(len(answer).to_bytes(LENGTH_BYTES))
        sink.write(answer)
        sink.flush()
        del answer
        gc.collect()  # a refused body may be held by the traceback of its error


def condense(body: bytes, rules: dict[str, Any], may_decline: bool = False) -> bytes | None:
    """Convert the request in `body` to a safetensors file.

    Args:
        may_decline: return None for a request that is more than a graph; else it is refused.
    """
    arrays: dict[str, np.ndarray] = {}
    metadata = {}
    try:
        fields = parse_json_object(body, "invalid-json")
        # The server validates the fields; the first `_MAX_FIELDS` are enough to refuse too many.
        first = islice(fields.items(), _MAX_FIELDS)
        rest = {name: None if name in _GRAPH_FIELDS else value for name, value in first}
        text = orjson.dumps(rest)
        if len(text) > _MAX_REST_BYTES:
            if may_decline:
                return None
            rule = (
                f"The fields other than the graph have {len(text)} bytes; at most "
                f"{_MAX_REST_BYTES} are allowed."
            )
            raise make_problem("invalid-request", "", "too_long", rule)
        metadata["request"] = text.decode()
        for name, what in (("graph_id", "`targets`"), ("transactions", "of them")):
            if fields.get(name) is not None:
                if may_decline:
                    return None
                detail = f"With `{name}` a JSON body may have at most 4 MiB. Send fewer {what}."
                raise Problem("body-too-large", detail)
        name = fields.get("model") or rules["default"]
        if type(name) is str and name in rules["models"]:
            reader = _Schema(*map(tuple, rules["models"][name]))
            limits = _Limits(rules["max_nodes"], rules["max_edges"])
            arrays = _arrays(fields, reader, limits)
    except Problem as problem:
        metadata["problem"] = problem.dumps()
    return safetensors.numpy.save(arrays, metadata=metadata)


def _arrays(fields: dict[str, Any], reader: _Schema, limits: _Limits) -> dict[str, np.ndarray]:
    named = parse_json_graph(fields, reader, limits)
    ids = None if named.node_ids is None else orjson.dumps(named.node_ids)
    found = {
        "node_ids": None if ids is None else np.frombuffer(ids, np.uint8),
        "x": named.graph.x,
        "edge_index": named.graph.edge_index,
        "edge_attr": named.graph.edge_attr if reader.edge_features else None,
        "edge_type": named.graph.edge_type,
        "targets": named.targets,
        "labels": named.graph.labels,
    }
    return {name: np.ascontiguousarray(a) for name, a in found.items() if a is not None}


if __name__ == "__main__":
    main()
