"""Export traces of requests and jobs to an OpenTelemetry collector."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import final

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import SpanKind, StatusCode, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from service.observability.stopwatch import StageTimer

_CLOSE_S = 2.0


@final
class TraceExporter:
    """Exports spans once they have ended, from a background thread. Endpoint, sampling and service
    name come from the environment variables of OpenTelemetry (`OTEL_EXPORTER_OTLP_ENDPOINT` etc.).

    No request waits for the collector: spans that it does not accept are dropped.
    """

    def __init__(self) -> None:
        resource = Resource({"service.name": "basin"}).merge(OTELResourceDetector().detect())
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        self._tracer = self._provider.get_tracer("basin")
        self._propagator = TraceContextTextMapPropagator()

    def export_request(
        self,
        watch: StageTimer,
        about: Mapping[str, str | int | float | None],
        headers: Mapping[str, str],
    ) -> str:
        """Export a finished request; return the id of its trace, from `traceparent` or new."""
        name = f"{about['method']} {about['route']}"
        return self._export(name, SpanKind.SERVER, watch, about, headers)

    def export_job(self, watch: StageTimer, about: Mapping[str, str | int | float | None]) -> str:
        """Export a finished job as a separate trace with the `request_id` of its request."""
        return self._export(f"job {about['route']}", SpanKind.CONSUMER, watch, about, {})

    def close(self) -> None:
        """Send the remaining spans, for at most `_CLOSE_S`."""
        ending = threading.Thread(target=self._provider.shutdown, daemon=True)
        ending.start()
        ending.join(_CLOSE_S)

    def _export(
        self,
        name: str,
        kind: SpanKind,
        watch: StageTimer,
        about: Mapping[str, str | int | float | None],
        headers: Mapping[str, str],
    ) -> str:
        begun = watch.start_ns
        parent = self._propagator.extract(headers)
        attributes = {
            _ATTRIBUTES.get(k, f"basin.{k}"): v for k, v in about.items() if v is not None
        }
        span = self._tracer.start_span(name, parent, kind, attributes, start_time=begun)
        if int(about["status"] or 0) >= 500:
            span.set_status(StatusCode.ERROR)
        inside = set_span_in_context(span)
        for phase, first, last in watch.spans:
            part = self._tracer.start_span(phase, inside, start_time=begun + _ns(first))
            part.end(begun + _ns(last))
        span.end(begun + _ns(watch.elapsed_s()))
        return f"{span.get_span_context().trace_id:032x}"


_ATTRIBUTES = {
    "method": "http.request.method",
    "route": "http.route",
    "status": "http.response.status_code",
}
"""Names of the semantic conventions of OpenTelemetry."""


def _ns(seconds: float) -> int:
    return round(1e9 * seconds)
