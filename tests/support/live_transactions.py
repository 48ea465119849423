"""Store transactions on a server, and read their scores and alerts."""

from __future__ import annotations

from typing import Any

import httpx

from service.endpoints.alerts.schemas import AlertList
from service.endpoints.transactions.schemas import TransactionScores

MODEL = "cdat-payments"
SETTINGS = {"models": MODEL, "default_anomaly_model": MODEL}
THRESHOLD = 0.02  # low, so that there are many alerts
GRAPH = {"model": MODEL, "threshold": THRESHOLD}


def add(client: httpx.Client, rows: list[dict[str, Any]], **fields: Any) -> dict[str, Any]:
    response = client.post("/graphs/g/transactions", json={"transactions": rows, **fields})
    assert response.status_code == 200, response.text
    body = response.json()
    TransactionScores.model_validate_json(response.content)
    return body


def list_alerts(client: httpx.Client, after: str | None = None) -> list[dict[str, Any]]:
    alerts = []
    while True:
        parameters = {"limit": 7} | ({} if after is None else {"after": after})
        response = client.get("/graphs/g/alerts", params=parameters)
        page = AlertList.model_validate_json(response.content)
        if not page.alerts:
            return alerts
        alerts += response.json()["alerts"]
        after = page.last_event_id


def score_at_once(client: httpx.Client, rows: list[dict[str, Any]]) -> dict[str, float]:
    """The probabilities of all rows, sent in one request that stores nothing."""
    response = client.post("/anomaly/score", json={"model": MODEL, "transactions": rows})
    return {result["node_id"]: result["probability"] for result in response.json()["results"]}
