"""Deprecated name of `basin_client.operations`; removed in the next release."""

import warnings

from basin_client.operations import *  # noqa: F403
from basin_client.responses import completion_from_dict as completed_of  # noqa: F401
from basin_client.responses import decode_image as picture_of  # noqa: F401

warnings.warn("basin_client.asks is now basin_client.operations", DeprecationWarning, stacklevel=2)
