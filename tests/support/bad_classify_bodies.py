"""Bodies that POST /classify refuses: (body, code, pointer)."""

from __future__ import annotations

import numpy as np

from tests.support.bad_score_bodies import SECRET

ATOM = [3.0, 1.0, 2.0, 3.0, 0.0, 2.0, 0.0, 0.0, -0.1, 0.2, 2.5, 0.0]
BOND = [0.0, 0.0, 0.0, 0.0]


def shape(**changes):
    """A good graph for `et-shape`, changed."""
    return {"x": [[0, 0.5], [2, 1.5], [1, -1.0]], "edge_index": [[0, 1], [1, 2]]} | changes


def shapes(**changes):
    return {"graphs": [shape(), shape(**changes)], "model": "et-shape"}


def molecule(**changes):
    """A good graph for `cdat-mol`, changed."""
    good = {"x": [ATOM] * 3, "edge_index": [[0, 1], [1, 2]], "edge_attr": [BOND] * 2}
    return {"graphs": [good | changes]}


SMILES = {"smiles": ["CCO"]}
BAD_REQUESTS = {
    "nothing": ({}, "one_of", ""),
    "both": (SMILES | shapes(), "one_of", ""),
    "no object": ([1], "wrong_type", ""),
    "huge number": ('{"smiles": 1e999}', "not_finite", ""),
    "smiles is a number": ({"smiles": 7}, "wrong_type", "/smiles"),
    "smiles is an object": ({"smiles": {"a": SECRET}}, "wrong_type", "/smiles"),
    "one of them is a number": ({"smiles": ["CCO", 7]}, "wrong_type", "/smiles/1"),
    "one of them is null": ({"smiles": ["CCO", None]}, "wrong_type", "/smiles/1"),
    "one of them is a list": ({"smiles": [["CCO"]]}, "wrong_type", "/smiles/0"),
    "many are numbers": ({"smiles": [7] * 999}, "wrong_type", "/smiles/0"),
    "no smiles": ({"smiles": []}, "empty", "/smiles"),
    "too many smiles": ({"smiles": ["C"] * 1025}, "too_many", "/smiles"),
    "smiles for a model of graphs": (SMILES | {"model": "et-shape"}, "not_read", "/smiles"),
    "unknown field": (SMILES | {"colour": SECRET}, "unknown_field", "/colour"),
    "unknown field of odd name": (SMILES | {f"/{SECRET}~" * 99: 1}, "unknown_field", ""),
    "targets": (SMILES | {"targets": [0]}, "unknown_field", "/targets"),
    "many unknown fields": (SMILES | {f"f{i}": 0 for i in range(9999)}, "unknown_field", "/f0"),
    "unknown knob": (
        SMILES | {"dynamics": {"momentum": {}}},
        "unknown_field",
        "/dynamics/momentum",
    ),
    "steps over the cap": (SMILES | {"dynamics": {"steps": 65}}, "out_of_range", "/dynamics/steps"),
    "steps as text": (SMILES | {"dynamics": {"steps": SECRET}}, "wrong_type", "/dynamics/steps"),
    "both betas": (SMILES | {"dynamics": {"beta": 1, "beta_scale": 1}}, "conflict", "/dynamics"),
    "no temperature": (SMILES | {"dynamics": {"beta": 0}}, "out_of_range", "/dynamics/beta"),
    "include what is not": (SMILES | {"include": [SECRET]}, "not_allowed", "/include/0"),
    "model is a number": (SMILES | {"model": 7}, "wrong_type", "/model"),
    "model of a long name": (SMILES | {"model": SECRET * 99}, "too_long", "/model"),
}

