"""The server as a deployment of Ray Serve, with as many replicas as the work wants."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, final

import structlog

import ray
from deploy.ray.roster import roster
from ray import serve
from ray.serve.config import AutoscalingConfig, AutoscalingContext, AutoscalingPolicy
from service.http.server import SecondaryPort, prepare_process, uvicorn_config
from service.settings import Settings, is_loopback

if TYPE_CHECKING:
    from fastapi import FastAPI

    from ray.serve import Application

BACKLOG = "backlog_s"
_LOADED_EVERY_S, _TOLD_EVERY_S = 0.1, 10.0


@final
class Wanted:
    """Replicas that would each have `target_s` seconds of compute before them, of what all have
    now: the cost of what is admitted by the time that the like of it took, which a count of
    requests does not tell where one costs a thousand times as much as another."""

    def __init__(self, target_s: float) -> None:
        self._target_s = target_s

    def __call__(self, context: AutoscalingContext) -> tuple[float, dict[str, Any]]:
        told = (context.aggregated_metrics or {}).get(BACKLOG, {})
        return sum(told.values()) / self._target_s, {}


def application(
    settings: Settings, *, replicas: tuple[int, int] = (1, 8), target_s: float = 1.0
) -> Application:
    """What `ray.serve.run` takes.

    Args:
        settings: of every replica; jobs, stored graphs, cached answers, limits and quotas are one
            for all of them, in Redis.
        replicas: fewest, at least 1, and most.
        target_s: seconds of compute that a replica may have before it, see `Wanted`.

    Raises:
        ValueError: there is no Redis, or something is set that means nothing here.
    """
    if settings.redis_url is None:
        raise ValueError("BASIN_REDIS_URL: replicas need a Redis that has what they share")
    if settings.admin_port is not None:
        raise ValueError("BASIN_ADMIN_PORT: of many replicas it would reach one")

    def app() -> FastAPI:
        from service.app import create_app
        from service.observability import logs

        logs.configure(settings.log_level)
        return create_app(prepare_process(settings))

    if ":" in settings.device:
        raise ValueError("BASIN_DEVICE: cuda or cpu; which GPU a replica has, Ray says")
    actor = {"num_cpus": settings.threads or 1, "num_gpus": settings.device.startswith("cuda")}

    @serve.deployment(
        name="server",
        ray_actor_options=actor,
        max_ongoing_requests=settings.max_connections,
        graceful_shutdown_timeout_s=settings.deadline_s + settings.shutdown_timeout_s + 5,
        health_check_period_s=5,
        logging_config={"enable_access_log": False, "log_level": "WARNING"},  # Basin has its own
        autoscaling_config=AutoscalingConfig(
            min_replicas=replicas[0],
            max_replicas=replicas[1],
            metrics_interval_s=1,
            look_back_period_s=5,
            upscale_delay_s=5,
            downscale_delay_s=300,
            policy=AutoscalingPolicy(policy_function=Wanted, policy_kwargs={"target_s": target_s}),
        ),
    )
    @serve.ingress(app)
    class Server:
        """One process; Ray asks it how it is before anybody is sent to it."""

        app: FastAPI
        _watched: list[asyncio.Task[None]] | None = None

        async def check_health(self) -> None:
            context = self.app.state.context
            while not context.registry.settled:
                await asyncio.sleep(_LOADED_EVERY_S)
            context.registry.require_ready()
            if self._watched is None:
                self._watched = _watched(context)

        def record_autoscaling_stats(self) -> dict[str, float]:
            return {BACKLOG: self.app.state.context.engine.backlog_s}

    return Server.bind()


def _watched(context: Any) -> list[asyncio.Task[None]]:
    """A port for Prometheus alone: behind the proxies any replica might answer."""
    from service.app import create_health_app

    settings: Settings = context.settings
    host = settings.host if is_loopback(settings.host) else ray.util.get_node_ip_address()
    plain = settings.model_copy(update={"tls_certificate": None, "tls_key": None})
    beside = SecondaryPort(uvicorn_config(create_health_app(context), host, 0, plain))
    address = "{}:{}".format(*beside.address)
    return [
        asyncio.create_task(beside.run()),
        asyncio.create_task(_tell(serve.get_replica_context().replica_id.unique_id, address)),
    ]


async def _tell(replica: str, address: str) -> None:
    """Report to the roster periodically; a lost report is repeated."""

    def tell() -> None:
        ray.get(roster().enter.remote(replica, address), timeout=_TOLD_EVERY_S)

    while True:
        try:
            await asyncio.to_thread(tell)
        except Exception as error:  # of Ray; it is for Prometheus alone
            structlog.get_logger().warning("roster not reached", reason=repr(error))
            roster.cache_clear()
        await asyncio.sleep(_TOLD_EVERY_S)
