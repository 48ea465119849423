"""POST /sample"""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import Annotated

from fastapi import APIRouter, Depends, Request, Response

from models.base import StepControl
from service.context import AppContext, get_context
from service.endpoints.common.api_docs import (
    binary_response,
    job_responses,
    json_or_tensors_body,
    list_tensors,
    problems,
    schema_name,
)
from service.endpoints.common.memory_schemas import WORK_PER_COST
from service.endpoints.pipeline import InferenceTask, handle_inference
from service.endpoints.sample.encode import encode_samples
from service.endpoints.sample.infer import Sampled, sample
from service.endpoints.sample.parse import TENSORS, SampleInputs, parse_sample
from service.endpoints.sample.schemas import SampleRequest, SampleResponse, TensorSampleRequest
from service.engine.engine import Workload
from service.errors import Problem
from service.http.body import require_media_type, require_small
from service.http.negotiation import select_media_type
from service.media_types import JSON, PNG, SAFETENSORS
from service.payload import (
    ResponsePayload,
)

router = APIRouter(tags=["sample"])
_BODY = json_or_tensors_body(
    f"JSON, or a safetensors file with any of the tensors {list_tensors(TENSORS)}. The entry "
    "`request` of its `__metadata__` holds the rest as JSON text, after the schema "
    f"{schema_name(TensorSampleRequest)}.",
    SampleRequest,
)


@router.post(
    "/sample",
    response_model=SampleResponse,
    response_model_exclude_unset=True,
    summary="Sample from a memory",
    responses=problems(400, 404, 406, 408, 413, 415, 422, 429, 500, 504)
    | job_responses()
    | binary_response(SAFETENSORS, PNG),
    openapi_extra=_BODY,
)
async def sample_memory(
    request: Request, context: Annotated[AppContext, Depends(get_context)]
) -> Response:
    """Langevin chains on the modern Hopfield energy of a memory, which needs no training.

    The answer comes as JSON, as a safetensors file (tensor `samples`, or `samples_0` and so on
    for a list of beta; the rest as JSON in the metadata entry `response`), or, for images, as a
    PNG of all samples (the rest in its text chunk `basin`), by the Accept header.
    """
    media_type = require_media_type(request, (JSON, SAFETENSORS), f"{JSON} and {SAFETENSORS}")
    accept = select_media_type(request, (JSON, SAFETENSORS, PNG))
    return await handle_inference(request, SampleTask(request, context, media_type, accept))


class SampleTask(InferenceTask[Sampled]):
    """Run Langevin chains on one memory, stored or sent."""

    inputs: SampleInputs

    async def fingerprint(self, body: bytes) -> bytes:
        return await self.context.memories_fingerprint()

    async def parse(self, body: bytes, resources: AsyncExitStack) -> None:
        require_small(body, self.content_type)
        memories = self.context.memories
        self.inputs = await self.on_codec(
            parse_sample, body, self.content_type, memories, self.settings
        )
        if self.accept == PNG and self.inputs.memory.codec.kind != "images":
            detail = "Only a memory of images can be answered with image/png; accept another type."
            raise Problem("not-acceptable", detail)
        self.state.timer.lap("parse")

    def workload(self) -> Workload:
        return Workload(flow="sample", cost=self.inputs.work / WORK_PER_COST)

    def run(self, control: StepControl) -> Sampled:
        return sample(self.inputs, self.state.progress, control)

    async def render(self, result: Sampled) -> ResponsePayload:
        inputs, metrics = self.inputs, self.context.metrics
        payload = await self.on_codec(encode_samples, inputs, result, self.accept)
        num_batches = len(result.batches)
        metrics.observe_samples(
            kind=inputs.memory.codec.kind,
            method=inputs.method.value,
            num_samples=inputs.count * num_batches,
            num_steps=inputs.chains * inputs.schedule.num_steps * num_batches,
            acceptance=[batch.diagnostics["acceptance"] for batch in result.batches],
        )
        return payload