BAD_GRAPHS = {
    "graphs is a graph": ({"graphs": shape(), "model": "et-shape"}, "wrong_type", "/graphs"),
    "graphs is text": ({"graphs": SECRET, "model": "et-shape"}, "wrong_type", "/graphs"),
    "no graphs": ({"graphs": [], "model": "et-shape"}, "empty", "/graphs"),
    "too many graphs": ({"graphs": [shape()] * 1025, "model": "et-shape"}, "too_many", "/graphs"),
    "graph is a list": ({"graphs": [[SECRET]], "model": "et-shape"}, "wrong_type", "/graphs/0"),
    "unknown field": (shapes(weights=[SECRET]), "unknown_field", "/graphs/1/weights"),
    "edge types": (shapes(edge_type=[0, 0]), "unknown_field", "/graphs/1/edge_type"),
    "edge features of none": (shapes(edge_attr=[[1], [2]]), "not_read", "/graphs/1/edge_attr"),
    "no x": (
        {"graphs": [{"edge_index": [[], []]}], "model": "et-shape"},
        "wrong_type",
        "/graphs/0/x",
    ),
    "empty": (shapes(x=[], edge_index=[[], []]), "empty", "/graphs/1/x"),
    "flat x": (shapes(x=[1, 2]), "wrong_type", "/graphs/1/x/0"),
    "wrong feature count": (shapes(x=[[1.0]] * 3), "feature_count", "/graphs/1/x"),
    "ragged": (shapes(x=[[0, 1], [0], [1, 1]]), "feature_count", "/graphs/1/x/1"),
    "text in x": (shapes(x=[[0, 1], [0, SECRET], [0, 1]]), "wrong_type", "/graphs/1/x/1/1"),
    "true in x": (shapes(x=[[0, 1], [0, 1], [0, True]]), "wrong_type", "/graphs/1/x/2/1"),
    "null in x": (shapes(x=[[0, None], [0, 1], [0, 1]]), "wrong_type", "/graphs/1/x/0/1"),
    "beyond float32": (shapes(x=[[0, 1e39], [0, 1], [0, 1]]), "not_finite", "/graphs/1/x/0/1"),
    "category by name": (shapes(x=[["a", 1], [0, 1], [0, 1]]), "wrong_type", "/graphs/1/x/0/0"),
    "category beyond": (
        shapes(x=[[0, 1], [3, 1], [0, 1]]),
        "unknown_category",
        "/graphs/1/x/1/0",
    ),
    "negative category": (
        shapes(x=[[0, 1], [1, 1], [-1, 1]]),
        "unknown_category",
        "/graphs/1/x/2/0",
    ),
    "half a category": (
        shapes(x=[[0.5, 1], [1, 1], [0, 1]]),
        "unknown_category",
        "/graphs/1/x/0/0",
    ),
    "no edge_index": ({"graphs": [{"x": [[0, 1]]}], "model": "et-shape"}, "wrong_type", None),
    "edge_index transposed": (
        shapes(edge_index=[[0, 1], [1, 2], [2, 0]]),
        "wrong_shape",
        "/graphs/1/edge_index",
    ),
    "edge_index ragged": (
        shapes(edge_index=[[0, 1], [1]]),
        "wrong_shape",
        "/graphs/1/edge_index",
    ),
    "edge_index too large": (
        shapes(edge_index=[[0, 1], [1, 3]]),
        "out_of_range",
        "/graphs/1/edge_index/1/1",
    ),
    "edge_index negative": (
        shapes(edge_index=[[0, -1], [1, 2]]),
        "out_of_range",
        "/graphs/1/edge_index/0/1",
    ),
    "edge_index of 71 bits": (
        shapes(edge_index=[[0, 2**70], [1, 2]]),
        "wrong_type",
        "/graphs/1/edge_index/0/1",
    ),
    "edge_index as float": (
        shapes(edge_index=[[0, 1.0], [1, 2]]),
        "wrong_type",
        "/graphs/1/edge_index/0/1",
    ),
    "edge_attr missing": (molecule(edge_attr=None), "missing", "/graphs/0/edge_attr"),
    "edge_attr of too few edges": (
        molecule(edge_attr=[BOND]),
        "wrong_shape",
        "/graphs/0/edge_attr",
    ),
    "edge_attr of no edges": (
        molecule(edge_index=[[], []]),
        "wrong_shape",
        "/graphs/0/edge_attr",
    ),
    "edge_attr of other width": (
        molecule(edge_attr=[BOND[:3]] * 2),
        "feature_count",
        "/graphs/0/edge_attr",
    ),
    "edge_attr ragged": (
        molecule(edge_attr=[BOND, BOND[:3]]),
        "feature_count",
        "/graphs/0/edge_attr/1",
    ),
    "edge_attr of no edges is a number": (
        molecule(edge_index=[[], []], edge_attr=7),
        "wrong_type",
        "/graphs/0/edge_attr",
    ),
    "edge_attr is text": (molecule(edge_attr=SECRET), "wrong_type", "/graphs/0/edge_attr"),
    "unknown bond": (
        molecule(edge_attr=[BOND, [5.0, 0, 0, 0]]),
        "unknown_category",
        "/graphs/0/edge_attr/1/0",
    ),
    "unknown element": (
        molecule(x=[ATOM, [118.0, *ATOM[1:]], ATOM]),
        "unknown_category",
        "/graphs/0/x/1/0",
    ),
}

