"""Good requests of every route and model of a server, from the examples that it offers itself."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass
from typing import Any

import httpx

from service.media_types import JSON

GRAPH = "fuzz-{}"  # id of the stored graph of a model


@dataclass(frozen=True)
class Base:
    """A request that the server answers. Texts of `path` in braces stay to be filled."""

    method: str
    path: str
    body: dict[str, Any]


def list_bases(client: httpx.Client, document: dict[str, Any]) -> list[Base]:
    """Return the examples of `document`, and the other forms of their bodies."""
    bases = list[Base]()
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            content = operation.get("requestBody", {}).get("content", {}).get(JSON, {})
            for name, example in content.get("examples", {}).items():
                target = path
                if path.startswith("/graphs/"):
                    target = path.replace("{id}", GRAPH.format(name))
                bases.append(Base(method.upper(), target, example["value"]))
    listed = client.get("/memories").json()["memories"]
    memories = [memory for memory in listed if memory["id"] != "example"]
    more = [each for base in bases for each in _other_forms(client, base)]
    for memory in memories:
        sample = {"memory": memory["id"], "beta": [1, 20], "num_samples": 4, "steps": 50}
        more.append(Base("POST", "/sample", sample))
        name = memory["id"]
        more.append(Base("POST", f"/v2/models/{name}/infer", {"inputs": [], "parameters": {}}))
        for base in bases:
            if base.path == "/complete" and memory["shape"][:1] == [_find_size(client, base)]:
                body = {k: v for k, v in base.body.items() if k != "model"} | {"memory": name}
                more.append(Base("POST", "/complete", body))
    more.append(Base("POST", "/sample", {"memory": {"sequences": ["ACD-", "AC-E"]}, "steps": 50}))
    return bases + more + [_to_protocol(client, base) for base in bases if "model" in base.body]


def _other_forms(client: httpx.Client, base: Base) -> list[Base]:
    """Arrays in place of rows, a stored graph in place of one in the body, graphs for SMILES."""
    body = copy.deepcopy(base.body)
    if base.path == "/anomaly/score" and "nodes" in body:
        graph_id = GRAPH.format(body["model"])
        stored = {"graph_id": graph_id, "targets": [body["nodes"][0]["id"]]}
        return [
            Base(base.method, base.path, _to_arrays(client, body)),
            Base(base.method, base.path, stored | {"neighborhood": {"hops": 2}}),
            Base("PUT", f"/graphs/{graph_id}", _to_arrays(client, body)),
        ]
    if base.path == "/anomaly/score":
        graph_id, row = GRAPH.format(body["model"]), body["transactions"][0]
        label = {"labels": [{"id": row["id"], "fraud": True}]}
        return [
            Base("POST", base.path, {"graph_id": graph_id, "targets": [row["id"]]}),
            Base("POST", f"/graphs/{graph_id}/labels", label),
        ]
    if base.path == "/classify" and "smiles" in body:
        detail = client.get(f"/models/{body['model']}").json()
        graph = {"x": [[0] * len(detail["features"])] * 3, "edge_index": [[0, 1], [1, 2]]}
        if detail["edge_features"]:
            graph["edge_attr"] = [[0] * len(detail["edge_features"])] * 2
        return [Base(base.method, base.path, {"model": body["model"], "graphs": [graph]})]
    return []


def _find_size(client: httpx.Client, base: Base) -> int:
    """Return the pixels per side of the image of a completion."""
    return client.get(f"/models/{base.body['model']}").json()["size"]


def _to_arrays(client: httpx.Client, body: dict[str, Any]) -> dict[str, Any]:
    detail = client.get(f"/models/{body['model']}").json()
    nodes, edges = body["nodes"], body["edges"]
    place = {node["id"]: i for i, node in enumerate(nodes)}
    names = [feature["name"] for feature in detail["features"]]
    graph: dict[str, Any] = {
        "x": [[node[name] for name in names] for node in nodes],
        "edge_index": [[place[edge[end]] for edge in edges] for end in ("source", "target")],
    }
    if "type" in edges[0]:
        graph["edge_type"] = [detail["relations"].index(edge["type"]) for edge in edges]
    if detail["edge_features"]:
        columns = [feature["name"] for feature in detail["edge_features"]]
        graph["edge_attr"] = [[edge[name] for name in columns] for edge in edges]
    return {"model": body["model"], "graph": graph}


def _to_protocol(client: httpx.Client, base: Base) -> Base:
    """The same by the Open Inference Protocol: its tensors where the body has them, else zeros."""
    name = base.body["model"]
    described = client.get(f"/v2/models/{name}").json()
    form = base.body
    for each in _other_forms(client, base):
        form = each.body.get("graph", each.body.get("graphs", [form])[0])
        break
    if "graphs" in base.body:
        form = base.body["graphs"][0]
    inputs = list[dict[str, Any]]()
    for tensor in described.get("inputs", ()):
        value = form.get(tensor["name"], base.body.get(tensor["name"]))
        shape = [3 if size == -1 else size for size in tensor["shape"]]
        if isinstance(value, list):
            rows = isinstance(value[0], list)
            shape = [len(value), len(value[0])] if rows else [len(value)]
            flat = [one for row in value for one in row] if rows else value
        else:
            empty = {"BYTES": "a", "BOOL": False}.get(tensor["datatype"], 0)
            flat = [empty] * min(math.prod(shape), 4000)
        if tensor["datatype"].startswith("FP"):
            flat = [float(one) for one in flat]
        inputs.append({"name": tensor["name"], "shape": shape, "datatype": tensor["datatype"]})
        inputs[-1]["data"] = flat
    parameters = {"steps": 2, "beta_scale": 1.0, "step_size": 0.1, "noise": 0.0, "seed": 0}
    return Base("POST", f"/v2/models/{name}/infer", {"inputs": inputs, "parameters": parameters})
