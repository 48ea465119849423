"""Deprecated name of `basin_client.operations`; removed in the next release."""

import warnings

from basin_client import responses
from basin_client.operations import *  # noqa: F403

completed_of = responses.completion_from_dict
picture_of = responses.decode_image

warnings.warn("basin_client.asks is now basin_client.operations", DeprecationWarning, stacklevel=2)
