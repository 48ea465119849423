"""Send numbers at the ends of what can be represented, and broken files, to every route.

    python -m tests.support.fuzz_numbers --requests 100000 --seed 1 [--first 0] [--server URL]

The fields are those of the server's OpenAPI document, the requests its own examples with numbers
changed. Request `i` of a seed is always the same. Prints the answers by status; each failure with
the number of its request: a 5xx (but a 504 that `timeout_ms` caused), an answer after its deadline,
a number in an answer that is not finite, an answer that is not of its schema. It exits with 1 where
there is one.
"""

from __future__ import annotations

import argparse
import base64
import copy
import json
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import httpx
import jsonschema
import numpy as np
import safetensors.numpy

from service.endpoints.common.schemas import ProblemDocument
from service.media_types import JSON, MULTIPART, SAFETENSORS
from tests.support.extreme_numbers import (
    SchemaReader,
    draw_literal,
    dump_marked,
    place_extremes,
)
from tests.support.malformed_safetensors import make_file, split_tensors, to_array
from tests.support.request_bases import Base, list_bases
from tests.support.server_process import ServerProcess

_SLACK_S = 5.0  # of a client that shares its cores with the server
_BINARY = "application/octet-stream"
_JSON_LENGTH = "inference-header-content-length"


@dataclass(frozen=True)
class Request:
    method: str
    path: str
    template: str  # its path in the document
    params: dict[str, str]
    headers: dict[str, str]
    content: bytes


