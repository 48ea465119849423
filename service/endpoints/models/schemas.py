"""What the server says of its models; see `service.endpoints.common.schemas`."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, Field

from models.inputs.transactions import TransactionRecipe
from models.manifest import (
    Calibration,
    Decision,
    EnergyReference,
    Feature,
    NeighborhoodDefaults,
    TrainedKnobs,
)
from service.endpoints.common.schemas import Json
from service.registry.model_ref import ModelRef


class ModelSummary(ModelRef):
    architecture: str
    task: str
    route: str = Field(description="the route that the model serves")
    device: str = Field(description="device of the model, such as cpu or cuda:0")
    runtime: str = Field(
        description="library that computes the products of its steps, torch or onnxruntime; steps "
        "on edges and on small images run in compiled kernels instead"
    )
    default_for: list[str] = Field(description="routes of which this is the default model")


class ModelList(BaseModel):
    models: list[ModelSummary]


class Limits(BaseModel):
    """How much one request may hold."""

    max_body_bytes: int
    max_steps: int


class GraphLimits(Limits):
    max_nodes: int
    max_edges: int


class ClassifyLimits(GraphLimits):
    max_graphs: int = Field(description="maximum molecules or graphs of one request")
    max_pairs: int = Field(
        description="maximum connected pairs of tokens of one graph: both directions of each edge, "
        "each node with CLS and back, or all pairs if the model attends to all"
    )
    max_position_work: int = Field(
        description="maximum operations of the position encoding of one graph, about nodes x edges "
        "x 8"
    )
    max_smiles_length: int
    max_atoms: int
    smiles_timeout_s: float


class CompleteLimits(Limits):
    max_pixels: int = Field(description="maximum pixels of the image, and of its mask")
    max_windows: int = Field(description="maximum windows of all completions of one request")


class ImageLimits(Limits):
    max_pixels: int = Field(description="maximum pixels of each image")
    max_images: int = Field(description="maximum images, and questions, of one request")


class ModelDetail(ModelSummary):
    """What every model has."""

    config: Json
    knobs: TrainedKnobs
    features: list[Feature] = Field(description="columns of `x`, in order")
    energy: EnergyReference
    training: Json
    metrics: Json
    example: Json = Field(description="body of a request to `route` that the model answers")


class Trees(BaseModel):
    """Boosted trees of a hybrid: `score` is `network_weight` times the log-odds of the network,
    which reads those of the trees, plus `trees_weight` times those of the trees."""

    folds: int = Field(description="of the training nodes; each is left out of the trees of one")
    count: int = Field(description="trees of all folds")
    network_weight: float
    trees_weight: float


class PartWeights(BaseModel):
    """The log-odds of each part are multiplied by its weight, and `constant` is added."""

    network: float
    trees: float
    label_trees: float
    constant: float


class LabelTrees(BaseModel):
    """Boosted trees that read labels of neighbours, where a request has `labels`: what `score` is
    then."""

    folds: int
    count: int
    prior: float = Field(description="rate of fraud where no label is known")
    without_label_near: PartWeights = Field(
        description="of nodes with no known label within two steps"
    )
    with_label_near: PartWeights


class ScorerDetail(ModelDetail):
    """Everything there is to know about a model of POST /anomaly/score but its weights."""

    networks: int = Field(
        description="of an ensemble, whose log-odds are averaged; energies and steps are sums over "
        "all of them"
    )
    edge_features: list[Feature] = Field(description="columns of `edge_attr`, in order")
    relations: list[str] = Field(
        description="names of the relations of edges; `edge` alone if edges have no types"
    )
    undirected: bool = Field(description="whether an edge counts in both directions")
    missing_values: Literal["refused"] = Field(
        description="what becomes of a feature without a value"
    )
    threshold: float
    decision: Decision | None = Field(
        description="how the threshold was chosen; null if by the best macro-F1"
    )
    neighborhood: NeighborhoodDefaults | None = Field(
        description="what of a stored graph is read unless a request says, and how often that "
        "gives the label that the whole graph gives; null for models of transactions and where "
        "training has not measured it (2 hops, 32 neighbours)"
    )
    transactions: TransactionRecipe | None = Field(
        description="columns of the transactions that the model reads in place of a graph, and the "
        "features made of them; null if it reads graphs"
    )
    trees: Trees | None = Field(description="null unless the model is a hybrid")
    label_trees: LabelTrees | None = Field(description="null unless the model reads `labels`")
    calibration: Calibration
    limits: GraphLimits


class TaskBody(BaseModel):
    """One question, with two or more exclusive answers."""

    name: str
    labels: list[str]
    temperature: float = Field(description="T of softmax(logits / T)")


class ClassifierDetail(ModelDetail):
    """Everything there is to know about a model of POST /classify but its weights."""

    edge_features: list[Feature] = Field(description="columns of `edge_attr`, in order")
    tasks: list[TaskBody]
    reads_smiles: bool = Field(description="whether the model accepts `smiles`, or only `graphs`")
    limits: ClassifyLimits


class CompleterDetail(ModelDetail):
    """Everything there is to know about a model of POST /complete but its weights."""

    size: int = Field(description="pixels per side of a window; images may have any size")
    patch: int = Field(
        description="pixels per side of a patch, which the network reads as one token"
    )
    has_uncertainty: bool = Field(
        description="whether `include` may have `uncertainty`: the error to expect of each pixel"
    )
    channels: int = Field(
        description="1: grayscale, color channels are completed one by one; 3: RGB or grayscale"
    )
    limits: CompleteLimits


class RecogniserDetail(ModelDetail):
    """Everything there is to know about a model of POST /images/... but its weights."""

    height: int = Field(description="height of the network's input, to which images are resized")
    width: int
    channels: int = Field(description="1: grayscale, 3: RGB; images are converted")
    patch: int = Field(description="pixels per side of a patch")
    tasks: list[TaskBody]
    questions: dict[str, list[str]] | None = Field(
        description="an example of each form of question, by kind, with any color; null if the "
        "model answers no questions"
    )
    limits: ImageLimits


class GalleryBody(BaseModel):
    """An image of what a model has learned: tiles with two pixels between them, row by row."""

    model: ModelRef
    show: str
    axes: list[str] = Field(
        description="what the tiles show, by axis; the last axis varies fastest"
    )
    shape: list[int] = Field(description="number of tiles along each of `axes`")
    tile: tuple[int, int, int] = Field(description="height, width and channels of a tile")
    tiles: int
    columns: int = Field(description="tiles per row of the image")
    scale: str = Field(description="what black and white mean")
    minimum: float = Field(description="minimum of all tiles, from 0 (black) to 1 (white)")
    maximum: float
    request_id: str
