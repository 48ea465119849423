"""Settings of the server as a process: network, access, queue and jobs, Redis, logs."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Annotated, ClassVar, Literal, Self

from pydantic import BeforeValidator, Field, FilePath, SecretStr, field_validator, model_validator
from pydantic_settings import NoDecode
from redis.connection import parse_url

from models.paths import find_state_folder
from service.settings.group import Origin, SettingsGroup, split_words


class NetworkSettings(SettingsGroup):
    title: ClassVar = "Network"

    host: str = Field(default="127.0.0.1", description="address to listen on")
    port: int = Field(
        default=8000, ge=0, le=65535, description="port to listen on; 0: any free port"
    )
    max_connections: int = Field(
        default=800,
        ge=1,
        description="maximum open connections, of which one address may have as many as it leaves "
        "free; beyond it connections get 503 and are closed",
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
    shutdown_timeout_s: int = Field(
        default=20, ge=1, description="seconds for running requests to finish after SIGTERM"
    )
    tls_certificate: FilePath | None = Field(
        default=None,
        description="file of the certificate chain (PEM); without it the server speaks plain HTTP",
    )
    tls_key: FilePath | None = Field(
        default=None,
        description="file of the private key of the certificate (PEM, without a password)",
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

    @model_validator(mode="after")
    def _check_tls(self) -> Self:
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


class AccessSettings(SettingsGroup):
    title: ClassVar = "Access"

    keys: Path | None = Field(
        default=None,
        description="file of the API keys; without it no API key is required",
    )
    open: bool = Field(
        default=False,
        description="allow a `BASIN_HOST` other than loopback without `BASIN_KEYS`, for use behind "
        "a proxy that authenticates clients",
    )
    allowed_hosts: Annotated[tuple[str, ...], NoDecode, BeforeValidator(split_words)] = Field(
        default=(),
        description="names that the Host header of a request may have, separated by spaces; `*` "
        "for any; not of the admin port. Addresses are always allowed. By default `localhost` "
        "where the server listens on loopback, else any",
    )
    cors_origins: Annotated[tuple[Origin, ...], NoDecode, BeforeValidator(split_words)] = Field(
        default=(),
        description="allowed CORS origins, separated by spaces; none by default",
    )
    ui: bool = Field(
        default=True, description="whether GET / shows browsers the page to try the models"
    )


class QueueSettings(SettingsGroup):
    title: ClassVar = "Queue and jobs"

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
    scheduling: Literal["steps", "requests"] = Field(
        default="steps",
        description="what the scheduler interleaves: `steps`, in batches over all requests on the "
        "same energy, or whole `requests`",
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
        default=find_state_folder() / "jobs.sqlite",
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


class CacheSettings(SettingsGroup):
    title: ClassVar = "Redis and cache"

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

    @field_validator("redis_url")
    @classmethod
    def _check_redis_url(cls, url: SecretStr | None) -> SecretStr | None:
        try:
            parse_url(url.get_secret_value() if url else "redis://")
        except ValueError:  # its message may contain the password
            raise ValueError("must be like redis://user:password@host:6379/0") from None
        return url


class LogSettings(SettingsGroup):
    title: ClassVar = "Logs and traces"

    log_level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="minimum severity of log lines"
    )
    log_format: Literal["auto", "text", "json"] = Field(
        default="auto",
        description="log lines as `text` for people, or as one object of `json` each; `auto`: text "
        "on a terminal",
    )
    tracing: bool = Field(
        default=False,
        description="export a trace of each request and job by OpenTelemetry; configured by "
        "`OTEL_EXPORTER_OTLP_ENDPOINT` and related variables",
    )
