"""A server to which alerts are sent."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

KEY = bytes(range(32))
SECRET = "whsec_" + base64.b64encode(KEY).decode()


class Receiver:
    """Accepts alerts, after it has refused the first ones."""

    def __init__(self, refusals: int) -> None:
        self.accepted = list[tuple[str, dict[str, Any]]]()
        self.refused = 0
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                if receiver.refused < refusals:
                    receiver.refused += 1
                    self.send_response(302 if receiver.refused % 2 else 500)
                    self.send_header("location", "/elsewhere")
                elif receiver.accept(self.path, dict(self.headers), body):
                    self.send_response(204)
                else:  # or cut off, by kill -9
                    self.send_response(401)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None: ...

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.origin = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()

    def accept(self, path: str, headers: dict[str, str], body: bytes) -> bool:
        """Keep an alert, if its signature is right."""
        headers = {name.lower(): value for name, value in headers.items()}
        signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
        expected = base64.b64encode(hmac.digest(KEY, signed, hashlib.sha256)).decode()
        if (path, headers["webhook-signature"]) != ("/hook?token=t", f"v1,{expected}"):
            return False
        self.accepted.append((headers["webhook-id"], json.loads(body)))
        return True
