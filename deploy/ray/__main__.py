"""`python -m deploy.ray`: serve on the cluster that RAY_ADDRESS names, or on one of this machine
alone. `python -m deploy.ray targets FILE`: tell Prometheus where the replicas are."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import ray
from deploy.ray import roster
from deploy.ray.serving import application
from ray import serve
from service.http.server import settings_or_exit
from service.settings import Settings

_EVERY_S = 15.0
RUNTIME = {
    "env_vars": {
        "RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH": "deploy.ray.retry:middlewares",
        # The replica of the proxy's own node would have all until it can have no more.
        "RAY_SERVE_PROXY_PREFER_LOCAL_NODE_ROUTING": "0",
    }
}
"""Of the job that serves: what its proxies are told as they start."""


def deploy(settings: Settings, *, proxies: str = "EveryNode", **about: Any) -> None:
    """Serve on the cluster that is connected to, with `RUNTIME`; what was served gives way replica
    by replica. Proxies stay as they are where there are any.

    Args:
        proxies: where they listen: `EveryNode`, or `HeadOnly`.
        about: as `application` takes it.

    Raises:
        ValueError: as `application` does.
    """
    found = application(settings, **about)
    serve.start(
        proxy_location=proxies,
        logging_config={"enable_access_log": False},
        http_options={
            "host": settings.host,
            "port": settings.port,
            "ssl_certfile": settings.tls_certificate and str(settings.tls_certificate),
            "ssl_keyfile": settings.tls_key and str(settings.tls_key),
        },
    )
    serve.run(found, name="basin", route_prefix="/")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m deploy.ray", description=__doc__)
    parser.add_argument("--replicas", type=int, nargs=2, metavar=("FEWEST", "MOST"), default=(1, 8))
    parser.add_argument("--backlog", type=float, default=1.0, help="seconds a replica may have")
    parser.add_argument("targets", nargs="*", metavar="targets FILE")
    asked = parser.parse_args()
    address, fewest = os.environ.get("RAY_ADDRESS"), asked.replicas[0]
    if asked.targets and (len(asked.targets) != 2 or asked.targets[0] != "targets"):
        parser.error("did you mean: targets FILE")
    if asked.targets and address is None:
        parser.error("RAY_ADDRESS: which cluster?")
    if not 1 <= fewest <= asked.replicas[1] or asked.backlog <= 0:
        parser.error("there is at least one replica, and some backlog")
    settings = settings_or_exit()
    # A cluster of this machine alone: anyone who reaches its ports controls it.
    alone: dict[str, Any] = {"_node_ip_address": "127.0.0.1"} if address is None else {}
    ray.init(address=address or "local", namespace="basin", runtime_env=RUNTIME, **alone)
    while asked.targets:
        roster.write(Path(asked.targets[1]))
        time.sleep(_EVERY_S)
    try:
        deploy(settings, replicas=tuple(asked.replicas), target_s=asked.backlog)
    except ValueError as error:
        sys.exit(str(error))
    if address is None:  # with this process it would end
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        with suppress(KeyboardInterrupt):
            signal.pause()
        serve.shutdown()


if __name__ == "__main__":
    main()
