"""Settings of what is served: models, requests, graphs, alerts, molecules, images, memories."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Annotated, ClassVar, Literal, Self

from pydantic import BeforeValidator, Field, SecretStr, model_validator
from pydantic_settings import NoDecode

from models.paths import find_shipped, find_state_folder
from service.settings.group import Origin, SettingsGroup, split_words


class ModelSettings(SettingsGroup):
    title: ClassVar = "Models"

    checkpoints: Path = Field(
        default=find_shipped("checkpoints"),
        description="folder of the checkpoints to serve, one subfolder each",
    )
    wait_for_models: bool = Field(
        default=False,
        description="run without any model until an admin route loads one; with `false` a server "
        "that can load no checkpoint ends",
    )
    default_anomaly_model: str = Field(
        default="cdat-tolokers",
        description="default model of POST /anomaly/score",
    )
    default_classify_model: str = Field(
        default="cdat-ames",
        description="default model of POST /classify",
    )
    default_completion_model: str = Field(
        default="et-photos",
        description="default model of POST /complete",
    )
    default_picture_model: str = Field(
        default="ait-cifar10",
        description="default model of POST /images/classify",
    )
    default_answer_model: str = Field(
        default="ait-clevr",
        description="default model of POST /images/answer",
    )
    device: str = Field(
        default="auto",
        pattern=r"^(auto|cpu|cuda(:[0-9]+)?)$",
        description="device of the models: `cpu`, `cuda`, `cuda:1`, or `auto` for a GPU if any",
    )
    backend: Literal["auto", "torch", "onnx"] = Field(
        default="auto",
        description="CPU backend for matrix products: `torch`, `onnx`, or `auto` for ONNX Runtime "
        "if it is installed and `BASIN_THREADS` is 1",
    )
    threads: int | None = Field(
        default=None,
        ge=1,
        description="number of CPU threads of a compute thread; all cores by default",
    )


class RequestSettings(SettingsGroup):
    title: ClassVar = "Size of requests"

    max_body_bytes: int = Field(
        default=64 << 20, ge=1, description="maximum bytes of a request body"
    )
    max_buffered_bytes: int = Field(
        default=512 << 20,
        ge=1,
        description="maximum bytes of all request bodies in memory, of which one API key, or one "
        "address without keys, may have as much as it leaves free; beyond it requests get 429",
    )
    max_response_bytes: int = Field(
        default=64 << 20,
        ge=1,
        description="maximum bytes of a response; a request for more is refused before it is "
        "computed",
    )
    max_steps: int = Field(default=64, ge=0, description="maximum `steps` of a request, per block")
    max_explained: int = Field(
        default=16,
        ge=1,
        description="maximum number of targets or inputs that one request may have explained",
    )

    @model_validator(mode="after")
    def _check_buffer(self) -> Self:
        if self.max_buffered_bytes < 2 * self.max_body_bytes:
            raise ValueError(
                "BASIN_MAX_BUFFERED_BYTES must be at least twice BASIN_MAX_BODY_BYTES, since one "
                "client may hold half of it"
            )
        return self


class GraphSettings(SettingsGroup):
    title: ClassVar = "Graphs"

    max_nodes: int = Field(default=1_000_000, ge=1, description="maximum nodes of a graph")
    max_edges: int = Field(default=32_000_000, ge=0, description="maximum edges of a graph")
    graph_store: Path = Field(
        default=find_state_folder() / "graphs.sqlite",
        description="SQLite file of the stored graphs, without Redis; only one server may use it",
    )
    max_stored_graphs: int = Field(
        default=16, ge=0, description="maximum stored graphs per API key"
    )
    max_stored_nodes: int = Field(
        default=2_000_000,
        ge=0,
        description="maximum number of nodes in all stored graphs of an API key",
    )
    max_stored_edges: int = Field(
        default=10_000_000,
        ge=0,
        description="maximum number of edges in all stored graphs of an API key",
    )
    max_neighborhood_nodes: int = Field(
        default=100_000,
        ge=1,
        description="maximum number of nodes of one neighborhood of a stored graph",
    )
    max_neighborhood_edges: int = Field(
        default=2_000_000,
        ge=0,
        description="maximum number of edges of the nodes of one neighborhood, including edges "
        "that leave it",
    )
    graph_memory_bytes: int = Field(
        default=2 << 30,
        ge=0,
        description="approximate maximum size of the stored graphs in memory, in bytes; the least "
        "recently used are evicted and read again when needed",
    )


class AlertSettings(SettingsGroup):
    title: ClassVar = "Alerts"

    max_alert_streams: int = Field(
        default=100,
        ge=0,
        description="maximum number of open streams of GET /graphs/{id}/alerts of this server, of "
        "which one API key may have as many as it leaves free",
    )
    webhook_origins: Annotated[tuple[Origin, ...], NoDecode, BeforeValidator(split_words)] = Field(
        default=(),
        description="origins to which alerts may be sent, as https://hooks.site, "
        "separated by spaces; none by default",
    )
    webhook_secret: SecretStr | None = Field(
        default=None,
        description="secret that signs them, as Standard Webhooks has it: whsec_ and base64, of 24 "
        "bytes or more",
    )

    @model_validator(mode="after")
    def _check_webhook_secret(self) -> Self:
        secret = self.webhook_secret
        if self.webhook_origins and secret is None:
            raise ValueError("BASIN_WEBHOOK_ORIGINS needs BASIN_WEBHOOK_SECRET")
        if secret is not None:
            decode_webhook_secret(secret.get_secret_value())
        return self


class MoleculeSettings(SettingsGroup):
    title: ClassVar = "Molecules"

    max_graphs: int = Field(
        default=1024,
        ge=1,
        description="maximum number of molecules or graphs of one POST /classify",
    )
    max_pairs: int = Field(
        default=2_000_000,
        ge=1,
        description="maximum number of connected pairs of tokens in one graph of POST /classify",
    )
    max_position_work: int = Field(
        default=2_000_000_000,
        ge=1,
        description="maximum operations of the position encoding of one graph of POST /classify",
    )
    max_smiles_length: int = Field(
        default=2000, ge=1, le=16_384, description="maximum characters of a SMILES"
    )
    max_atoms: int = Field(
        default=500,
        ge=1,
        le=65_535,
        description="maximum atoms of a SMILES, without hydrogens that become implicit",
    )
    smiles_timeout_s: float = Field(
        default=2,
        gt=0,
        description="seconds to parse one SMILES; after that its parser process is killed",
    )
    smiles_budget_s: float = Field(
        default=20,
        gt=0,
        description="seconds to parse all SMILES of one request",
    )
    smiles_processes: int = Field(default=2, ge=1, description="processes that parse SMILES")

    @model_validator(mode="after")
    def _check_smiles_times(self) -> Self:
        if self.smiles_timeout_s >= self.smiles_budget_s:
            raise ValueError("BASIN_SMILES_TIMEOUT_S must be less than BASIN_SMILES_BUDGET_S")
        return self


class ImageSettings(SettingsGroup):
    title: ClassVar = "Images"

    max_pixels: int = Field(
        default=16_000_000,
        ge=1,
        le=64_000_000,
        description="maximum number of pixels of an image or mask",
    )
    max_windows: int = Field(
        default=8192,
        ge=1,
        description="maximum number of windows of one POST /complete, over all samples",
    )
    max_images: int = Field(
        default=64,
        ge=1,
        description="maximum number of images, and of questions, of one POST to /images",
    )
    max_frames: int = Field(
        default=16,
        ge=1,
        description="maximum number of intermediate images of POST /complete as server-sent events",
    )


class MemorySettings(SettingsGroup):
    title: ClassVar = "Memories and samples"

    memories: Path = Field(
        default=find_shipped("memories"),
        description="folder of the memories that ship with the server, read-only",
    )
    memory_store: Path = Field(
        default=find_state_folder() / "memories",
        description="folder in which PUT /memories/{id} stores memories",
    )
    max_memories: int = Field(
        default=100,
        ge=0,
        description="maximum number of stored memories per API key, not counting those that ship",
    )
    max_memory_bytes: int = Field(
        default=1 << 30,
        ge=0,
        description="maximum bytes of all stored memories, of which one API key may have as many "
        "as it leaves free",
    )
    max_sample_steps: int = Field(
        default=1_000_000, ge=1, description="maximum steps of each chain of POST /sample"
    )
    max_sample_work: int = Field(
        default=2_000_000_000_000,
        ge=1,
        description="maximum of steps x chains x patterns x dimensions of one POST /sample, and of "
        "steps x rows x patterns x dimensions of one POST /complete from a memory",
    )


def decode_webhook_secret(text: str) -> bytes:
    """Return the key of a secret, `whsec_` and base64.

    Raises:
        ValueError: it is something else, or shorter than 24 bytes.
    """
    try:
        key = base64.b64decode(text.removeprefix("whsec_"), validate=True)
    except ValueError:
        key = b""
    if len(key) < 24:
        raise ValueError(
            "BASIN_WEBHOOK_SECRET must be whsec_ and base64 of 24 bytes or more, as "
            "`echo whsec_$(openssl rand -base64 24)` prints"
        )
    return key
