"""Response schemas of alerts."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, Field
from pydantic.json_schema import SkipJsonSchema

from service.endpoints.common.reason_schemas import absent
from service.registry.model_ref import ModelRef
from service.validation.ids import NodeId


class Alert(BaseModel):
    """A transaction whose probability reached the threshold, which raises one alert; or a node or
    account whose probability did so, which raises another only after it was below in between."""

    node_id: NodeId
    score: float = Field(description="raw logit")
    probability: float
    threshold: float
    transaction: dict[str, Any] | SkipJsonSchema[None] = Field(
        None,
        description="its columns, as they were sent; of an account those of the transaction that "
        "caused the alert; absent of a node",
        json_schema_extra=absent,
    )
    revision: int | SkipJsonSchema[None] = Field(
        None,
        description="of the graph in which the node was scored; absent of a transaction and an "
        "account",
        json_schema_extra=absent,
    )
    digest: str | SkipJsonSchema[None] = Field(
        None, description="of that revision", json_schema_extra=absent
    )
    model: ModelRef
    scored_at: str = Field(description="time of the server")
    event_id: str = Field(description="as Last-Event-ID, or as `after`, for those that follow")


class AlertList(BaseModel):
    """Alerts in the order in which they were raised."""

    alerts: list[Alert]
    last_event_id: str = Field(description="of the last of them, else what was sent as `after`")
