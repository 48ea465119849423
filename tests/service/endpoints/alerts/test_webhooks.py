"""Alerts that are sent to a webhook: signed, in order, again until they are accepted."""

from __future__ import annotations

from collections.abc import Iterator

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
from tests.support.watched_graphs import MODEL, MirroredGraph, wait_for_scores
from tests.support.watched_graphs import list_alerts as list_node_alerts
from tests.support.webhook_receiver import SECRET, Receiver
from training.datasets.payments import simulate_payments


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    one = Receiver(refusals=2)
    yield one
    one.close()


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


def test_alerts_of_nodes_are_delivered(start, wait, answers, checkpoints, receiver) -> None:
    mirror = MirroredGraph(checkpoints, seed=8)
    settings = {"webhook_origins": receiver.origin, "webhook_secret": SECRET}
    one = start(checkpoints=checkpoints, default_anomaly_model=MODEL, **settings)
    wait(lambda: answers(one, "/health/ready", 200))
    body = mirror.to_body(webhook=f"{receiver.origin}/hook?token=t")
    with one.client() as client:
        assert client.put("/graphs/g", json=body).status_code == 201
        assert client.get("/graphs/g").json()["alerts"] == body["alerts"]
        for _ in range(5):
            assert client.patch("/graphs/g", json=mirror.change()).status_code == 200
        wait_for_scores(one)
        alerts = list_node_alerts(client)
        wait(lambda: len(receiver.accepted) == len(alerts) > 5)
    expected = [(alert["event_id"], alert | {"graph": "g", "key": ""}) for alert in alerts]
    assert receiver.accepted == expected


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