class Fuzzer:
    """Makes requests to a server that is ready, and judges its answers."""

    def __init__(self, client: httpx.Client) -> None:
        self.document = client.get("/openapi.json").json()
        self.schemas = SchemaReader(self.document)
        self.operations = [
            (method.upper(), path, operation)
            for path, operations in self.document["paths"].items()
            for method, operation in operations.items()
        ]
        bases = list_bases(client, self.document)
        self.bases = {
            (method, path): [base for base in bases if _is_of(base, method, path)]
            for method, path, _ in self.operations
        }
        self.ids = sorted({base.path.split("/")[2] for base in bases if "fuzz-" in base.path})
        for base in bases:
            if base.method == "PUT":
                client.put(base.path.format(id="example"), json=base.body)
        self._validators = dict[str, Any]()

    def make(self, seed: int, number: int) -> Request:
        """Return request `number` of `seed`."""
        rng = Random(f"{seed}/{number}")
        has_body = [each for each in self.operations if "requestBody" in each[2]]
        few = [each for each in self.operations if "requestBody" not in each[2]]
        method, path, operation = rng.choice(has_body if rng.random() < 0.93 else few)
        params, headers, target, content = dict[str, str](), dict[str, str](), path, b""
        if "requestBody" in operation:
            target, content, headers = self._make_body(method, path, operation, rng)
        for parameter in operation.get("parameters", ()):
            name = parameter["name"]
            if parameter["in"] == "path":
                value = rng.choice(self.ids) if name == "id" and "graphs" in path else "example"
                value = parameter.get("example", value) if name != "id" else value
                if rng.random() < 0.1:
                    value = draw_literal(rng)
                target = target.replace(f"{{{name}}}", value)
            elif parameter["in"] == "query" and rng.random() < 0.06:
                params[name] = draw_literal(rng)
        if SAFETENSORS in operation["responses"].get("200", {}).get("content", {}):
            headers["accept"] = rng.choice((JSON, JSON, SAFETENSORS))
        return Request(method, target, path, params, headers, content)

    def _make_body(
        self, method: str, path: str, operation: dict[str, Any], rng: Random
    ) -> tuple[str, bytes, dict[str, str]]:
        """Return the path, the body, and the headers that describe it."""
        kinds = operation["requestBody"]["content"]
        schema = kinds[JSON]["schema"]
        bases = self.bases[method, path]
        target = path
        if bases and rng.random() < 0.9:
            base = rng.choice(bases)
            target, body = base.path, copy.deepcopy(base.body)
            if target.endswith("/transactions") and rng.random() < 0.7:
                for row in body["transactions"]:  # what is stored cannot be changed
                    row["id"] = f"t{rng.randrange(1 << 40)}"
            variant = self.schemas.fits(body, schema)
            if variant is not None and rng.random() < 0.7:
                self.schemas.add_fields(body, variant, rng)
        else:
            body = self.schemas.make(schema, rng)
        kind = rng.choice(list(kinds))
        if kind == SAFETENSORS:
            tensors, rest = split_tensors(body) if isinstance(body, dict) else ({}, {})
            if tensors:
                place_extremes(rest, rng)
                file = make_file(tensors, dump_marked(rest), rng)
                return target, file, {"content-type": SAFETENSORS}
        if kind == _BINARY and isinstance(body, dict) and body.get("inputs"):
            return target, *_make_binary(body, rng)
        place_extremes(body, rng)
        if kind == MULTIPART:
            return target, *_make_form(body)
        return target, dump_marked(body), {"content-type": JSON}

    def judge(self, request: Request, response: httpx.Response, took_s: float) -> str | None:
        """Return what is wrong with an answer, or None."""
        status = response.status_code
        deadline_s = 60.0
        if request.params.get("timeout_ms", "").isdecimal():
            deadline_s = min(deadline_s, min(int(request.params["timeout_ms"]), 60_000) / 1000)
        is_asked = status == 504 and deadline_s < 60.0
        if took_s > deadline_s + _SLACK_S:
            return f"{status} after {took_s:.1f} s"
        if status >= 500 and not is_asked:
            return f"{status} {response.text[:300]}"
        media_type = response.headers.get("content-type", "").partition(";")[0]
        if media_type.endswith("json") or media_type == "":
            return self._judge_json(request, response) if response.content else None
        if media_type == SAFETENSORS:
            arrays = safetensors.numpy.load(response.content)
            floats = [name for name, array in arrays.items() if array.dtype.kind == "f"]
            wrong = [name for name in floats if not np.isfinite(arrays[name]).all()]
            return f"{status} not finite: {wrong}" if wrong else None
        return None

    def _judge_json(self, request: Request, response: httpx.Response) -> str | None:
        try:
            document = json.loads(response.content, parse_constant=_refuse_constant)
        except ValueError as error:
            return f"{response.status_code} {error}"
        if response.status_code >= 400:
            if request.path.startswith("/v2"):
                is_right = isinstance(document.get("error"), str) and document["error"]
            else:
                problem = ProblemDocument.model_validate(document, strict=True)
                is_right = bool(problem.detail) and len(problem.errors) <= 20
            return None if is_right else f"no message: {response.text[:300]}"
        operation = self.document["paths"][request.template][request.method.lower()]
        answers = operation["responses"].get(str(response.status_code), {})
        schema = answers.get("content", {}).get(JSON, {}).get("schema")
        if schema is None:
            return None
        key = json.dumps(schema)
        if key not in self._validators:
            whole = schema | {"components": self.document["components"]}
            self._validators[key] = jsonschema.Draft202012Validator(whole)
        error = next(self._validators[key].iter_errors(document), None)
        return None if error is None else f"{error.json_path}: {error.message[-200:]}"


def _is_of(base: Base, method: str, path: str) -> bool:
    own, other = base.path.split("/"), path.split("/")
    return base.method == method and len(own) == len(other) and all(
        a == b or b.startswith("{") for a, b in zip(own, other, strict=True)
    )  # fmt: skip


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} in JSON")


def _make_form(body: dict[str, Any]) -> tuple[bytes, dict[str, str]]:
    """Write a form: images as files, texts as they are, all else as JSON."""
    files = dict[str, Any]()
    for name, value in body.items():
        if name in ("image", "mask") and isinstance(value, str) and len(value) > 20:
            files[name] = (name, base64.b64decode(value.rpartition(",")[2]))
        else:
            text = value.encode() if isinstance(value, str) and len(value) > 1 else None
            if text is None or value.startswith("\ue000"):
                text = dump_marked(value)
            files[name] = (None, text)
    headers = {"content-type": f"{MULTIPART}; boundary=numbers"}
    encoded = httpx.Request("POST", "http://localhost", files=files or {"a": b""}, headers=headers)
    return encoded.read(), headers


