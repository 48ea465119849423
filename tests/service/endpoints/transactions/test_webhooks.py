"""Alerts that are sent to a webhook: signed, in order, again until they are accepted."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from pydantic import ValidationError

from service.endpoints.graphs.parse import find_origin
from service.settings import Settings
from tests.support.live_transactions import (
    GRAPH,
    SETTINGS,
    THRESHOLD,
    add,
    list_alerts,
)
from tests.support.server import gauge
from training.datasets.payments import simulate_payments

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

    def accept(self, path: str, headers: dict[str, str], body: bytes) -> bool:
        """Keep an alert, if its signature is right."""
        headers = {name.lower(): value for name, value in headers.items()}
        signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
        expected = base64.b64encode(hmac.digest(KEY, signed, hashlib.sha256)).decode()
        if (path, headers["webhook-signature"]) != ("/hook?token=t", f"v1,{expected}"):
            return False
        self.accepted.append((headers["webhook-id"], json.loads(body)))
        return True


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    one = Receiver(refusals=2)
    yield one
    one.server.shutdown()
    one.server.server_close()


def test_each_alert_is_delivered_over_refusals_and_kill(
    start, wait, answers, tmp_path, receiver
) -> None:
    frame = simulate_payments(1000, fraud_share=0.05, seed=5)
    rows = frame.drop(columns=["is_fraud", "typology"]).to_dict("records")
    settings = SETTINGS | {"graph_store": tmp_path / "graphs.sqlite"}
    settings |= {"webhook_origins": receiver.origin, "webhook_secret": SECRET}
    one = start(**settings)
    wait(lambda: answers(one, "/health/ready", 200))
    with one.client() as client:
        for url in ("http://169.254.169.254/", f"{receiver.origin}@elsewhere.org/", "file:///etc"):
            refused = client.put("/graphs/g", json=GRAPH | {"webhook": url})
            assert refused.status_code == 422
            assert "BASIN_WEBHOOK_ORIGINS" in refused.json()["errors"][0]["detail"]
        graph = GRAPH | {"webhook": f"{receiver.origin}/hook?token=t"}
        assert client.put("/graphs/g", json=graph).status_code == 201
        assert client.get("/graphs/g").json()["webhook"] == graph["webhook"]
        add(client, rows[:500])
        wait(lambda: len(receiver.accepted) > 0)
        assert receiver.refused == 2
        assert gauge(one, 'basin_webhooks_total{outcome="failed"}') == 2
    assert "token=t" not in one.log.read_text()
    one.process.kill()
    two = start(**settings)
    wait(lambda: answers(two, "/health/ready", 200))
    with two.client() as client:
        add(client, rows[500:])
        alerts = list_alerts(client)
        wait(lambda: len({name for name, _ in receiver.accepted}) == len(alerts))
    sent = dict(receiver.accepted)  # one may have been accepted while the server was killed
    assert len(receiver.accepted) <= len(sent) + 1
    assert list(sent) == [alert["event_id"] for alert in alerts]
    assert list(sent.values()) == [alert | {"graph": "g", "key": ""} for alert in alerts]
    assert all(body["probability"] >= THRESHOLD for body in sent.values())


@pytest.mark.parametrize(
    ("url", "origin"),
    [
        ("https://a.b/c?d", "https://a.b"),
        ("http://a.b:80/", "http://a.b:80"),
        ("https://user:pass@a.b/", ""),
        ("http://[::1]:9000/x", "http://[::1]:9000"),
        ("https://a.b:port/", ""),
        ("https://[::1", ""),
        ("a.b", ""),
    ],
)
def test_origins(url: str, origin: str) -> None:
    assert find_origin(url) == origin


@pytest.mark.parametrize("secret", [None, "short", "whsec_" + "A" * 12, "whsec_%"])
def test_a_secret_is_needed(secret: str | None) -> None:
    given = {} if secret is None else {"webhook_secret": secret}
    with pytest.raises(ValidationError, match="BASIN_WEBHOOK_SECRET"):
        Settings.model_validate({"webhook_origins": "https://a.b", **given})
