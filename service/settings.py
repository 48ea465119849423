"""Everything an operator may set, by environment variable."""

from __future__ import annotations

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
    """Settings of the server; each is read from `BASIN_` and its name in capitals."""

    model_config = SettingsConfigDict(env_prefix="BASIN_", env_ignore_empty=True, frozen=True)

    host: str = Field(default="127.0.0.1", description="address to listen on")
    port: int = Field(
        default=8000, ge=0, le=65535, description="port to listen on; 0 takes a free one"
    )
    admin_host: str = Field(
        default="127.0.0.1", description="address for the routes that load and drop models"
    )
    admin_port: int | None = Field(
        default=None,
        ge=1,
        le=65535,
        description="port of the routes that load and drop models; there are none if not set",
    )
    keys: Path | None = Field(
        default=None,
        description="file of the keys that clients must send; nobody is asked for one if not set",
    )
    open: bool = Field(
        default=False,
        description="listen beyond this machine though there are no keys: something before the "
        "server asks who comes",
    )
    tls_certificate: FilePath | None = Field(
        default=None,
        description="file of the certificate and those that vouch for it (PEM); plain HTTP if not "
        "set",
    )
    tls_key: FilePath | None = Field(
        default=None, description="file of the private key of that certificate (PEM)"
    )
    cors_origins: Annotated[tuple[Origin, ...], NoDecode, BeforeValidator(_words)] = Field(
        default=(),
        description="origins, with spaces between them, whose pages may ask; none if not set",
    )
    checkpoints: Path = Field(
        default=Path(__file__).resolve().parent.parent / "checkpoints",
        description="folder whose subfolders are the checkpoints to serve",
    )
    default_anomaly_model: str = Field(
        default="cdat-tolokers",
        description="model of POST /anomaly/score where a request names none",
    )
    default_classify_model: str = Field(
        default="cdat-ames",
        description="model of POST /classify where a request names none",
    )
    default_completion_model: str = Field(
        default="et-photos",
        description="model of POST /complete where a request names none",
    )
    default_picture_model: str = Field(
        default="ait-cifar10",
        description="model of POST /images/classify where a request names none",
    )
    default_answer_model: str = Field(
        default="ait-clevr",
        description="model of POST /images/answer where a request names none",
    )
    max_body_bytes: int = Field(
        default=64 << 20, ge=1, description="largest request body, in bytes"
    )
    max_buffered_bytes: int = Field(
        default=512 << 20,
        ge=1,
        description="bytes of all request bodies in memory; whoever would exceed them gets 429",
    )
    max_nodes: int = Field(default=1_000_000, ge=1, description="most nodes of one graph")
    max_edges: int = Field(default=32_000_000, ge=0, description="most edges of one graph")
    max_steps: int = Field(
        default=64, ge=0, description="most steps of each block a request may ask for"
    )
    max_graphs: int = Field(
        default=1024, ge=1, description="most molecules or graphs of one POST /classify"
    )
    max_explained: int = Field(
        default=16,
        ge=1,
        description="most targets of POST /anomaly/score, and inputs of POST /classify, that one "
        "request may have explained",
    )
    max_pairs: int = Field(
        default=2_000_000,
        ge=1,
        description="most pairs of tokens that see each other in one graph of POST /classify",
    )
    max_position_work: int = Field(
        default=2_000_000_000,
        ge=1,
        description="most operations to find where the nodes of one graph of POST /classify are",
    )
    max_smiles_length: int = Field(
        default=2000, ge=1, le=16_384, description="most characters of one SMILES"
    )
    max_atoms: int = Field(
        default=500,
        ge=1,
        le=65_535,
        description="most atoms of one SMILES, without hydrogens that become implicit",
    )
    smiles_timeout_s: float = Field(
        default=2,
        gt=0,
        description="seconds in which one SMILES must be read; else its process is killed",
    )
    smiles_budget_s: float = Field(
        default=20,
        gt=0,
        description="seconds in which all SMILES of one request must be read",
    )
    smiles_processes: int = Field(default=2, ge=1, description="processes that read SMILES")
    max_pixels: int = Field(
        default=4_000_000,
        ge=1,
        le=64_000_000,
        description="most pixels of a picture or mask that is sent",
    )
    max_windows: int = Field(
        default=8192,
        ge=1,
        description="most windows that the holes of one picture of POST /complete may take, all "
        "its completions together",
    )
    max_images: int = Field(
        default=64,
        ge=1,
        description="most pictures, and most questions, of one POST to /images",
    )
    max_frames: int = Field(
        default=16,
        ge=1,
        description="most pictures on the way, where POST /complete answers as events",
    )
    memories: Path = Field(
        default=Path(__file__).resolve().parent.parent / "memories",
        description="folder with the memories that ship; never written to",
    )
    memory_store: Path = Field(
        default=Path(__file__).resolve().parent.parent / "var" / "memories",
        description="folder in which PUT /memories/{id} stores memories",
    )
    max_memories: int = Field(
        default=100, ge=0, description="most memories that may be stored beside those that ship"
    )
    max_memory_bytes: int = Field(
        default=1 << 30, ge=0, description="most bytes that stored memories may take together"
    )
    graph_store: Path = Field(
        default=Path(__file__).resolve().parent.parent / "var" / "graphs.sqlite",
        description="file that stored graphs are kept in without Redis; one server has it at a "
        "time",
    )
    max_stored_graphs: int = Field(
        default=16, ge=0, description="most graphs that each key may store"
    )
    max_stored_nodes: int = Field(
        default=2_000_000, ge=0, description="most nodes of all graphs that one key stores"
    )
    max_stored_edges: int = Field(
        default=10_000_000, ge=0, description="most edges of all graphs that one key stores"
    )
    max_neighborhood_nodes: int = Field(
        default=100_000, ge=1, description="most nodes of one neighbourhood of a stored graph"
    )
    max_neighborhood_edges: int = Field(
        default=2_000_000,
        ge=0,
        description="most edges of the nodes of one neighbourhood, those that lead out of it too",
    )
    graph_memory_bytes: int = Field(
        default=2 << 30,
        ge=0,
        description="bytes of stored graphs held in memory, about; those asked for least recently "
        "are read again when they are next",
    )
    max_sample_steps: int = Field(
        default=1_000_000, ge=1, description="most steps of each chain of POST /sample"
    )
    max_sample_work: int = Field(
        default=2_000_000_000_000,
        ge=1,
        description="most steps x chains x patterns x dimensions of one POST /sample",
    )
    max_response_bytes: int = Field(
        default=64 << 20,
        ge=1,
        description="largest answer of a POST to /sample, /classify, /complete or /images, "
        "in bytes",
    )
    queue_size: int = Field(
        default=32,
        ge=0,
        description="requests that may wait for compute; the next one is answered 429",
    )
    max_per_model: int | None = Field(
        default=None,
        ge=1,
        description="requests of one model that may wait or run; as many as there are places if "
        "not set",
    )
    max_connections: int = Field(
        default=800,
        ge=1,
        description="connections that may be open; the next one is answered 503 and closed",
    )
    head_timeout_s: float = Field(
        default=10,
        gt=0,
        description="seconds a client has to send the head of a request before it is answered 408",
    )
    body_timeout_s: float = Field(
        default=30,
        gt=0,
        description="seconds a client has to send its body before it is answered 408",
    )
    deadline_s: float = Field(
        default=60,
        gt=0,
        description="seconds a request may wait and compute before it is answered 504",
    )
    job_deadline_s: float = Field(
        default=600, gt=0, description="the same for a job, see `Prefer: respond-async`"
    )
    job_store: Path = Field(
        default=Path(__file__).resolve().parent.parent / "var" / "jobs.sqlite",
        description="file that jobs are kept in without Redis; one server has it at a time",
    )
    keep_jobs_s: float = Field(
        default=600,
        gt=0,
        description="seconds a job that is over can be asked for its answer, and an "
        "`Idempotency-Key` is known",
    )
    max_jobs: int = Field(
        default=256, ge=0, description="jobs that may wait or run; the next one is answered 429"
    )
    max_job_bytes: int = Field(
        default=256 << 20,
        ge=0,
        description="most bytes of jobs kept, requests that wait and answers; the oldest answers "
        "go first",
    )
    run_jobs: bool = Field(
        default=True,
        description="run jobs beside requests; false, with Redis, leaves them to workers",
    )
    job_lease_s: float = Field(
        default=15,
        ge=2,
        description="seconds without a word from the process that runs a job, before another takes "
        "it; with Redis",
    )
    redis_url: SecretStr | None = Field(
        default=None,
        description="the Redis that servers share, as in redis://host:6379/0: answers, rates and "
        "quotas, jobs, stored memories and graphs; each keeps its own if not set",
    )
    redis_timeout_s: float = Field(
        default=0.25,
        gt=0,
        description="seconds a request waits for Redis, the first that finds it away; the next "
        "ones do without it",
    )
    cache_bytes: int = Field(
        default=64 << 20,
        ge=0,
        description="most bytes of answers kept for who asks the same again; 0 keeps none, not in "
        "Redis either",
    )
    shutdown_timeout_s: int = Field(
        default=20, ge=1, description="seconds that requests in flight have to finish after SIGTERM"
    )
    scheduling: Literal["steps", "requests"] = Field(
        default="steps",
        description="what takes turns: steps of all requests, those on the same energy together; "
        "or requests, one after the other",
    )
    device: str = Field(
        default="auto",
        pattern=r"^(auto|cpu|cuda(:[0-9]+)?)$",
        description="where models run: `cpu`, `cuda`, `cuda:1` or, with `auto`, a GPU if there is "
        "one",
    )
    backend: Literal["auto", "torch", "onnx"] = Field(
        default="auto",
        description="whose products the steps on a CPU take: those of `torch`, of ONNX Runtime "
        "with `onnx` and, with `auto`, where it is installed and `BASIN_THREADS` is 1",
    )
    threads: int | None = Field(
        default=None, ge=1, description="CPU threads of the compute worker; all cores if not set"
    )
    tracing: bool = Field(
        default=False,
        description="tell each request and job to an OpenTelemetry collector; where to is in "
        "`OTEL_EXPORTER_OTLP_ENDPOINT` and the like",
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="least severe log lines to write"
    )

    @model_validator(mode="after")
    def _a_certificate_has_its_key(self) -> Settings:
        if (self.tls_certificate is None) != (self.tls_key is None):
            raise ValueError("BASIN_TLS_CERTIFICATE and BASIN_TLS_KEY are set together")
        if self.tls_certificate is not None:
            try:  # a password would be asked for, of nobody
                context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
                context.load_cert_chain(self.tls_certificate, self.tls_key, password=str)
            except OSError as error:
                reason = getattr(error, "reason", None) or error.strerror or "it has a password"
                raise ValueError(
                    "BASIN_TLS_CERTIFICATE and BASIN_TLS_KEY are no certificate and its key, in "
                    f"PEM and without a password: {reason}"
                ) from None
        return self

    @field_validator("redis_url")
    @classmethod
    def _is_of_redis(cls, url: SecretStr | None) -> SecretStr | None:
        try:
            parse_url(url.get_secret_value() if url else "redis://")
        except ValueError:  # which might tell a password
            raise ValueError("it is none, as in redis://user:password@host:6379/0") from None
        return url

    @model_validator(mode="after")
    def _jobs_are_run(self) -> Settings:
        if not self.run_jobs and self.redis_url is None:
            raise ValueError("BASIN_RUN_JOBS=false needs BASIN_REDIS_URL: nobody else has the jobs")
        return self

    @model_validator(mode="after")
    def _strangers_need_keys(self) -> Settings:
        hosts = [self.host] if self.admin_port is None else [self.host, self.admin_host]
        if self.keys is None and not self.open and not all(map(is_loopback, hosts)):
            raise ValueError(
                "without BASIN_KEYS the server listens on this machine alone: "
                "set BASIN_KEYS, or BASIN_OPEN=true where something else asks who comes"
            )
        return self

    @model_validator(mode="after")
    def _a_molecule_has_its_time(self) -> Settings:
        if self.smiles_timeout_s >= self.smiles_budget_s:
            raise ValueError("BASIN_SMILES_TIMEOUT_S must be less than BASIN_SMILES_BUDGET_S")
        return self


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
