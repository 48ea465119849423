"""What a replica did not answer is sent to another; all else is passed on as it is."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from starlette.datastructures import Headers
from starlette.responses import JSONResponse, PlainTextResponse, StreamingResponse
from starlette.types import Message, Receive, Scope, Send

from deploy.ray.retry import RetryMiddleware

BODY = [b"one ", b"two ", b"three"]
SCOPE = {"type": "http", "method": "POST", "path": "/", "headers": [(b"x-request-id", b"r7")]}


async def _body(receive: Receive) -> bytes:
    found, more = b"", True
    while more:
        message = await receive()
        found += message.get("body", b"")
        more = message.get("more_body", False)
    return found


class Replicas:
    """Each says something of its own to what it is sent."""

    def __init__(self, *answers: Callable[[bytes], Any]) -> None:
        self._answers, self.sent = list(answers), list[bytes]()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = await _body(receive)
        self.sent.append(body)
        self.headers = Headers(scope=scope)
        answer = self._answers[min(len(self.sent), len(self._answers)) - 1]
        if (response := answer(body)) is not None:
            await response(scope, receive, send)


def dead(body: bytes) -> None:
    """Ray's proxy says nothing then; only its server would."""


def missing(body: bytes) -> Any:
    return PlainTextResponse("no replica", 503)


def asked(
    app: RetryMiddleware, leaves: bool = False, parts: list[bytes] = BODY, **scope: Any
) -> tuple[list[Message], dict[str, Any]]:
    """What came back, message by message, and the first of them with the whole body."""

    async def ask() -> list[Message]:
        messages: list[Message] = [
            {"type": "http.request", "body": part, "more_body": part is not parts[-1]}
            for part in parts
        ]
        came, back = iter(messages), list[Message]()

        async def receive() -> Message:
            for message in came:
                return message
            if leaves:
                return {"type": "http.disconnect"}
            await asyncio.Event().wait()
            raise AssertionError

        async def send(message: Message) -> None:
            back.append(message)

        await app(SCOPE | scope, receive, send)
        return back

    back = asyncio.run(ask())
    return back, back[0] | {"body": b"".join(m.get("body", b"") for m in back[1:])}


def echo(body: bytes) -> Any:
    return JSONResponse({"body": body.decode()})


def test_whoever_is_alive_answers_the_whole_of_it() -> None:
    replicas = Replicas(dead, missing, missing, dead, echo)
    back, answer = asked(RetryMiddleware(replicas))
    assert [message["type"] for message in back] == ["http.response.start", "http.response.body"]
    assert answer["status"] == 200
    assert json.loads(answer["body"]) == {"body": "one two three"}
    assert replicas.sent == [b"one two three"] * 5


@pytest.mark.parametrize(
    "response",
    [
        JSONResponse({"type": "urn:basin:problem:deadline"}, 504),
        JSONResponse({}, 503, media_type="application/problem+json"),
        PlainTextResponse("# HELP", 200),
        JSONResponse({"status": 404}, 404),
        StreamingResponse(iter([b"a", b"b"]), media_type="text/event-stream"),
    ],
    ids=["json", "problem", "text", "error of the client", "stream"],
)
def test_what_a_replica_says_is_passed_on(response: Any) -> None:
    replicas = Replicas(lambda body: response, echo)
    back, answer = asked(RetryMiddleware(replicas))
    assert answer["status"] == response.status_code
    assert len(replicas.sent) == 1
    if isinstance(response, StreamingResponse):
        assert [message.get("body") for message in back[1:]] == [b"a", b"b", b""]


@pytest.mark.parametrize(("answer", "tries"), [(missing, 4), (dead, 3)])
def test_nobody_answers(answer: Any, tries: int) -> None:
    """And a request that kills whoever has it does not kill them all."""
    replicas = Replicas(answer)
    _, answer = asked(RetryMiddleware(replicas, patience_s=0.4))
    assert len(replicas.sent) == tries
    problem, headers = json.loads(answer["body"]), dict(answer["headers"])
    assert (answer["status"], problem["status"]) == (503, 503)
    assert problem["type"] == "urn:basin:problem:not-ready"
    assert problem["request_id"] == "r7"
    assert headers[b"content-type"] == b"application/problem+json"
    assert headers[b"retry-after"] == b"1"


def test_a_client_that_left_is_not_asked_for_again() -> None:
    async def heard(scope: Scope, receive: Receive, send: Send) -> None:
        heard_of.append(scope)
        await _body(receive)
        assert (await receive())["type"] == "http.disconnect"

    heard_of = list[Scope]()
    asked(RetryMiddleware(heard), leaves=True)
    assert len(heard_of) == 1


def test_a_long_body_is_sent_once() -> None:
    replicas = Replicas(dead, echo)
    _, answer = asked(RetryMiddleware(replicas, max_bytes=8))
    assert answer["status"] == 503
    assert replicas.sent == [b"one two three"]


@pytest.mark.parametrize(("deaths", "status"), [(0, 404), (1, 204)])
def test_what_was_forgotten_twice_was_forgotten(deaths: int, status: int) -> None:
    def gone(body: bytes) -> Any:
        return JSONResponse({"type": "urn:basin:problem:unknown-graph"}, 404)

    replicas = Replicas(*[dead] * deaths, gone)
    _, answer = asked(RetryMiddleware(replicas), method="DELETE", parts=[b""])
    assert answer["status"] == status
    assert bool(answer["body"]) == (status == 404)
    assert (b"content-length" in dict(answer["headers"])) == (status == 404)


def test_one_id_and_no_word_for_the_proxy() -> None:
    def answered(body: bytes) -> Any:
        twice = PlainTextResponse("ok")
        twice.raw_headers += [(b"x-request-id", b"r7"), (b"x-request-id", b"r8")]
        return twice

    sent = [(b"x-request-disconnect-disabled", b"?1"), (b"x-request-id", b"bad id"), (b"a", b"b")]
    replicas = Replicas(answered)
    _, answer = asked(RetryMiddleware(replicas), headers=sent)
    [told] = [value for name, value in answer["headers"] if name.lower() == b"x-request-id"]
    assert told.isalnum()
    assert replicas.headers["x-request-id"] == told.decode()
    assert sorted(replicas.headers.keys()) == ["a", "x-request-id"]
    _, answer = asked(RetryMiddleware(replicas), headers=[(b"a", b"\xff")])
    assert answer["status"] == 400


def test_the_paths_of_the_proxy_are_its_own() -> None:
    replicas = Replicas(missing)
    _, answer = asked(RetryMiddleware(replicas), path="/-/healthz")
    assert (answer["status"], len(replicas.sent)) == (503, 1)


def test_what_is_no_request_is_none_of_its_business() -> None:
    heard = list[str]()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        heard.append(scope["type"])

    call: Callable[..., Awaitable[None]] = RetryMiddleware(app)
    asyncio.run(call({"type": "lifespan"}, None, None))
    assert heard == ["lifespan"]
