"""JSON bodies that must be refused, by what is wrong with them."""

from __future__ import annotations

import json

SECRET = "sEcReT-7f3a"
ROW = [1.0, 2.0, 3.0, 4.0, 5.0]


def graph(**changes):
    """A good graph of three nodes, changed."""
    return {"x": [ROW] * 3, "edge_index": [[0, 1], [1, 2]]} | changes


def arrays(**changes):
    return {"graph": graph(**changes)}


def rows(**changes):
    features = dict(zip(("age", "degree", "rate", "volume", "x"), ROW, strict=True))
    nodes = [{"id": name, **features} for name in "abc"]
    return {"nodes": nodes, "edges": [{"source": "a", "target": "b"}]} | changes


def edge_arrays(**changes):
    """A good body for `et-edges`, changed."""
    attr = {"edge_attr": [[1.0, 2.0]] * 2, "edge_type": [0, 1]}
    return arrays(**attr | changes) | {"model": "et-edges"}


def edge_rows(**changes):
    edge = {"source": "a", "target": "b", "type": "pays", "amount": 1.0, "hour": 2.0}
    return rows(edges=[edge | changes]) | {"model": "et-edges"}


def text(value) -> bytes:
    """A body: JSON, unless it is text or bytes already."""
    if isinstance(value, bytes):
        return value
    return value.encode() if isinstance(value, str) else json.dumps(value).encode()


def number(literal: str) -> str:
    """A good body with one number replaced."""
    return json.dumps(arrays()).replace("3.0", literal, 1)


DEEP = "[" * 100_000
BAD_JSON = {
    "nan": (number("NaN"), 400),
    "infinity": (number("-Infinity"), 400),
    "deep": (DEEP, 400),
    "deep and closed": (DEEP + "]" * 100_000, 400),
    "deep in x": ('{"graph": {"x": ' + DEEP, 400),
    "deep objects": ('{"a":' * 100_000, 400),
    "truncated": (json.dumps(arrays())[:-9], 400),
    "empty": ("", 400),
    "not utf-8": (b'{"model": "\xff"}', 400),
    "lone surrogate": ('{"model": "\\ud800"}', 400),
    "two documents": ("{}{}", 400),
    "words": (f"hello {SECRET}", 400),
}


