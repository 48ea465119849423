"""Parse bodies of POST /classify."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from models.base import DynamicsParams
from models.inputs.graph import Graph
from models.inputs.molecules import Molecule, MoleculeError
from service.endpoints.classify.graph_list import TENSORS, graphs_of_json, graphs_of_tensors
from service.endpoints.classify.schemas import GraphsRequest, SmilesRequest, TensorClassifyRequest
from service.endpoints.common.envelope import read_envelope, require_supported_params
from service.endpoints.common.include import (
    EXPLANATION_BYTES,
    require_max_explained,
    require_response_size,
    require_supported_includes,
)
from service.errors import make_problem
from service.media_types import JSON
from service.registry.handles import Classifier
from service.registry.registry import Registry
from service.settings import Settings
from service.validation.arrays import pointer_builder, require_list, require_types, reraise_as
from service.validation.json_body import parse_json_object
from service.validation.safetensors_body import Tensors, parse_safetensors

_RESULT_BYTES, _LABEL_BYTES = 700, 90  # in a response: of a result, and of each label in it
_ATOM_BYTES = 700  # of a drawing
MAX_SVG_BYTES = 1 << 18
"""Maximum characters of a drawing."""
_MAX_EXPLAINED_NODES = 1000  # an explanation occludes each node once
_IN_JSON = SmilesRequest.model_fields | GraphsRequest.model_fields


@dataclass(frozen=True)
class Item:
    """One input: its graph, or code and detail of its error; `fields` are fields for its result."""

    graph: Graph | None
    error: tuple[str, str] | None = None
    fields: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class ClassifyInputs:
    """A parsed request: either `smiles`, which are not parsed yet, or `graphs`.

    `places` are the JSON pointers of the inputs.
    """

    model: Classifier
    smiles: list[str] | None
    graphs: list[Graph]
    places: list[str]
    params: DynamicsParams
    include: frozenset[str]

    def items(self, molecules: Sequence[Molecule | MoleculeError], longest: int) -> list[Item]:
        """Return the inputs, with the parsed `molecules` and the SMILES cut to `longest`
        characters."""
        if self.smiles is None:
            return [Item(graph) for graph in self.graphs]
        return [
            _item(text[:longest], molecule)
            for text, molecule in zip(self.smiles, molecules, strict=True)
        ]


def _item(text: str, molecule: Molecule | MoleculeError) -> Item:
    fields = {"input": text}
    if isinstance(molecule, MoleculeError):
        return Item(None, (molecule.code, str(molecule)), fields)
    return Item(molecule.graph, None, fields | {"canonical_smiles": molecule.smiles})


def parse_classify(
    body: bytes, media_type: str, registry: Registry, settings: Settings
) -> ClassifyInputs:
    """Parse a body of `POST /classify`.

    Raises:
        Problem: all errors of the first stage that fails: syntax, envelope, model, inputs.
    """
    tensors: Tensors | None = None
    if media_type == JSON:
        fields, known = parse_json_object(body, "invalid-json"), _IN_JSON
    else:
        tensors, metadata = parse_safetensors(body, TENSORS)
        fields = parse_json_object(metadata.get("request", "{}").encode(), "invalid-safetensors")
        known = TensorClassifyRequest.model_fields
    envelope = read_envelope(fields, known, settings)
    model = registry.get_of_kind(Classifier, envelope.model or settings.default_classify_model)
    require_supported_params(envelope.dynamics, model.network.config)
    require_supported_includes(model.network, envelope.include)
    smiles, graphs, places = None, [], []
    if tensors is not None:
        graphs = graphs_of_tensors(tensors, model, settings)
        places = [f"/ptr/{i}" for i in range(len(graphs))]
    elif _gives_smiles(fields):
        smiles, places = _smiles(fields["smiles"], model, settings)
    else:
        graphs = graphs_of_json(fields["graphs"], model, settings)
        places = [f"/graphs/{i}" for i in range(len(graphs))]
    task = ClassifyInputs(
        model,
        smiles,
        graphs,
        places,
        envelope.dynamics.to_params(),
        frozenset(envelope.include),
    )
    require_max_explained(task.include, len(places), "/include", settings)
    for graph, where in zip(graphs, places, strict=False):
        if "explanation" in task.include and graph.num_nodes > _MAX_EXPLAINED_NODES:
            rule = (
                f"The graph has {graph.num_nodes} nodes; explanations are limited to "
                f"{_MAX_EXPLAINED_NODES}. Leave out `explanation`."
            )
            raise make_problem("invalid-graph", where, "too_many_nodes", rule)
    sizes = [len(text) for text in smiles or ()] + [graph.num_nodes for graph in graphs]
    tokens = [size + 1 for size in sizes]  # a molecule has no more atoms than characters
    base_bytes = _response_bytes(task)
    require_response_size(model.network, task.params, task.include, tokens, settings, base_bytes)
    return task


def _response_bytes(task: ClassifyInputs) -> int:
    """About how many bytes the response has without reasons."""
    num_labels = sum(len(each.labels) for each in task.model.tasks)
    size = len(task.places) * (_RESULT_BYTES + num_labels * _LABEL_BYTES)
    size += sum(2 * len(text) for text in task.smiles or ())  # as sent, and canonical
    if "explanation" in task.include:
        drawings = sum(min(_ATOM_BYTES * len(text), MAX_SVG_BYTES) for text in task.smiles or ())
        size += len(task.model.tasks) * (len(task.places) * EXPLANATION_BYTES + drawings)
    return size


def _gives_smiles(fields: Mapping[str, Any]) -> bool:
    given = fields.get("smiles") is not None
    if given == (fields.get("graphs") is not None):
        raise make_problem("invalid-request", "", "one_of", "Send either `smiles` or `graphs`.")
    return given


def _smiles(value: object, model: Classifier, settings: Settings) -> tuple[list[str], list[str]]:
    if not model.reads_smiles:
        rule = (
            "This model does not read SMILES. Send `graphs`; GET /models/{name} lists their "
            "columns."
        )
        raise make_problem("invalid-request", "/smiles", "not_read", rule)
    if type(value) is str:
        return [value], ["/smiles"]
    with reraise_as("invalid-request"):
        smiles = require_list(value, pointer_builder("smiles"))
        if not smiles:
            detail = "`smiles` is empty. Send at least one molecule."
            raise make_problem("invalid-request", "/smiles", "empty", detail)
        if len(smiles) > settings.max_graphs:
            rule = (
                f"{len(smiles)} molecules were sent; at most {settings.max_graphs} "
                "(BASIN_MAX_GRAPHS) are allowed. Send several requests."
            )
            raise make_problem("invalid-request", "/smiles", "too_many", rule)
        require_types(smiles, {str}, pointer_builder("smiles"), "Must be a string.")
    return smiles, [f"/smiles/{i}" for i in range(len(smiles))]
