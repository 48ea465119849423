"""API keys as stored in the key file: name, permissions, limits and hashes of the secret.

One round of SHA-256 is enough, because a secret has 256 random bits and cannot be guessed. Slow
hashes protect passwords, and would make every request slow.
"""

from __future__ import annotations

import hashlib
import re
import secrets
import time
from typing import Annotated, Literal, final

from pydantic import AfterValidator, AwareDatetime, BaseModel, ConfigDict, Field, StringConstraints
from starlette.types import Scope

from service.storage.limiter import TokenBucket

SECRET_PREFIX = "basin_"  # scanners for leaked secrets recognize keys by it
SECRET_PATTERN = re.compile(rf"{SECRET_PREFIX}[A-Za-z0-9_-]{{43}}")
ADMIN_PREFIX = "/admin"  # of paths of the admin port in `routes`; `*` covers the public port alone
ALL = "*"

Name = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9_-]{0,63}$")]
Hash = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
Route = Annotated[
    str,
    StringConstraints(pattern=r"^((GET|PUT|POST|PATCH|DELETE) )?(/[a-z0-9._-]+)+$", max_length=200),
]
Model = Annotated[str, StringConstraints(pattern=r"^[^/*\s]+$", max_length=200)]


def _distinct(hashes: tuple[str, ...]) -> tuple[str, ...]:
    if len(set(hashes)) < len(hashes):
        raise ValueError("each hash must be unique")
    return hashes


class _Entry(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)


@final
class RateLimit(_Entry):
    """Requests per second, and the maximum burst."""

    per_second: float = Field(gt=0, allow_inf_nan=False)
    burst: float = Field(ge=1, allow_inf_nan=False)

    @property
    def bucket(self) -> TokenBucket:
        return TokenBucket(self.burst, self.per_second)


@final
class Quota(_Entry):
    """Cost in tokens x steps, which is refilled evenly over `seconds`."""

    cost: float = Field(gt=0, allow_inf_nan=False)
    seconds: float = Field(gt=0, allow_inf_nan=False)

    @property
    def bucket(self) -> TokenBucket:
        return TokenBucket(self.cost, self.cost / self.seconds)


@final
class ApiKey(_Entry):
    """Permissions and limits of one client; it has several hashes while its secret is rotated."""

    name: Name
    sha256: Annotated[tuple[Hash, ...], Field(min_length=1), AfterValidator(_distinct)]
    routes: Literal["*"] | tuple[Route, ...]
    models: Literal["*"] | tuple[Model, ...]
    expires: AwareDatetime | None = None
    rate: RateLimit | None = None
    quota: Quota | None = None

    @property
    def is_expired(self) -> bool:
        return self.expires is not None and self.expires.timestamp() <= time.time()

    @property
    def has_all_routes(self) -> bool:
        """Whether it is for every route of the public port, as a client's may be; the key of an
        operator names its routes."""
        return self.routes == ALL

    @property
    def model_names(self) -> frozenset[str] | None:
        """Names of the allowed models; None for all."""
        return None if self.models == ALL else frozenset(self.models)

    @property
    def cache_scope(self) -> bytes:
        """Prefix of cache keys: separates API keys, and a key from itself with other `models`."""
        return self.model_dump_json(include={"name", "models"}).encode()

    def allows(self, method: str, path: str) -> bool:
        """Whether the key allows this request. `/jobs` allows `/jobs/1` too; `GET /jobs` only
        reading."""
        if self.has_all_routes:
            return not _within(path, ADMIN_PREFIX)
        return any(_matches(route, method, path) for route in self.routes)


def _matches(route: str, method: str, path: str) -> bool:
    verb, _, start = route.rpartition(" ")
    return verb in ("", method) and _within(path, start)


def _within(path: str, start: str) -> bool:
    return path == start or path.startswith(f"{start}/")


ANONYMOUS = ApiKey.model_construct(name="", sha256=(), routes=ALL, models=ALL)
"""Stands for every client where no API keys are required."""


def get_caller(scope: Scope) -> ApiKey:
    """Return the key that `AuthMiddleware` found for a request; `ANONYMOUS` without one."""
    return scope["user"]


def new_secret() -> str:
    return SECRET_PREFIX + secrets.token_urlsafe(32)


def hash_secret(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()