# name: body, code, pointer
BAD_ENVELOPE = {
    "huge number": (number("1e999"), "not_finite", ""),
    "huge negative number": (number("-1e999"), "not_finite", ""),
    "no object": ([1], "wrong_type", ""),
    "unknown field": (arrays() | {"colour": SECRET}, "unknown_field", "/colour"),
    "unknown field of odd name": (arrays() | {f"/{SECRET}~" * 99: 1}, "unknown_field", ""),
    "unknown knob": (
        arrays() | {"dynamics": {"momentum": {}}},
        "unknown_field",
        "/dynamics/momentum",
    ),
    "unknown knob of resonance": (
        arrays() | {"dynamics": {"resonance": {"colour": SECRET}}},
        "unknown_field",
        "/dynamics/resonance/colour",
    ),
    "resonance as text": (
        arrays() | {"dynamics": {"resonance": SECRET}},
        "wrong_type",
        "/dynamics/resonance",
    ),
    "resonance beyond bounds": (
        arrays() | {"dynamics": {"resonance": {"strength": 21}}},
        "out_of_range",
        "/dynamics/resonance/strength",
    ),
    "no cosine": (
        arrays() | {"dynamics": {"resonance": {"vigilance": -1.01}}},
        "out_of_range",
        "/dynamics/resonance/vigilance",
    ),
    "gate that there is not": (
        arrays() | {"dynamics": {"resonance": {"gate": SECRET}}},
        "not_allowed",
        "/dynamics/resonance/gate",
    ),
    "feedback that need not settle": (
        arrays() | {"dynamics": {"resonance": {"sharpness": 8, "feedback": 0.5, "unroll": 2}}},
        "conflict",
        "/dynamics/resonance/feedback",
    ),
    "many unknown fields": (arrays() | {f"f{i}": 0 for i in range(9999)}, "unknown_field", "/f0"),
    "steps beyond the cap": (
        arrays() | {"dynamics": {"steps": 65}},
        "out_of_range",
        "/dynamics/steps",
    ),
    "negative steps": (arrays() | {"dynamics": {"steps": -1}}, "out_of_range", "/dynamics/steps"),
    "steps too long to be one": (
        '{"dynamics": {"steps": 1%s}}' % ("0" * 300),
        "wrong_type",
        "/dynamics/steps",
    ),
    "half a step": (arrays() | {"dynamics": {"steps": 1.5}}, "wrong_type", "/dynamics/steps"),
    "steps as text": (arrays() | {"dynamics": {"steps": SECRET}}, "wrong_type", "/dynamics/steps"),
    "true steps": (arrays() | {"dynamics": {"steps": True}}, "wrong_type", "/dynamics/steps"),
    "no temperature": (arrays() | {"dynamics": {"beta": 0}}, "out_of_range", "/dynamics/beta"),
    "both betas": (
        arrays() | {"dynamics": {"beta": 1, "beta_scale": 1}},
        "conflict",
        "/dynamics",
    ),
    "backwards": (
        arrays() | {"dynamics": {"step_size": -0.1}},
        "out_of_range",
        "/dynamics/step_size",
    ),
    "tolerance": (
        arrays() | {"dynamics": {"tolerance": -1}},
        "out_of_range",
        "/dynamics/tolerance",
    ),
    "solver": (arrays() | {"dynamics": {"solver": SECRET}}, "not_allowed", "/dynamics/solver"),
    "momentum of noise": (
        arrays() | {"dynamics": {"solver": "nesterov", "noise": 0.1}},
        "conflict",
        "/dynamics",
    ),
    "noise": (arrays() | {"dynamics": {"noise": 1e9}}, "out_of_range", "/dynamics/noise"),
    "seed": (arrays() | {"dynamics": {"seed": 2**32}}, "out_of_range", "/dynamics/seed"),
    "dynamics is a list": (arrays() | {"dynamics": []}, "wrong_type", "/dynamics"),
    "include what is not": (arrays() | {"include": [SECRET] * 999}, "not_allowed", "/include/0"),
    "model is a number": (arrays() | {"model": 7}, "wrong_type", "/model"),
    "model of a long name": (arrays() | {"model": SECRET * 99}, "too_long", "/model"),
}


