"""What the server says of its models; see `service.endpoints.common.schemas`."""

from __future__ import annotations

from pydantic import BaseModel, Field

from models.checkpoint import Calibration, EnergyReference, Feature, TrainedKnobs
from service.endpoints.common.schemas import Json
from service.registry.model_ref import ModelRef


class ModelSummary(ModelRef):
    architecture: str
    task: str
    route: str = Field(description="the route it answers")
    device: str = Field(description="where it runs: cpu, or cuda:0 and the like")
    runtime: str = Field(
        description="library that computes the products of its steps, torch or onnxruntime; steps "
        "on edges and on small images run in compiled kernels instead"
    )
    default_for: list[str] = Field(description="routes that use it where a request names none")


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
    max_graphs: int = Field(description="molecules or graphs of one request")
    max_pairs: int = Field(
        description="pairs of tokens of one graph that see each other: both ways of each edge and "
        "of each node and CLS, or every two nodes where the model attends to all"
    )
    max_position_work: int = Field(
        description="operations to find where the nodes of one graph are, about nodes times edges "
        "times eight"
    )
    max_smiles_length: int
    max_atoms: int
    smiles_timeout_s: float


class CompleteLimits(Limits):
    max_pixels: int = Field(description="of the picture, and of its mask")
    max_windows: int = Field(description="of all completions of one request together")


class ImageLimits(Limits):
    max_pixels: int = Field(description="of each picture")
    max_images: int = Field(description="pictures of one request, and questions about them")


class ModelDetail(ModelSummary):
    """What every model has."""

    config: Json
    knobs: TrainedKnobs
    features: list[Feature] = Field(description="columns of `x`, in order")
    energy: EnergyReference
    training: Json
    metrics: Json


class ScorerDetail(ModelDetail):
    """Everything there is to know about a model of POST /anomaly/score but its weights."""

    relations: list[str]
    threshold: float
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
    reads_smiles: bool = Field(description="does it take `smiles`, or only `graphs`?")
    limits: ClassifyLimits


class CompleterDetail(ModelDetail):
    """Everything there is to know about a model of POST /complete but its weights."""

    size: int = Field(description="pixels of a side of a window; pictures are of any size")
    patch: int = Field(description="pixels of a side of a patch, which is known or not as a whole")
    channels: int = Field(
        description="1 reads grey and completes colours one by one; 3 reads RGB, and grey as such"
    )
    limits: CompleteLimits


class RecogniserDetail(ModelDetail):
    """Everything there is to know about a model of POST /images/... but its weights."""

    height: int = Field(description="of what it looks at, to which pictures are brought")
    width: int
    channels: int = Field(description="1 reads grey, 3 RGB; pictures are converted")
    patch: int = Field(description="pixels of a side of a patch")
    tasks: list[TaskBody]
    questions: dict[str, list[str]] | None = Field(
        description="an example of each form of question, by kind, other colours going as well; "
        "null where it answers none"
    )
    limits: ImageLimits


class GalleryBody(BaseModel):
    """A picture of what a model has learned: tiles with two pixels between them, row by row."""

    model: ModelRef
    show: str
    axes: list[str] = Field(description="what tiles are of, the last of them counted fastest")
    shape: list[int] = Field(description="how many along each of `axes`")
    tile: tuple[int, int, int] = Field(description="height, width and channels of a tile")
    tiles: int
    columns: int = Field(description="tiles of a row of the picture")
    scale: str = Field(description="what black and white mean")
    minimum: float = Field(description="of all tiles, 0 black to 1 white")
    maximum: float
    request_id: str
