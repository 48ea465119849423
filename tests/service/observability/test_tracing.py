"""What a collector of OpenTelemetry is told, over HTTP; and a collector that is not there."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.service.endpoints.jobs.test_api import begin, over
from tests.service.endpoints.sample.test_api import body
from tests.support.server import Server, answers_with, wait_until

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


class Collector:
    """Keeps what it is sent."""

    def __init__(self) -> None:
        self.requests: list[ExportTraceServiceRequest] = []
        keep = self.requests.append

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                assert self.path == "/v1/traces"
                raw = self.rfile.read(int(self.headers["content-length"]))
                keep(ExportTraceServiceRequest.FromString(raw))
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"

    def spans(self) -> list[Any]:
        resources = [r for request in self.requests for r in request.resource_spans]
        return [s for r in resources for scope in r.scope_spans for s in scope.spans]

    def named(self, name: str) -> list[Any]:
        return [span for span in self.spans() if span.name == name]


@pytest.fixture
def collector() -> Iterator[Collector]:
    one = Collector()
    thread = threading.Thread(target=one.server.serve_forever)
    thread.start()
    yield one
    one.server.shutdown()
    one.server.server_close()
    thread.join()


def traced(start, checkpoints, monkeypatch, endpoint: str) -> Server:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint)
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "50")
    server = start(checkpoints=checkpoints, default_anomaly_model="et-small", tracing=True)
    wait_until(lambda: answers_with(server, "/health/ready", 200))
    return server


def attributes(span: Any) -> dict[str, Any]:
    kinds = ("string_value", "int_value", "double_value")
    return {
        a.key: next(getattr(a.value, k) for k in kinds if a.value.HasField(k))
        for a in span.attributes
    }


def test_a_request_and_a_job_are_told(start, checkpoints, monkeypatch, collector, sample, wait):
    server = traced(start, checkpoints, monkeypatch, collector.url)
    asked = sample(1).arrays()
    with server.client() as client:
        parent = {"traceparent": f"00-{TRACE}-{PARENT}-01", "x-request-id": "mine"}
        answer = client.post("/anomaly/score", json=asked, headers=parent)
        client.post("/anomaly/score", content=b"{", headers={"content-type": "application/json"})
        job = over(client, wait, begin(client, "/sample", body()))
    wait(lambda: collector.named("job /sample") and len(collector.named("POST /anomaly/score")) > 1)

    scored, refused = collector.named("POST /anomaly/score")
    assert (scored.trace_id.hex(), scored.parent_span_id.hex()) == (TRACE, PARENT)
    told = attributes(scored)
    assert told == {
        "basin.request_id": "mine",
        "http.request.method": "POST",
        "http.route": "/anomaly/score",
        "http.response.status_code": 200,
        "basin.model": "et-small",
        "basin.cost": told["basin.cost"],
    }
    phases = [s for s in collector.spans() if s.parent_span_id == scored.span_id]
    took = answer.json()["timings_ms"]
    assert {s.name for s in phases} == took.keys() - {"total"}
    lasted_ms = defaultdict[str, float](float)
    for span in phases:
        assert span.trace_id == scored.trace_id
        assert scored.start_time_unix_nano <= span.start_time_unix_nano
        assert span.end_time_unix_nano <= scored.end_time_unix_nano
        lasted_ms[span.name] += (span.end_time_unix_nano - span.start_time_unix_nano) / 1e6
    del lasted_ms["encode"]  # which ends after it is measured
    assert lasted_ms == pytest.approx({name: took[name] for name in lasted_ms}, abs=0.01)
    ends = {s.name: (s.start_time_unix_nano, s.end_time_unix_nano) for s in phases}
    assert ends["queue"][1] <= ends["compute"][0] + 1
    assert ends["compute"][1] <= ends["encode"][0] + 1

    assert attributes(refused)["basin.problem"] == "invalid-json"
    [ran] = collector.named("job /sample")
    assert attributes(ran)["basin.request_id"] == job["request_id"]
    [resource] = {
        r.resource.SerializeToString() for q in collector.requests for r in q.resource_spans
    }
    assert b"service.name" in resource
    assert b"basin" in resource
    lines = [line for line in server.log_lines() if line.get("request_id") == "mine"]
    assert [line["trace_id"] for line in lines] == [TRACE]
    for request in collector.requests:  # no payload leaves
        assert b"node_ids" not in request.SerializeToString()


def test_a_collector_that_is_not_there_holds_nobody_up(start, checkpoints, monkeypatch, sample):
    server = traced(start, checkpoints, monkeypatch, "http://127.0.0.1:9")
    with server.client() as client:
        for _ in range(20):
            assert client.post("/anomaly/score", json=sample(1).arrays()).status_code == 200
    server.process.terminate()
    assert server.process.wait(15) == 0
