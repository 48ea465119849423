"""What an alert says."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import orjson

_OF_RESULT = ("node_id", "score", "probability", "threshold")


def encode_alert(result: Mapping[str, Any], model: Mapping[str, Any], **more: Any) -> bytes:
    """Return the alert of a result of `POST /anomaly/score` as JSON, scored now by `model`."""
    now = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    alert = {name: result[name] for name in _OF_RESULT} | more
    return orjson.dumps(
        alert | {"model": model, "scored_at": now}, option=orjson.OPT_SERIALIZE_NUMPY
    )
