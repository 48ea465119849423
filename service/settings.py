"""All settings of the server, read from environment variables."""

from __future__ import annotations

import base64
import ipaddress
import ssl
from pathlib import Path
from typing import Annotated, Literal

from pydantic import (
    BeforeValidator,
    Field,
    FilePath,
    SecretStr,
    StringConstraints,
    field_validator,
    model_validator,
)
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict
from redis.connection import parse_url

Origin = Annotated[str, StringConstraints(pattern=r"^https?://[^/\s*?#]+$")]


def _words(value: object) -> object:
    return tuple(value.split()) if isinstance(value, str) else value


class Settings(BaseSettings):
    """Settings; `max_nodes` is read from `BASIN_MAX_NODES`, and so on."""

    model_config = SettingsConfigDict(env_prefix="BASIN_", env_ignore_empty=True, frozen=True)

    host: str = Field(default="127.0.0.1", description="address to listen on")
    port: int = Field(
        default=8000, ge=0, le=65535, description="port to listen on; 0: any free port"
    )
    admin_host: str = Field(
        default="127.0.0.1", description="address of the routes that load and drop models"
    )
    admin_port: int | None = Field(
        default=None,
        ge=1,
        le=65535,
        description="port of the admin routes; without it there are no admin routes",
    )
    keys: Path | None = Field(
        default=None,
        description="file of the API keys; without it no API key is required",
    )
    open: bool = Field(
        default=False,
        description="allow a `BASIN_HOST` other than loopback without `BASIN_KEYS`, for use behind "
        "a proxy that authenticates clients",
    )
    tls_certificate: FilePath | None = Field(
        default=None,
        description="file of the certificate chain (PEM); without it the server speaks plain HTTP",
    )
    tls_key: FilePath | None = Field(
        default=None,
        description="file of the private key of the certificate (PEM, without a password)",
    )
    cors_origins: Annotated[tuple[Origin, ...], NoDecode, BeforeValidator(_words)] = Field(
        default=(),
        description="allowed CORS origins, separated by spaces; none by default",
    )
    webhook_origins: Annotated[tuple[Origin, ...], NoDecode, BeforeValidator(_words)] = Field(
        default=(),
        description="origins to which alerts may be sent, as https://hooks.site, "
        "separated by spaces; none by default",
    )
    webhook_secret: SecretStr | None = Field(
        default=None,
        description="secret that signs them, as Standard Webhooks has it: whsec_ and base64, of 24 "
        "bytes or more",
    )
    ui: bool = Field(
        default=True, description="whether GET / shows browsers the page to try the models"
    )
    checkpoints: Path = Field(
        default=Path(__file__).resolve().parent.parent / "checkpoints",
        description="folder of the checkpoints to serve, one subfolder each",
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
    max_body_bytes: int = Field(
        default=64 << 20, ge=1, description="maximum bytes of a request body"
    )
    max_buffered_bytes: int = Field(
        default=512 << 20,
        ge=1,
        description="maximum bytes of all request bodies in memory; beyond it requests get 429",
    )
    max_nodes: int = Field(default=1_000_000, ge=1, description="maximum nodes of a graph")
    max_edges: int = Field(default=32_000_000, ge=0, description="maximum edges of a graph")
    max_steps: int = Field(default=64, ge=0, description="maximum `steps` of a request, per block")
    max_graphs: int = Field(
        default=1024,
        ge=1,
        description="maximum number of molecules or graphs of one POST /classify",
    )
    max_explained: int = Field(
        default=16,
        ge=1,
        description="maximum number of targets or inputs that one request may have explained",
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
    memories: Path = Field(
        default=Path(__file__).resolve().parent.parent / "memories",
        description="folder of the memories that ship with the server, read-only",
    )
    memory_store: Path = Field(
        default=Path(__file__).resolve().parent.parent / "var" / "memories",
        description="folder in which PUT /memories/{id} stores memories",
    )
    max_memories: int = Field(
        default=100,
        ge=0,
        description="maximum number of stored memories, not counting those that ship",
    )
    max_memory_bytes: int = Field(
        default=1 << 30, ge=0, description="maximum bytes of all stored memories"
    )
    graph_store: Path = Field(
        default=Path(__file__).resolve().parent.parent / "var" / "graphs.sqlite",
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
    max_alert_streams: int = Field(
        default=100,
        ge=0,
        description="maximum number of open streams of GET /graphs/{id}/alerts of this server",
    )
    graph_memory_bytes: int = Field(
        default=2 << 30,
        ge=0,
        description="approximate maximum size of the stored graphs in memory, in bytes; the least "
        "recently used are evicted and read again when needed",
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
    max_response_bytes: int = Field(
        default=64 << 20,
        ge=1,
        description="maximum bytes of a response of POST /sample, /classify, /complete or /images",
    )
    queue_size: int = Field(
        default=32,
        ge=0,
        description="maximum number of queued and running requests; beyond it requests get 429",
    )
    max_per_model: int | None = Field(
        default=None,
        ge=1,
        description="maximum number of queued and running requests of one model",
    )
    max_connections: int = Field(
        default=800,
        ge=1,
        description="maximum open connections; beyond it connections get 503 and are closed",
    )
    keep_alive_s: int = Field(
        default=75,
        ge=1,
        description="seconds that an idle connection is kept open; longer than a proxy before the "
        "server keeps it, which would else send a request on a connection that is being closed",
    )
    head_timeout_s: float = Field(
        default=10,
        gt=0,
        description="seconds to receive the request headers, else 408",
    )
    body_timeout_s: float = Field(
        default=30,
        gt=0,
        description="seconds to receive the request body, else 408",
    )
    deadline_s: float = Field(
        default=60,
        gt=0,
        description="seconds that a request may wait and run, else 504",
    )
    job_deadline_s: float = Field(
        default=600,
        gt=0,
        description="seconds that a job (`Prefer: respond-async`) may wait and run",
    )
    job_store: Path = Field(
        default=Path(__file__).resolve().parent.parent / "var" / "jobs.sqlite",
        description="SQLite file of the jobs, without Redis; only one server may use it",
    )
    keep_jobs_s: float = Field(
        default=600,
        gt=0,
        description="seconds that a finished job and an `Idempotency-Key` are remembered",
    )
    max_jobs: int = Field(
        default=256,
        ge=0,
        description="maximum number of queued and running jobs; beyond it requests get 429",
    )
    max_job_bytes: int = Field(
        default=256 << 20,
        ge=0,
        description="maximum size of all stored jobs, in bytes: waiting requests and responses; "
        "the oldest responses are deleted first",
    )
    run_jobs: bool = Field(
        default=True,
        description="run jobs in this server; with `false`, which needs Redis, only in workers",
    )
    job_lease_s: float = Field(
        default=15,
        ge=2,
        description="seconds without a heartbeat after which, with Redis, a job is taken over",
    )
    redis_url: SecretStr | None = Field(
        default=None,
        description="URL of the Redis that servers share, such as redis://host:6379/0, for cache, "
        "rate limits, quotas, jobs, memories and graphs; without it each server has its own",
    )
    redis_timeout_s: float = Field(
        default=0.25,
        gt=0,
        description="seconds that a request waits for Redis; after a timeout Redis is not used "
        "until it responds again",
    )
    cache_bytes: int = Field(
        default=64 << 20,
        ge=0,
        description="maximum size of the response cache, in bytes; 0 turns it off, also in Redis",
    )
    shutdown_timeout_s: int = Field(
        default=20, ge=1, description="seconds for running requests to finish after SIGTERM"
    )
    scheduling: Literal["steps", "requests"] = Field(
        default="steps",
        description="what the scheduler interleaves: `steps`, in batches over all requests on the "
        "same energy, or whole `requests`",
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
        description="number of CPU threads of the compute thread; all cores by default",
    )
    tracing: bool = Field(
        default=False,
        description="export a trace of each request and job by OpenTelemetry; configured by "
        "`OTEL_EXPORTER_OTLP_ENDPOINT` and related variables",
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="minimum severity of log lines"
    )

    @model_validator(mode="after")
    def _check_tls(self) -> Settings:
        if (self.tls_certificate is None) != (self.tls_key is None):
            raise ValueError("BASIN_TLS_CERTIFICATE and BASIN_TLS_KEY must be set together")
        if self.tls_certificate is not None:
            try:  # with `password=str` OpenSSL does not prompt for a password
                context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
                context.load_cert_chain(self.tls_certificate, self.tls_key, password=str)
            except OSError as error:
                reason = getattr(error, "reason", None) or error.strerror or "it has a password"
                raise ValueError(
                    "BASIN_TLS_CERTIFICATE and BASIN_TLS_KEY must be a certificate and its "
                    f"private key, in PEM without a password: {reason}"
                ) from None
        return self

    @field_validator("redis_url")
    @classmethod
    def _check_redis_url(cls, url: SecretStr | None) -> SecretStr | None:
        try:
            parse_url(url.get_secret_value() if url else "redis://")
        except ValueError:  # its message may contain the password
            raise ValueError("must be like redis://user:password@host:6379/0") from None
        return url

    @model_validator(mode="after")
    def _check_jobs(self) -> Settings:
        if not self.run_jobs and self.redis_url is None:
            raise ValueError("BASIN_RUN_JOBS=false needs BASIN_REDIS_URL, from which workers read")
        return self

    @model_validator(mode="after")
    def _require_keys_beyond_loopback(self) -> Settings:
        hosts = [self.host] if self.admin_port is None else [self.host, self.admin_host]
        if self.keys is None and not self.open and not all(map(is_loopback, hosts)):
            raise ValueError(
                "BASIN_HOST or BASIN_ADMIN_HOST is not a loopback address. Set BASIN_KEYS, "
                "or BASIN_OPEN=true behind a proxy that authenticates clients"
            )
        return self

    @model_validator(mode="after")
    def _check_webhook_secret(self) -> Settings:
        secret = self.webhook_secret
        if self.webhook_origins and secret is None:
            raise ValueError("BASIN_WEBHOOK_ORIGINS needs BASIN_WEBHOOK_SECRET")
        if secret is not None:
            decode_webhook_secret(secret.get_secret_value())
        return self

    @model_validator(mode="after")
    def _check_smiles_times(self) -> Settings:
        if self.smiles_timeout_s >= self.smiles_budget_s:
            raise ValueError("BASIN_SMILES_TIMEOUT_S must be less than BASIN_SMILES_BUDGET_S")
        return self


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


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
