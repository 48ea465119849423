"""Examples of the OpenAPI document: requests that this server answers as they stand.

Those of stored graphs, memories and jobs follow each other: what one stores under the id `example`
the next ones change, read and delete.
"""

from __future__ import annotations

from typing import Any

from models.interpret.prototypes import list_galleries
from service.context import AppContext
from service.endpoints.models.examples import make_example
from service.media_types import JSON
from service.registry.handles import Classifier, Completer, Model, Scorer

_ID = "example"
_MEMORY = {"patterns": [[1, 0, 0, 1], [0, 1, 1, 0], [1, 1, 0, 0]]}


def add_examples(document: dict[str, Any], context: AppContext) -> None:
    """Set the examples of bodies and of parameters, of the models that are served now, in place of
    those that the document has."""
    for operations in document["paths"].values():
        for operation in operations.values():
            operation.get("requestBody", {}).get("content", {}).get(JSON, {}).pop("examples", None)
            for parameter in operation.get("parameters", ()):
                if parameter["in"] == "path":
                    parameter.pop("example", None)
    models = context.registry.list_models()  # none while they are loaded
    defaults = dict[str, str]()
    for model in models:
        examples = _examples_of(document, "post", model.route)
        examples[model.name] = {"value": make_example(model)}
        defaults.setdefault(model.route, model.name)
    settings = context.settings
    for route, name in (
        (Scorer.route, settings.default_anomaly_model),
        (Classifier.route, settings.default_classify_model),
        (Completer.route, settings.default_completion_model),
        ("/images/classify", settings.default_picture_model),
        ("/images/answer", settings.default_answer_model),
    ):
        examples = _examples_of(document, "post", route)
        if name in examples:  # shown first
            defaults[route] = name
            ordered = {name: examples.pop(name)} | examples
            examples.clear()
            examples.update(ordered)
    _add_graphs(document, [model for model in models if isinstance(model, Scorer)])
    _examples_of(document, "put", "/memories/{id}")["vectors"] = {"value": _MEMORY}
    sample = {"memory": _MEMORY, "beta": [1, 20], "num_samples": 5, "steps": 200}
    _examples_of(document, "post", "/sample")["vectors"] = {"value": sample}
    _add_open_inference(document, models, defaults)
    _set_parameter(document, "id", _ID)
    shown = (model.name for model in models if "memories" in list_galleries(model.network))
    if (name := next(shown, None)) is not None:
        _set_parameter(document, "name", name, "/models/{name}/memories")


def _add_graphs(document: dict[str, Any], scorers: list[Scorer]) -> None:
    """A graph of nodes and edges, and one of transactions, each changed as it was stored."""
    for model in scorers:
        example = make_example(model)
        stored = _examples_of(document, "put", "/graphs/{id}")
        if model.recipe is not None:
            stored[model.name] = {"value": {"model": model.name}}
            rows = {"transactions": example["transactions"]}
            added = _examples_of(document, "post", "/graphs/{id}/transactions")
            added[model.name] = {"value": rows}
            continue
        nodes, edges = example["nodes"], example["edges"]
        graph = {"model": model.name, "nodes": nodes, "edges": edges}
        change: dict[str, Any] = {}
        if model.network.label_trees is not None:
            graph["labels"] = [{"node_id": nodes[0]["id"], "label": 1}]
            change["labels"] = [{"node_id": nodes[0]["id"], "label": None}]
            known = {"labels": [{"id": nodes[1]["id"], "label": 0}]}
            labels = _examples_of(document, "post", "/graphs/{id}/labels")
            labels[model.name] = {"value": known}
        stored[model.name] = {"value": graph}
        new = nodes[0] | {"id": "new"}
        edge = edges[0] | {"source": "new", "target": nodes[1]["id"]}
        for method, path, body in (
            ("post", "/graphs/{id}/nodes", {"nodes": [new]}),
            ("post", "/graphs/{id}/edges", {"edges": [edge | {"source": nodes[2]["id"]}]}),
            ("patch", "/graphs/{id}", {"nodes": [new], "edges": [edge], **change}),
        ):
            _examples_of(document, method, path)[model.name] = {"value": body}


def _add_open_inference(
    document: dict[str, Any], models: list[Model[Any]], defaults: dict[str, str]
) -> None:
    if not models:
        return
    name = defaults.get(Classifier.route, models[0].name)
    model = next(each for each in models if each.name == name)
    _set_parameter(document, "name", name)
    _set_parameter(document, "version", model.manifest.version)
    if isinstance(model, Classifier) and model.reads_smiles:
        smiles = make_example(model)["smiles"]
        body = {
            "inputs": [
                {"name": "smiles", "shape": [len(smiles)], "datatype": "BYTES", "data": smiles}
            ]
        }
        for path in ("/v2/models/{name}/infer", "/v2/models/{name}/versions/{version}/infer"):
            _examples_of(document, "post", path)[name] = {"value": body}


def _examples_of(document: dict[str, Any], method: str, path: str) -> dict[str, Any]:
    content = document["paths"][path][method]["requestBody"]["content"][JSON]
    return content.setdefault("examples", {})


def _set_parameter(document: dict[str, Any], name: str, value: str, of: str = "") -> None:
    """Set the example of a parameter of all paths, or of one."""
    for path, operations in document["paths"].items():
        if of not in ("", path):
            continue
        for operation in operations.values():
            for parameter in operation.get("parameters", ()):
                if (parameter["in"], parameter["name"]) == ("path", name):
                    parameter["example"] = value
