"""`python -m deploy.ray`: serve on the cluster that RAY_ADDRESS names, or on one of this machine
alone. `python -m deploy.ray targets FILE`: tell Prometheus where the replicas are."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import ray
from pydantic import ValidationError
from ray import serve
from starlette.middleware import Middleware

from deploy.ray import roster
from deploy.ray.again import Again
from deploy.ray.serving import application
from service.settings import Settings

_EVERY_S = 15.0


def deploy(settings: Settings, *, proxies: str = "EveryNode", **about: Any) -> None:
    """Serve on the cluster that is connected to; what was served gives way replica by replica.

    Args:
        proxies: where they listen: `EveryNode`, or `HeadOnly`.
        about: as `application` takes it.

    Raises:
        ValueError: there is no Redis.
    """
    found = application(settings, **about)
    serve.start(
        proxy_location=proxies,
        http_options={
            "host": settings.host,
            "port": settings.port,
            "middlewares": [Middleware(Again)],
        },
    )
    serve.run(found, name="basin", route_prefix="/")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m deploy.ray", description=__doc__)
    parser.add_argument("--replicas", type=int, nargs=2, metavar=("FEWEST", "MOST"), default=(1, 8))
    parser.add_argument("--backlog", type=float, default=1.0, help="seconds a replica may have")
    parser.add_argument("targets", nargs="*", metavar="targets FILE")
    asked = parser.parse_args()
    if asked.targets and (len(asked.targets) != 2 or asked.targets[0] != "targets"):
        parser.error("did you mean: targets FILE")
    address = os.environ.get("RAY_ADDRESS")
    try:
        settings = Settings()
    except ValidationError as error:
        sys.exit(str(error))
    ray.init(address=address or "local", namespace="basin")
    if asked.targets:
        while True:
            roster.write(Path(asked.targets[1]))
            time.sleep(_EVERY_S)
    try:
        deploy(settings, replicas=tuple(asked.replicas), target_s=asked.backlog)
    except ValueError as error:
        sys.exit(str(error))
    if address is None:  # with this process it would end
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        try:
            signal.pause()
        except KeyboardInterrupt:
            serve.shutdown()


if __name__ == "__main__":
    main()
