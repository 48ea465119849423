"""The keys there are: a file, read again whenever it has changed."""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Callable
from pathlib import Path
from typing import final

import structlog
from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from service.auth.keys import ApiKey, hash_secret

_EVERY_S = 0.5
_MAX_BYTES = 4 << 20
_MAX_FAULTS = 5


class ApiKeyFileError(Exception):
    """The key file cannot be read or is not valid."""


class KeyFile(BaseModel):
    """Content of the key file."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    keys: tuple[ApiKey, ...]

    @model_validator(mode="after")
    def _each_once(self) -> KeyFile:
        names = [key.name for key in self.keys]
        hashes = [known for key in self.keys for known in key.sha256]
        if len(set(names)) < len(names) or len(set(hashes)) < len(hashes):
            raise ValueError("each name and each hash must be unique")
        return self


def parse_key_file(raw: bytes) -> KeyFile:
    """Parse a key file.

    Raises:
        ApiKeyFileError: names fields and rules, never values.
    """
    try:
        return KeyFile.model_validate_json(raw)
    except ValidationError as error:
        raise ApiKeyFileError(format_validation_errors(error)) from None


def format_validation_errors(error: ValidationError) -> str:
    """Return the fields and the rules that they break, never their values."""
    errors = error.errors(include_url=False, include_context=False, include_input=False)
    return "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in errors[:_MAX_FAULTS])


@final
class ApiKeyStore:
    """API keys of a file, as of the last time that it was valid.

    Raises:
        ApiKeyFileError: the file cannot be read or is not valid at start-up.
    """

    def __init__(self, path: Path, on_fault: Callable[[], object] = lambda: None) -> None:
        self._path, self._on_fault = path, on_fault
        self._raw = self._read()
        self._keys = parse_key_file(self._raw).keys
        self._fault = ""

    def find_by_secret(self, secret: str) -> ApiKey | None:
        """Return the key with this secret, in a time that does not depend on which key it is."""
        digest, match = hash_secret(secret), None
        for key in self._keys:
            for known in key.sha256:
                if hmac.compare_digest(known, digest):
                    match = key
        return match

    def find_by_name(self, name: str) -> ApiKey | None:
        return next((key for key in self._keys if key.name == name), None)

    def list_expiries(self) -> dict[str, float]:
        """Return when each key that has an expiry expires, in seconds since 1970, by name."""
        return {key.name: key.expires.timestamp() for key in self._keys if key.expires is not None}

    def reload(self) -> None:
        """Read the file again; if it is not valid, keep the old keys."""
        try:
            raw = self._read()
            if raw != self._raw:
                self._keys, self._raw = parse_key_file(raw).keys, raw
                structlog.get_logger().info("keys read", count=len(self._keys))
            self._fault = ""
        except ApiKeyFileError as error:
            if str(error) != self._fault:  # log each fault once
                self._fault = str(error)
                self._on_fault()
                structlog.get_logger().error("keys refused, the old ones hold", reason=self._fault)

    async def watch(self) -> None:
        """Reload the file periodically, until cancelled."""
        while True:
            await asyncio.sleep(_EVERY_S)
            try:
                await asyncio.to_thread(self.reload)
            except Exception:  # keep watching, so that a key can still be revoked later
                structlog.get_logger().exception("keys refused, the old ones hold")
                self._on_fault()

    def _read(self) -> bytes:
        try:
            with self._path.open("rb") as file:
                raw = file.read(_MAX_BYTES + 1)
        except OSError as error:
            raise ApiKeyFileError(f"{self._path}: {error.strerror}") from None
        if len(raw) > _MAX_BYTES:
            raise ApiKeyFileError(f"{self._path}: the file is larger than {_MAX_BYTES} bytes")
        return raw
