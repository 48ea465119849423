"""The parts of a request that its response depends on, for running it later."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

from python_multipart.multipart import parse_options_header
from starlette.requests import Request

_HEADERS = (  # that routes which compute look at
    *("accept", "content-encoding", "content-type"),
    "inference-header-content-length",
)


@dataclass(frozen=True)
class StoredRequest:
    """A request without its body, with the headers that the response depends on; no credentials."""

    method: str
    path: str
    query: bytes
    headers: tuple[tuple[str, str], ...]

    @classmethod
    def from_request(cls, request: Request) -> StoredRequest:
        scope = request.scope
        headers = [pair for pair in request.headers.items() if pair[0] in _HEADERS]
        return cls(scope["method"], scope["path"], scope["query_string"], tuple(headers))

    def fingerprint(self, body: bytes) -> bytes:
        """Return the sha256 of all parts, each with its length.

        Clients choose a random multipart boundary for each request, so the boundary does not count.
        """
        digest = hashlib.sha256()
        for part in self._parts(body):
            digest.update(len(part).to_bytes(8))
            digest.update(part)
        return digest.digest()

    def _parts(self, body: bytes) -> Iterator[bytes]:
        yield from (self.method.encode(), self.path.encode(errors="surrogatepass"), self.query)
        boundary = b""
        for name, value in self.headers:
            encoded = value.encode("latin-1")
            if name == "content-type" and value.lower().startswith("multipart/"):
                kind, options = parse_options_header(value)
                if kind == b"multipart/form-data" and (boundary := options.get(b"boundary", b"")):
                    encoded = kind
            yield name.encode()
            yield encoded
        yield b""  # no name of a header, so that what follows is the body
        yield from body.split(b"--" + boundary) if boundary else (body,)
