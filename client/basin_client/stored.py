"""Deprecated name of `basin_client.graph_operations`; removed in the next release."""

import warnings

from basin_client.graph_operations import *  # noqa: F403

warnings.warn(
    "basin_client.stored is now basin_client.graph_operations", DeprecationWarning, stacklevel=2
)
