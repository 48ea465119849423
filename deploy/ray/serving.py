"""The server as a deployment of Ray Serve, with as many replicas as the work wants."""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING, Any

import ray
import uvicorn
from ray import serve
from ray.serve.config import AutoscalingConfig, AutoscalingContext, AutoscalingPolicy

from deploy.ray.roster import roster
from service.settings import Settings

if TYPE_CHECKING:
    from fastapi import FastAPI
    from ray.serve import Application

BACKLOG = "backlog_s"
_LOADED_EVERY_S = 0.1


def wanted(context: AutoscalingContext, target_s: float = 1.0) -> tuple[float, dict[str, Any]]:
    """Replicas that would each have `target_s` seconds of compute before them, of what all have
    now: the cost of what is admitted by the time that the like of it took, which a count of
    requests does not tell where one costs a thousand times as much as another."""
    told = (context.aggregated_metrics or {}).get(BACKLOG, {})
    return sum(told.values()) / target_s, {}


def application(
    settings: Settings, *, replicas: tuple[int, int] = (1, 8), target_s: float = 1.0
) -> Application:
    """What `ray.serve.run` takes.

    Args:
        settings: of every replica; jobs, stored graphs, cached answers, limits and quotas are one
            for all of them, in Redis.
        replicas: fewest and most.
        target_s: seconds of compute that a replica may have before it, see `wanted`.

    Raises:
        ValueError: there is no Redis.
    """
    if settings.redis_url is None:
        raise ValueError("BASIN_REDIS_URL: replicas need a Redis that has what they share")

    def app() -> FastAPI:
        from service import logs
        from service.main import create_app

        logs.configure(settings.log_level)
        return create_app(settings)

    @serve.deployment(
        name="server",
        ray_actor_options={"num_cpus": settings.threads or 1},
        max_ongoing_requests=settings.max_connections,
        graceful_shutdown_timeout_s=settings.shutdown_timeout_s + 5,
        health_check_period_s=5,
        autoscaling_config=AutoscalingConfig(
            min_replicas=replicas[0],
            max_replicas=replicas[1],
            metrics_interval_s=1,
            look_back_period_s=5,
            upscale_delay_s=5,
            downscale_delay_s=300,
            policy=AutoscalingPolicy(
                policy_function=wanted, policy_kwargs={"target_s": target_s}
            ),
        ),
    )
    @serve.ingress(app)
    class Server:
        """One process; Ray asks it how it is before anybody is sent to it."""

        app: FastAPI
        _watched: asyncio.Task[None] | None = None

        async def check_health(self) -> None:
            services = self.app.state.services
            if self._watched is None:
                while not services.registry.settled:
                    await asyncio.sleep(_LOADED_EVERY_S)
                self._watch(services)
            services.registry.require_ready()
            me = serve.get_replica_context().replica_id.unique_id
            roster().enter.remote(me, self._address)

        def _watch(self, services: Any) -> None:
            """A port for Prometheus alone: behind the proxies nobody knows who answers."""
            from service.main import create_watched

            host = ray.util.get_node_ip_address()
            place = socket.create_server((host if settings.host != "127.0.0.1" else "127.0.0.1", 0))
            self._address = "{}:{}".format(*place.getsockname())
            config = uvicorn.Config(
                create_watched(services), lifespan="off", log_config=None, access_log=False
            )
            server = uvicorn.Server(config)
            server.install_signal_handlers = lambda: None  # pyright: ignore
            self._watched = asyncio.get_running_loop().create_task(server.serve([place]))

        def record_autoscaling_stats(self) -> dict[str, float]:
            return {BACKLOG: self.app.state.services.engine.backlog_s}

    return Server.bind()