X = np.array([[0, 0.5], [2, 1.5], [1, -1.0]], np.float32)
EDGES, PTR = np.array([[0, 1], [1, 0]]), np.array([0, 2, 3])
GOOD = {"x": X, "edge_index": EDGES, "ptr": PTR}
BAD_TENSORS = {
    "no x": ({"edge_index": EDGES}, "missing", "/x"),
    "no edges": ({"x": X}, "missing", "/edge_index"),
    "nan": (GOOD | {"x": np.where(X > 1, np.nan, X).astype("f4")}, "not_finite", "/x/1/0"),
    "x of three dimensions": (GOOD | {"x": X[None]}, "wrong_shape", "/x"),
    "three columns": (GOOD | {"x": np.ones((3, 3), "f4")}, "feature_count", "/x"),
    "category beyond": (GOOD | {"x": X + np.float32(1)}, "unknown_category", "/x/1/0"),
    "category of 64 bits": (
        GOOD | {"x": np.full((3, 2), 2**62)},
        "unknown_category",
        "/x/0/0",
    ),
    "no nodes": ({"x": X[:0], "edge_index": EDGES[:, :0].copy()}, "empty", "/x"),
    "float edges": (GOOD | {"edge_index": EDGES.astype("f4")}, "wrong_dtype", "/edge_index"),
    "edges of three rows": (
        GOOD | {"edge_index": np.zeros((3, 2), "i8")},
        "wrong_shape",
        "/edge_index",
    ),
    "edges out of range": (GOOD | {"edge_index": EDGES + 2}, "out_of_range", "/edge_index/0/1"),
    "edges between graphs": (
        GOOD | {"edge_index": np.array([[0, 1], [1, 2]])},
        "across_graphs",
        "/edge_index/1/1",
    ),
    "edge features of none": (
        GOOD | {"edge_attr": np.zeros((2, 1), "f4")},
        "not_read",
        "/edge_attr",
    ),
    "ptr of floats": (GOOD | {"ptr": PTR.astype("f4")}, "wrong_dtype", "/ptr"),
    "ptr of two dimensions": (GOOD | {"ptr": PTR[None]}, "wrong_shape", "/ptr"),
    "ptr of nothing": (GOOD | {"ptr": PTR[:0]}, "wrong_shape", "/ptr"),
    "ptr of one": (GOOD | {"ptr": PTR[:1]}, "wrong_shape", "/ptr"),
    "ptr from one on": (GOOD | {"ptr": np.array([1, 3])}, "wrong_shape", "/ptr"),
    "ptr short": (GOOD | {"ptr": np.array([0, 2])}, "wrong_shape", "/ptr"),
    "ptr beyond": (GOOD | {"ptr": np.array([0, 2, 4])}, "wrong_shape", "/ptr"),
    "ptr backwards": (GOOD | {"ptr": np.array([0, 3, 2, 3])}, "out_of_range", "/ptr/2"),
    "ptr standing still": (GOOD | {"ptr": np.array([0, 2, 2, 3])}, "out_of_range", "/ptr/2"),
    "ptr negative": (GOOD | {"ptr": np.array([0, -5, 3])}, "out_of_range", "/ptr/1"),
    "unknown tensor": (GOOD | {"targets": PTR}, "unknown_field", "/targets"),
}
