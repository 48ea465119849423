"""Sends alerts to webhooks, signed as Standard Webhooks (www.standardwebhooks.com) has it."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import time
from dataclasses import replace
from typing import final

import httpx
import orjson
import structlog

from service.context import AppContext
from service.endpoints.alerts.routes import name_alert
from service.endpoints.graphs.parse import find_origin
from service.errors import Problem
from service.media_types import JSON
from service.settings import decode_webhook_secret
from service.storage.graphs import GraphKey, Webhook

_EVERY_S = 1.0
_TIMEOUT_S = 10.0
_CLAIM_S = 2 * _TIMEOUT_S
_MAX_PAUSE_S = 300.0
_AT_A_TIME = 100


def sign(secret: bytes, message_id: str, timestamp: int, body: bytes) -> str:
    """Return the header `webhook-signature`: base64 of HMAC-SHA256 of `id.timestamp.body`."""
    signed = b".".join((message_id.encode(), str(timestamp).encode(), body))
    return "v1," + base64.b64encode(hmac.digest(secret, signed, hashlib.sha256)).decode()


@final
class WebhookSender:
    """Sends each alert to the webhook of its graph, in order, until it is accepted with 2xx.

    An alert that was accepted while the server was killed is sent again: `webhook-id` tells.
    """

    def __init__(self, context: AppContext) -> None:
        self._context = context
        self._secret = b""
        if (secret := context.settings.webhook_secret) is not None:
            self._secret = decode_webhook_secret(secret.get_secret_value())
        self._tasks = dict[GraphKey, asyncio.Task[None]]()
        self._pauses = dict[GraphKey, tuple[float, float]]()  # after failures: length, and its end

    async def run(self) -> None:
        """Send until cancelled. Redirects are not followed, and proxies not used."""
        # One that is slow delays its own alerts alone.
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=20)
        client = httpx.AsyncClient(timeout=_TIMEOUT_S, limits=limits, trust_env=False)
        async with client:
            try:
                while True:
                    await asyncio.sleep(_EVERY_S)
                    try:
                        webhooks = await self._context.graphs.alerts.list_all_webhooks()
                    except Problem:
                        continue  # the store has logged why
                    self._start(client, webhooks)
            finally:
                for task in self._tasks.values():
                    task.cancel()

    def _start(self, client: httpx.AsyncClient, webhooks: list[Webhook]) -> None:
        self._tasks = {place: task for place, task in self._tasks.items() if not task.done()}
        for webhook in webhooks:
            _, pause_ends = self._pauses.get(webhook.place, (0.0, 0.0))
            if webhook.place not in self._tasks and time.monotonic() >= pause_ends:
                work = self._deliver(client, webhook)
                self._tasks[webhook.place] = asyncio.create_task(work)

    async def _deliver(self, client: httpx.AsyncClient, webhook: Webhook) -> None:
        """Send what was not delivered yet, until one is refused."""
        graphs = self._context.graphs.scoped_to(webhook.place.owner)
        graph_id = webhook.place.id
        try:
            tag = webhook.tag
            alerts = await graphs.alerts.read(graph_id, tag, webhook.delivered, _AT_A_TIME)
            for number, alert in alerts:
                if not await graphs.alerts.claim(webhook.place, "delivering", _CLAIM_S):
                    return  # another server delivers
                names = {"graph": graph_id, "key": webhook.place.owner}
                body = orjson.dumps(name_alert(tag, number, alert) | names)
                reason = await self._send(client, webhook.url, f"{tag}.{number}", body)
                number = webhook.delivered if reason else number
                await graphs.alerts.mark_delivered(webhook, number)
                self._note(webhook, reason)
                if reason:
                    return
                webhook = replace(webhook, delivered=number)
        except Problem:
            return  # the store has logged why
        except Exception as error:  # of this one: others go on
            self._note(webhook, repr(error))

    async def _send(self, client: httpx.AsyncClient, url: str, id: str, body: bytes) -> str:
        """Return why it was not delivered; blank if it was."""
        if find_origin(url) not in self._context.settings.webhook_origins:
            return "the origin is not in BASIN_WEBHOOK_ORIGINS"
        now = int(time.time())
        headers = {"content-type": JSON, "webhook-id": id, "webhook-timestamp": str(now)}
        headers["webhook-signature"] = sign(self._secret, id, now, body)
        try:
            # Of the response the status alone is read. The limit of httpx is for each part of it.
            async with (
                asyncio.timeout(_TIMEOUT_S),
                client.stream("POST", url, content=body, headers=headers) as response,
            ):
                return "" if response.is_success else f"status {response.status_code}"
        except (httpx.HTTPError, httpx.InvalidURL, TimeoutError) as error:
            return repr(error)

    def _note(self, webhook: Webhook, reason: str) -> None:
        metrics = self._context.metrics
        metrics.webhooks.labels("failed" if reason else "delivered").inc()
        if not reason:
            self._pauses.pop(webhook.place, None)
            return
        before, _ = self._pauses.get(webhook.place, (0.5, 0.0))
        pause_s = min(2 * before, _MAX_PAUSE_S)
        self._pauses[webhook.place] = pause_s, time.monotonic() + pause_s
        origin = find_origin(webhook.url)  # the rest of the URL may be a secret
        structlog.get_logger().warning(
            "webhook failed", graph=webhook.place.id, to=origin, reason=reason, again_s=pause_s
        )