BAD_GRAPHS = {
    "nothing": ({}, "one_of", ""),
    "both shapes": (arrays() | rows(), "one_of", ""),
    "graph is a list": ({"graph": [SECRET]}, "wrong_type", "/graph"),
    "unknown field": (arrays(weights=[SECRET]), "unknown_field", "/graph/weights"),
    "edge features": (arrays(edge_attr=[[1], [2]]), "not_read", "/graph/edge_attr"),
    "edge types of one relation": (arrays(edge_type=[0, 0]), "not_read", "/graph/edge_type"),
    "no x": ({"graph": {"edge_index": [[], []]}}, "wrong_type", "/graph/x"),
    "empty": (arrays(x=[], edge_index=[[], []]), "empty", "/graph/x"),
    "flat x": (arrays(x=ROW), "wrong_type", "/graph/x/0"),
    "deep x": (arrays(x=[[[1]] * 5] * 3), "wrong_type", "/graph/x/0/0"),
    "wrong feature count": (arrays(x=[ROW[:4]] * 3), "feature_count", "/graph/x"),
    "no features": (arrays(x=[[]] * 3), "feature_count", "/graph/x"),
    "ragged": (arrays(x=[ROW, ROW[:4], ROW]), "feature_count", "/graph/x/1"),
    "many ragged": (arrays(x=[ROW] + [ROW[:4]] * 9999), "feature_count", "/graph/x/1"),
    "text in x": (arrays(x=[ROW, [1, 2, SECRET, 4, 5], ROW]), "wrong_type", "/graph/x/1/2"),
    "digits in x": (arrays(x=[ROW, [1, 2, "3", 4, 5], ROW]), "wrong_type", "/graph/x/1/2"),
    "true in x": (arrays(x=[ROW, ROW, [1, 2, 3, 4, True]]), "wrong_type", "/graph/x/2/4"),
    "null in x": (arrays(x=[[None, 2, 3, 4, 5], ROW, ROW]), "wrong_type", "/graph/x/0/0"),
    "x beyond float32": (arrays(x=[ROW, [1e39, 2, 3, 4, 5], ROW]), "not_finite", "/graph/x/1/0"),
    "no edge_index": ({"graph": {"x": [ROW]}}, "wrong_type", "/graph/edge_index"),
    "edge_index transposed": (
        arrays(edge_index=[[0, 1], [1, 2], [2, 0]]),
        "wrong_shape",
        "/graph/edge_index",
    ),
    "edge_index flat": (arrays(edge_index=[0, 1]), "wrong_shape", "/graph/edge_index"),
    "edge_index empty": (arrays(edge_index=[]), "wrong_shape", "/graph/edge_index"),
    "edge_index ragged": (arrays(edge_index=[[0, 1], [1]]), "wrong_shape", "/graph/edge_index"),
    "edge_index too large": (
        arrays(edge_index=[[0, 1], [1, 3]]),
        "out_of_range",
        "/graph/edge_index/1/1",
    ),
    "edge_index negative": (
        arrays(edge_index=[[0, -1], [1, 2]]),
        "out_of_range",
        "/graph/edge_index/0/1",
    ),
    "edge_index of 64 bits": (
        arrays(edge_index=[[0, 2**63], [1, 2]]),
        "out_of_range",
        "/graph/edge_index/0/1",
    ),
    "edge_index of 71 bits": (
        arrays(edge_index=[[0, 2**70], [1, 2]]),
        "wrong_type",
        "/graph/edge_index/0/1",
    ),
    "edge_index between nodes": (
        arrays(edge_index=[[0, 1.5], [1, 2]]),
        "wrong_type",
        "/graph/edge_index/0/1",
    ),
    "edge_index as float": (
        arrays(edge_index=[[0, 1.0], [1, 2]]),
        "wrong_type",
        "/graph/edge_index/0/1",
    ),
    "edge_index true": (
        arrays(edge_index=[[0, True], [1, 2]]),
        "wrong_type",
        "/graph/edge_index/0/1",
    ),
    "too few ids": (arrays(node_ids=["a"]), "wrong_shape", "/graph/node_ids"),
    "equal ids": (arrays(node_ids=["a", "b", "a"]), "duplicate", "/graph/node_ids/0"),
    "null id": (arrays(node_ids=["a", None, "c"]), "wrong_type", "/graph/node_ids/1"),
    "long id": (arrays(node_ids=["a", SECRET * 99, "c"]), "too_long", "/graph/node_ids/1"),
    "no such target": (arrays() | {"targets": [0, 3]}, "unknown_node", "/targets/1"),
    "negative target": (arrays() | {"targets": [-1]}, "unknown_node", "/targets/0"),
    "target twice": (arrays() | {"targets": [2, 0, 2]}, "duplicate", "/targets/2"),
    "no target": (arrays() | {"targets": []}, "empty", "/targets"),
    "targets is a number": (arrays() | {"targets": 0}, "wrong_type", "/targets"),
    "target by name": (arrays() | {"targets": [SECRET]}, "wrong_type", "/targets/0"),
    "no such name": (
        arrays(node_ids=["a", "b", "c"]) | {"targets": ["a", SECRET]},
        "unknown_node",
        "/targets/1",
    ),
    "no relations": (arrays() | {"model": "cdat-small"}, "missing", "/graph/edge_type"),
    "no such relation": (
        arrays(edge_type=["pays", SECRET]) | {"model": "cdat-small"},
        "unknown_relation",
        "/graph/edge_type/1",
    ),
    "relation beyond": (
        arrays(edge_type=[0, 2]) | {"model": "cdat-small"},
        "unknown_relation",
        "/graph/edge_type/1",
    ),
    "relation true": (
        arrays(edge_type=[0, True]) | {"model": "cdat-small"},
        "wrong_type",
        "/graph/edge_type/1",
    ),
    "too few relations": (
        arrays(edge_type=[0]) | {"model": "cdat-small"},
        "wrong_shape",
        "/graph/edge_type",
    ),
    "nodes without edges": ({"nodes": rows()["nodes"]}, "wrong_type", "/edges"),
    "no nodes": (rows(nodes=[], edges=[]), "empty", "/nodes"),
    "node is a number": (rows(nodes=[1]), "wrong_type", "/nodes/0"),
    "feature missing": (rows(nodes=[{"id": "a", "age": 1}]), "missing", "/nodes/0/degree"),
    "feature unknown": (
        rows(nodes=[{**rows()["nodes"][0], "colour": SECRET}]),
        "unknown_field",
        "/nodes/0/colour",
    ),
    "feature is text": (
        rows(nodes=[{**rows()["nodes"][0], "rate": SECRET}]),
        "wrong_type",
        "/nodes/0/rate",
    ),
    "node without id": (rows(nodes=[{"x": ROW}]), "missing", "/nodes/0/id"),
    "short node": (rows(nodes=[{"id": 1, "x": ROW}, {"id": 2, "x": [1]}]), None, "/nodes/1/x"),
    "nodes of one id": (
        rows(nodes=[{"id": 1, "x": ROW}, {"id": 1, "x": ROW}], edges=[]),
        "duplicate",
        "/nodes/0/id",
    ),
    "edge to nowhere": (
        rows(edges=[{"source": "a", "target": SECRET}]),
        "unknown_node",
        "/edges/0/target",
    ),
    "edge to a list": (rows(edges=[{"source": ["a"], "target": "b"}]), None, "/edges/0/source"),
    "edge without target": (rows(edges=[{"source": "a"}]), "missing", "/edges/0/target"),
    "edge of a type": (
        rows(edges=[{"source": "a", "target": "b", "type": "pays"}]),
        "unknown_field",
        "/edges/0/type",
    ),
    "edge of no type": (rows() | {"model": "cdat-small"}, "missing", "/edges/0/type"),
    "names of edge features": (
        arrays(edge_feature_names=["amount"]),
        "not_read",
        "/graph/edge_feature_names",
    ),
    "edge_attr missing": (edge_arrays(edge_attr=None), "missing", "/graph/edge_attr"),
    "edge_attr is text": (edge_arrays(edge_attr=SECRET), "wrong_type", "/graph/edge_attr"),
    "edge_attr flat": (edge_arrays(edge_attr=[1, 2]), "wrong_type", "/graph/edge_attr/0"),
    "edge_attr of too few edges": (
        edge_arrays(edge_attr=[[1, 2]]),
        "wrong_shape",
        "/graph/edge_attr",
    ),
    "edge_attr of other width": (
        edge_arrays(edge_attr=[[1]] * 2),
        "feature_count",
        "/graph/edge_attr",
    ),
    "edge_attr ragged": (
        edge_arrays(edge_attr=[[1, 2], [1]]),
        "feature_count",
        "/graph/edge_attr/1",
    ),
    "text in edge_attr": (
        edge_arrays(edge_attr=[[1, 2], [1, SECRET]]),
        "wrong_type",
        "/graph/edge_attr/1/1",
    ),
    "null in edge_attr": (
        edge_arrays(edge_attr=[[None, 2], [1, 2]]),
        "wrong_type",
        "/graph/edge_attr/0/0",
    ),
    "edge_attr beyond float32": (
        edge_arrays(edge_attr=[[1, 2], [1e39, 2]]),
        "not_finite",
        "/graph/edge_attr/1/0",
    ),
    "edge_attr of no edges": (
        edge_arrays(edge_index=[[], []], edge_type=[]),
        "wrong_shape",
        "/graph/edge_attr",
    ),
    "unknown edge feature": (
        edge_arrays(edge_feature_names=["amount", SECRET]),
        "unknown_feature",
        "/graph/edge_feature_names/1",
    ),
    "edge feature not named": (
        edge_arrays(edge_feature_names=["hour"]),
        "missing",
        "/graph/edge_feature_names",
    ),
    "edge feature named twice": (
        edge_arrays(edge_feature_names=["hour", "amount", "hour"]),
        "duplicate",
        "/graph/edge_feature_names/0",
    ),
    "edge without a feature": (
        rows(edges=[{"source": "a", "target": "b", "type": "pays", "hour": 2}])
        | {"model": "et-edges"},
        "missing",
        "/edges/0/amount",
    ),
    "edge of an unknown feature": (edge_rows(colour=SECRET), "unknown_field", "/edges/0/colour"),
    "edge feature of none": (
        rows(edges=[{"source": "a", "target": "b", "amount": 1}]),
        "unknown_field",
        "/edges/0/amount",
    ),
    "edge feature is text": (edge_rows(hour=SECRET), "wrong_type", "/edges/0/hour"),
    "edge feature beyond float32": (edge_rows(amount=1e39), "not_finite", "/edges/0/amount"),
}
