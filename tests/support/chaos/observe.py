"""What each answer must be."""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx
import numpy as np
import safetensors.numpy

from models.memories import read_card
from models.memories.file import ITEMS
from service.media_types import SAFETENSORS
from tests.support.chaos.expected import Register, ViolationError, is_equal, make_patterns, put
from tests.support.chaos.steps import Step
from tests.support.chaos.world import BURST, LIMITED, OWNERS, PER_SECOND, SERVERS, World

_SETTLE_S = 40.0
_AGAIN_S = 16.0  # servers write again what Redis refused: a memory at the first look after 5 s
FIXED = {"targets": ["n0"], "neighborhood": {"hops": 2}}
Owner = str


@dataclass
class Job:
    owner: str
    body: int
    may_be_lost: bool = False
    is_damaged: bool = False


@dataclass
class Observer:
    """What is known of one history over a world; `tag` keeps its objects apart from those of
    others."""

    world: World
    tag: str
    rows: Sequence[dict[str, Any]]
    answers: dict[int, Any]  # of POST /anomaly/score, by body; of all histories
    counts: Counter[str] = field(default_factory=Counter)
    graphs: dict[tuple[Owner, str], Register] = field(default_factory=dict)
    memories: dict[tuple[Owner, str], Register] = field(default_factory=dict)
    streams: dict[tuple[Owner, str], Register] = field(default_factory=dict)
    jobs: dict[str, Job] = field(default_factory=dict)
    by_digest: dict[str, Any] = field(default_factory=dict)
    by_memory: dict[tuple[str, int], bytes] = field(default_factory=dict)
    samples: dict[tuple[str, int], Any] = field(default_factory=dict)

    def settle(self) -> None:
        """End all faults; wait until what can be restored is restored.

        What a full Redis refused is written again within `_AGAIN_S`.
        """
        self.world.heal()
        if self.world.was_full:
            time.sleep(_AGAIN_S)
            self.world.was_full = False

    def forget_all(self) -> None:
        """Delete the objects, so that the next history begins with nothing."""
        self.world.forget_snapshot()
        for registers, path in (
            (self.graphs, "graphs"),
            (self.streams, "graphs"),
            (self.memories, "memories"),
        ):
            for owner, name in registers:
                self._ask(Step("", 0, OWNERS.index(owner)), "DELETE", f"/{path}/{name}")

    def _check_graph(self, register: Register, step: Step) -> None:
        is_strict = self._is_strict(step.server)
        if self._read(register, step, "graphs", is_strict) is None:
            return
        nodes = set[str]()
        states = [state for state in register.past if isinstance(state, frozenset)]
        for node in sorted(set().union(*states), key=str):
            targets = {"graph_id": register.name, **FIXED, "targets": [node]}
            answer = self._ask(step, "POST", "/anomaly/score", json=targets)
            if answer is None:
                return
            if answer.status_code == 200:
                nodes.add(node)
                self._compare_digest(register, node, answer.json())
            elif self._is_refused(register, answer, is_strict):
                return
        register.observe(frozenset(nodes), step.server, is_strict and self._is_strict(step.server))

    def _check_memory(self, register: Register, step: Step) -> None:
        is_strict = self._is_strict(step.server)
        response = self._read(register, step, "memories", is_strict, accept=SAFETENSORS)
        if response is None:
            return
        value = self._check_file(register.name, response.content)
        register.observe(value, step.server, is_strict)
        body = {"memory": register.name, "steps": 1, "num_samples": 1, "beta": 1e4, "seed": 1}
        response = self._ask(step, "POST", "/sample", json=body)
        if response is None or self._is_refused(register, response, is_strict) or not is_strict:
            return
        samples = response.json()["samples"]
        if not is_equal(self.samples.setdefault((register.name, value), samples), samples):
            raise ViolationError(f"{register.name}: two answers to one request: {samples}")

    def _check_file(self, name: str, file: bytes) -> int:
        """Return the value of the memory that a file holds.

        Raises:
            ViolationError: it is not what was put, or not equal to another file of this value.
        """
        items, note = safetensors.numpy.load(file)[ITEMS], read_card(file).note
        value = len(items) - 2
        if not np.array_equal(items, make_patterns(value)) or note != name:
            raise ViolationError(f"{name} holds what was not put: {items}, note {note!r}")
        if self.by_memory.setdefault((name, value), file) != file:
            raise ViolationError(f"{name}: two files of the value {value} differ")
        return value

    def _read(
        self, register: Register, step: Step, path: str, is_strict: bool, **headers: str
    ) -> httpx.Response | None:
        """Return the answer about an object that is stored; where it is not, observe that."""
        response = self._ask(step, "GET", f"/{path}/{register.name}", headers=headers)
        if response is None:
            return None
        if response.status_code == 404:
            register.observe(None, step.server, is_strict)
            return None
        return None if self._is_refused(register, response, is_strict) else response

    def _check_stream(self, register: Register, step: Step) -> None:
        if register.possible == {None}:
            return
        states = [state for state in register.possible if isinstance(state, frozenset)]
        ids = set().union(*states)
        rows = [row for row in self.rows if row["id"] in ids]
        path = f"/graphs/{register.name}"
        response = self._ask(step, "GET", path)
        if response is None or (response.status_code == 404 and None in register.possible):
            return
        assert response.status_code == 200, f"{path}: {response.status_code} {response.text[:300]}"
        if not rows:
            return
        response = self._ask(step, "POST", f"{path}/transactions", json={"transactions": rows})
        assert response is not None
        assert response.status_code == 200, f"{path}: {response.status_code} {response.text[:300]}"
        added = response.json()["added"]
        allowed = {len(ids) - len(state) for state in states}
        if added not in allowed:
            raise ViolationError(f"{path} lacked {added} of {len(ids)} rows; allowed are {allowed}")
        register.acknowledge(put(frozenset(ids)), step.server)
        expected = {each["node_id"] for each in response.json()["results"] if each["label"]}
        end = time.monotonic() + _SETTLE_S
        while True:
            page = self._ask(step, "GET", f"{path}/alerts?limit=1000")
            assert page is not None
            raised = Counter(each["node_id"] for each in page.json()["alerts"])
            twice = {node for node, count in raised.items() if count > 1}
            if twice:
                raise ViolationError(f"{path}: alerts twice of {twice}")
            if expected <= raised.keys():
                return
            if time.monotonic() > end:
                raise ViolationError(f"{path}: no alerts of {expected - raised.keys()}")
            time.sleep(0.2)

    def _check_rate(self, servers: Sequence[int], buckets: int) -> int:
        """Send requests of the limited key until one is refused; return how many were not.

        Args:
            servers: these take turns.
            buckets: that may let requests pass: that of Redis, and where Redis is away the
                server's own.

        Raises:
            ViolationError: more passed than the limit allows, or the key is to wait for longer than
                the limit says.
        """
        accepted, began = 0, time.monotonic()
        for server in itertools.islice(itertools.cycle(servers), 4 * BURST):
            response = self._ask(Step("", server), "GET", "/models", owner=LIMITED)
            if response is None:
                break
            if response.status_code != 200:
                wait_s = float(response.headers.get("retry-after", "inf"))
                if response.status_code != 429 or wait_s > 1:  # one request's time, rounded up
                    raise ViolationError(f"limited key: {response.status_code}, wait {wait_s} s")
                break
            accepted += 1
            allowed = buckets * (BURST + PER_SECOND * (time.monotonic() - began))
            if accepted > allowed + 1:
                raise ViolationError(f"limited key: {accepted} requests passed, not {allowed:.1f}")
        return accepted

    def _check_job(self, id: str, job: Job) -> None:
        step = Step("", 0, OWNERS.index(job.owner))
        end = time.monotonic() + _SETTLE_S
        while True:
            response = self._ask(step, "GET", f"/jobs/{id}")
            assert response is not None, f"job {id}: server 0 is not ready"
            if response.status_code == 404 and job.may_be_lost | job.is_damaged:
                return
            assert response.status_code == 200, f"job {id}: {response.status_code} {response.text}"
            status = response.json()["status"]
            if status != "running":
                break
            if time.monotonic() > end:
                raise ViolationError(f"job {id} has not ended after {_SETTLE_S} s: {response.text}")
            time.sleep(0.1)
        result = self._ask(step, "GET", f"/jobs/{id}/result")
        assert result is not None, f"job {id}: server 0 is not ready"
        if result.status_code == 200:
            self._compare_answer(job.body, result.json())
        elif not (job.is_damaged or (job.may_be_lost and "job-lost" in result.text)):
            raise ViolationError(f"job {id} is {status}: {result.status_code} {result.text[:300]}")

    def _compare_answer(self, body: int, answer: dict[str, Any]) -> None:
        if not is_equal(self.answers.setdefault(body, answer["results"]), answer["results"]):
            raise ViolationError(
                f"two answers to one request: {answer['results']} {self.answers[body]}"
            )

    def _compare_digest(self, register: Register, node: str, answer: dict[str, Any]) -> None:
        digest = answer["graph"].get("digest")
        if digest is None:
            return
        key = f"{register.name}/{node}/{answer['graph']['revision']}/{digest}"
        result = answer["results"]
        if not is_equal(self.by_digest.setdefault(key, result), result):
            raise ViolationError(
                f"two answers under one digest: {key} {result} {self.by_digest[key]}"
            )

    def _is_refused(self, register: Register, response: httpx.Response, is_strict: bool) -> bool:
        """Whether the answer says nothing of the state, as it may."""
        if response.status_code == 503 and (register.is_damaged or not is_strict):
            return True
        if response.status_code == 422 and "unknown_node" in response.text:
            return False
        if response.status_code == 404 and not is_strict:
            return True
        if response.status_code not in (200, 201):
            raise ViolationError(f"{register.name}: {response.status_code} {response.text[:300]}")
        return False

    def _note(
        self,
        register: Register,
        change: Any,
        response: httpx.Response | None,
        server: int,
        done: tuple[int, ...],
    ) -> bool:
        """Note what the answer to a change says of the state; return whether it was made."""
        if response is None or response.status_code == 503:
            register.attempt(change)
            return False
        if response.status_code in done:
            register.acknowledge(change, server)
            return True
        if response.status_code == 404:
            register.observe(None, server, self._is_strict(server) and not register.is_damaged)
            return False
        raise ViolationError(f"{register.name}: {response.status_code} {response.text[:300]}")

    def _went_back(self) -> None:
        alive = {n for n in SERVERS if self.world.processes[n].running is not None}
        for register in (*self.graphs.values(), *self.streams.values()):
            register.go_back(alive)
        for register in self.memories.values():
            register.go_back(set(SERVERS))
        for job in self.jobs.values():
            job.may_be_lost = True

    def _is_strict(self, server: int) -> bool:
        """Whether nothing is broken for this server now."""
        world = self.world
        return world.is_clean and world.is_well(server)

    def _register(
        self, registers: dict[tuple[Owner, str], Register], step: Step, letter: str
    ) -> Register:
        name = self._name(step, letter)
        return registers.setdefault((OWNERS[step.owner], name), Register(name))

    def _name(self, step: Step, letter: str) -> str:
        return f"{self.tag}-{letter}{step.number}-{OWNERS[step.owner]}"

    def _ask(
        self, step: Step, method: str, path: str, owner: str = "", **request: Any
    ) -> httpx.Response | None:
        """Send a request; return None where the server ended or is not there.

        Raises:
            ViolationError: 500, or no answer from a server that lives.
        """
        process = self.world.processes[step.server]
        if process.running is None:
            return None
        client = self.world.client(step.server, owner or OWNERS[step.owner])
        try:
            response = client.request(method, path, **request)
        except httpx.ConnectError:
            return None  # it is being started
        except httpx.TransportError as error:
            raise ViolationError(f"{method} {path} has no answer: {error!r}") from error
        if response.status_code == 503 and "not-ready" in response.text:
            return None  # it has just been started
        if response.status_code == 500:
            raise ViolationError(
                f"{method} {path}: {response.text}\n{process.log.read_text()[-3000:]}"
            )
        return response
