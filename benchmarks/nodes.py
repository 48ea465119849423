"""Several Ray nodes on one machine, for as long as a context lasts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def cluster(count: int = 2, cpus: int = 1) -> Iterator[Any]:
    """A `ray.cluster_utils.Cluster`; its `address` is where to connect to."""
    from ray.cluster_utils import Cluster

    about = {"num_cpus": cpus, "object_store_memory": 256 << 20}
    found = Cluster(initialize_head=True, head_node_args=about | {"include_dashboard": False})
    try:
        for _ in range(count - 1):
            found.add_node(**about)
        yield found
    finally:
        found.shutdown()