def _make_binary(body: dict[str, Any], rng: Random) -> tuple[bytes, dict[str, str]]:
    """Write tensors of the Open Inference Protocol as bytes behind the JSON."""
    parts = list[bytes]()
    kinds = {"FP32": "<f4", "FP64": "<f8", "INT64": "<i8", "UINT8": "u1"}
    for tensor in body["inputs"]:
        values = to_array(tensor.get("data"))
        if values is not None and tensor["datatype"] in kinds:
            del tensor["data"]
            values = values.astype(kinds[tensor["datatype"]])
            data = bytearray(values.tobytes())
            if data and rng.random() < 0.5:
                size = values.itemsize
                at = rng.randrange(len(data) // size) * size
                data[at : at + size] = rng.randbytes(size)
            parts.append(bytes(data))
            tensor["parameters"] = {"binary_data_size": len(data)}
    place_extremes(body, rng)
    head = dump_marked(body)
    length = draw_literal(rng) if rng.random() < 0.05 else str(len(head))
    return b"".join((head, *parts)), {"content-type": _BINARY, _JSON_LENGTH: length}


def send(client: httpx.Client, request: Request) -> tuple[httpx.Response, float]:
    start = time.monotonic()
    response = client.request(
        request.method,
        request.path,
        params=request.params,
        headers=request.headers,
        content=request.content,
    )
    return response, time.monotonic() - start


def fuzz(
    url: str, seed: int, numbers: range, threads: int = 3
) -> tuple[Counter[str], list[tuple[int, str]]]:
    """Send requests `numbers` of `seed`; return the answers by status, and the failures."""
    with httpx.Client(base_url=url, timeout=90) as first:
        fuzzer = Fuzzer(first)
    remaining = iter(numbers)

    def work() -> tuple[Counter[str], list[tuple[int, str]]]:
        counts, failures = Counter[str](), list[tuple[int, str]]()
        with httpx.Client(base_url=url, timeout=90) as client:
            for number in remaining:
                request = fuzzer.make(seed, number)
                response, took_s = send(client, request)
                is_short = response.status_code == 504 and "timeout_ms" in request.params
                counts["504 by timeout_ms" if is_short else str(response.status_code)] += 1
                if (fault := fuzzer.judge(request, response, took_s)) is not None:
                    failures.append((number, f"{request.method} {request.path}: {fault}"))
                    print(f"{seed}/{number} {failures[-1][1]}", flush=True)
        return counts, failures

    total, failures = Counter[str](), list[tuple[int, str]]()
    with ThreadPoolExecutor(threads) as pool:
        for future in [pool.submit(work) for _ in range(threads)]:
            counts, failed = future.result()
            total += counts
            failures += failed
    return total, failures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0, help="number of the first request")
    parser.add_argument("--show", action="store_true", help="print the requests")
    parser.add_argument("--server", help="its address; without it one of this process is started")
    options = parser.parse_args()
    numbers = range(options.first, options.first + options.requests)
    with ExitStack() as stack:
        if (url := options.server) is None:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            # More steps take longer than the deadline, and are for jobs.
            server = ServerProcess(folder, max_sample_steps=100_000)
            url = stack.enter_context(server.running())
        if options.show:
            with httpx.Client(base_url=url, timeout=90) as client:
                fuzzer = Fuzzer(client)
            for number in numbers:
                print(number, fuzzer.make(options.seed, number))
        start = time.monotonic()
        counts, failures = fuzz(url, options.seed, numbers)
    print(f"seed {options.seed}, requests {numbers.start} to {numbers.stop - 1}:", end=" ")
    print(f"{len(failures)} failures in {time.monotonic() - start:.0f} s")
    for status, count in sorted(counts.items()):
        print(f"  {status}: {count}")
    sys.exit(bool(failures))


if __name__ == "__main__":
    main()
