"""Carry out a history, and check each answer."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx

from tests.support.chaos.damage import damage
from tests.support.chaos.expected import Register, ViolationError, add, put
from tests.support.chaos.steps import Step
from tests.support.chaos.world import LIMITED, OWNERS, SERVERS, World

FEATURES = 10
_SETTLE_S = 40.0
_FIXED = {"targets": ["n0"], "neighborhood": {"hops": 2}}
Owner = str


@dataclass
class Job:
    owner: str
    body: int
    may_be_lost: bool = False
    is_damaged: bool = False


@dataclass
class Player:
    """One history over a world; `tag` keeps its objects apart from those of others."""

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

    def play(self, steps: Sequence[Step]) -> None:
        """Carry out the steps, then heal and check everything.

        Raises:
            ViolationError: something happened that must not.
        """
        try:
            for step in steps:
                self.counts[step.kind] += 1
                getattr(self, step.kind)(step)
            self.check_all()
            self.forget_all()
        except ViolationError:
            raise
        except AssertionError as error:
            raise ViolationError(str(error)) from error

    # What clients ask.

    def put_graph(self, step: Step) -> None:
        register = self._register(self.graphs, step, "g")
        nodes = [f"n{i}" for i in range(3 + step.value % 2)]
        last = len(nodes) - 1
        graph = {
            "node_ids": nodes,
            "x": [_features(node) for node in nodes],
            "edge_index": [list(range(last)), list(range(1, last + 1))],
        }
        response = self._ask(step, "PUT", f"/graphs/{register.name}", json={"graph": graph})
        if self._note(register, put(frozenset(nodes)), response, step.server, (200, 201)):
            register.is_damaged = False

    def patch_graph(self, step: Step) -> None:
        register = self._register(self.graphs, step, "g")
        node = f"p{step.value}"
        body = {
            "nodes": [{"id": node, "x": _features(node)}],
            "edges": [{"source": node, "target": "n0"}],
        }
        response = self._ask(step, "PATCH", f"/graphs/{register.name}", json=body)
        self._note(register, add(node), response, step.server, (200,))

    def delete_graph(self, step: Step) -> None:
        register = self._register(self.graphs, step, "g")
        response = self._ask(step, "DELETE", f"/graphs/{register.name}")
        if self._note(register, put(None), response, step.server, (204,)):
            register.is_damaged = False

    def read_graph(self, step: Step) -> None:
        self._check_graph(self._register(self.graphs, step, "g"), step)

    def put_memory(self, step: Step) -> None:
        register = self._register(self.memories, step, "m")
        response = self._ask(
            step, "PUT", f"/memories/{register.name}", json={"patterns": _patterns(step.value)}
        )
        if self._note(register, put(step.value), response, step.server, (200, 201)):
            register.is_damaged = False

    def delete_memory(self, step: Step) -> None:
        register = self._register(self.memories, step, "m")
        response = self._ask(step, "DELETE", f"/memories/{register.name}")
        if self._note(register, put(None), response, step.server, (204,)):
            register.is_damaged = False

    def read_memory(self, step: Step) -> None:
        self._check_memory(self._register(self.memories, step, "m"), step)

    def put_stream(self, step: Step) -> None:
        register = self._register(self.streams, step, "t")
        if register.possible != {None}:
            return  # one that is replaced forgets its alerts; graphs are replaced often enough
        body = {"model": "cdat-payments", "threshold": 0.001}
        response = self._ask(step, "PUT", f"/graphs/{register.name}", json=body)
        self._note(register, put(frozenset()), response, step.server, (200, 201))

    def add_row(self, step: Step) -> None:
        register = self._register(self.streams, step, "t")
        number = len(register.past)
        row = self.rows[min(number, len(self.rows) - 1)]
        path = f"/graphs/{register.name}/transactions"
        response = self._ask(step, "POST", path, json={"transactions": [row]})
        self._note(register, add(row["id"]), response, step.server, (200,))

    def begin_job(self, step: Step) -> None:
        owner = OWNERS[step.owner]
        headers = {"prefer": "respond-async"}
        if step.number:
            headers["idempotency-key"] = f"{self.tag}-{step.value}"
        response = self._ask(
            step, "POST", "/anomaly/score", json=_body(step.value), headers=headers
        )
        if response is not None and response.status_code == 202:
            self.jobs.setdefault(response.json()["id"], Job(owner, step.value))

    def read_job(self, step: Step) -> None:
        for id, job in list(self.jobs.items())[-2:]:
            response = self._ask(step, "GET", f"/jobs/{id}", owner=job.owner)
            if response is None or response.status_code >= 500:
                continue
            other = OWNERS[1 - OWNERS.index(job.owner)]
            foreign = self._ask(step, "GET", f"/jobs/{id}", owner=other)
            if foreign is not None and foreign.status_code not in (404, 503):
                raise ViolationError(
                    f"the job {id} of {job.owner} is {foreign.status_code} to {other}"
                )

    def score(self, step: Step) -> None:
        response = self._ask(step, "POST", "/anomaly/score", json=_body(step.value))
        if response is None:
            return
        if response.status_code != 200:
            raise ViolationError(
                f"a score was refused: {response.status_code} {response.text[:300]}"
            )
        self._compare_answer(step.value, response.json())

    def ask_limited(self, step: Step) -> None:
        response = self._ask(step, "GET", "/models", owner=LIMITED)
        if response is None or response.status_code == 200:
            return
        wait_s = float(response.headers.get("retry-after", "inf"))
        if response.status_code != 429 or wait_s > 2:
            raise ViolationError(
                f"a key with 10 requests per second: {response.status_code}, to wait {wait_s} s"
            )

    def list_all(self, step: Step) -> None:
        owner = OWNERS[step.owner]
        for path, registers in (("/graphs", self.graphs), ("/memories", self.memories)):
            response = self._ask(step, "GET", path)
            if response is None or response.status_code != 200:
                continue
            ids = {each["id"] for each in next(iter(response.json().values()))}
            foreign = {name for other, name in registers if other != owner} & ids
            if foreign:
                raise ViolationError(f"{owner} sees {foreign} of another key")

    # What breaks.

    def kill_redis(self, _: Step) -> None:
        self.world.kill_redis()

    def start_redis(self, _: Step) -> None:
        self.world.start_redis()

    def take_snapshot(self, _: Step) -> None:
        self.world.take_snapshot()

    def go_back(self, _: Step) -> None:
        to_nothing = not (self.world.folder / "snapshot").exists()
        self.world.go_back(to_nothing)
        self._went_back()

    def restart_empty(self, _: Step) -> None:
        self.world.go_back(to_nothing=True)
        self._went_back()

    def flush(self, _: Step) -> None:
        if self.world.redis_runs and not self.world.is_paused:
            self.world.redis.client.flushall()
            self._went_back()

    def pause_redis(self, _: Step) -> None:
        self.world.pause_redis()

    def resume_redis(self, _: Step) -> None:
        self.world.resume_redis()

    def fill_redis(self, _: Step) -> None:
        if self.world.redis_runs and not self.world.is_paused:
            self.world.redis.client.config_set("maxmemory", 1)

    def empty_redis(self, _: Step) -> None:
        if self.world.redis_runs and not self.world.is_paused:
            self.world.redis.client.config_set("maxmemory", 0)

    def cut(self, step: Step) -> None:
        self.world.proxies[step.server].set("cut")

    def stall(self, step: Step) -> None:
        self.world.proxies[step.server].set("stalled")

    def join(self, step: Step) -> None:
        for proxy in self.world.proxies:
            proxy.set("open")

    def kill_process(self, step: Step) -> None:
        self.world.processes[step.server].kill()
        for registers in (self.graphs, self.streams):  # memories are on its disk
            for register in registers.values():
                register.holders.discard(step.server)

    def start_process(self, _: Step) -> None:
        for process in self.world.processes:
            if process.running is None:
                process.start()

    def damage(self, step: Step) -> None:
        if not self.world.redis_runs or self.world.is_paused:
            return
        owner = OWNERS[step.owner]
        name = self._name(step, "m" if step.detail.startswith("memory") else "g")
        if damage(self.world.redis.client, step.detail, owner, name, step.value):
            registers = self.memories if step.detail.startswith("memory") else self.graphs
            if register := registers.get((owner, name)):
                register.is_damaged = True
            for job in self.jobs.values():
                job.is_damaged |= step.detail.startswith("job")

    def heal(self, _: Step) -> None:
        self.world.heal()

    # What is checked.

    def check_all(self) -> None:
        """Heal; all objects are as they may be, on both servers alike, and all jobs end."""
        self.world.heal()
        for server in SERVERS:
            for (owner, _), register in self.graphs.items():
                self._check_graph(register, Step("", server, OWNERS.index(owner)))
            for (owner, _), register in self.memories.items():
                self._check_memory(register, Step("", server, OWNERS.index(owner)))
            for (owner, _), register in self.streams.items():
                self._check_stream(register, Step("", server, OWNERS.index(owner)))
        for id, job in self.jobs.items():
            self._check_job(id, job)
        for server in SERVERS:
            self.ask_limited(Step("", server))
            self.score(Step("", server, value=1))
            for number in range(2):
                fresh = Step("", server, number, 2 + server, 0)
                self.put_graph(fresh)
                self._check_graph(self._register(self.graphs, fresh, "g"), fresh)
                self.put_memory(fresh)
                self._check_memory(self._register(self.memories, fresh, "m"), fresh)

    def forget_all(self) -> None:
        """Delete the objects, so that the next history begins with nothing."""
        self.world.heal()
        for registers, path in (
            (self.graphs, "graphs"),
            (self.streams, "graphs"),
            (self.memories, "memories"),
        ):
            for owner, name in registers:
                self.world.client(0, owner).delete(f"/{path}/{name}")

    def _check_graph(self, register: Register, step: Step) -> None:
        is_strict = self._is_strict(step.server)
        response = self._ask(step, "GET", f"/graphs/{register.name}")
        if response is None:
            return
        if response.status_code == 404:
            register.observe(None, step.server, is_strict)
            return
        if self._is_refused(register, response, is_strict):
            return
        nodes = set[str]()
        states = [state for state in register.past if isinstance(state, frozenset)]
        for node in sorted(set().union(*states), key=str):
            targets = {"graph_id": register.name, **_FIXED, "targets": [node]}
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
        body = {"memory": register.name, "steps": 1, "num_samples": 1, "beta": 1e4, "seed": 1}
        response = self._ask(step, "GET", f"/memories/{register.name}")
        if response is None:
            return
        if response.status_code == 404:
            register.observe(None, step.server, is_strict)
            return
        if self._is_refused(register, response, is_strict):
            return
        state = response.json()["patterns"] - 2
        register.observe(state, step.server, is_strict)
        self._ask(step, "POST", "/sample", json=body)

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

    def _check_job(self, id: str, job: Job) -> None:
        client = self.world.client(0, job.owner)
        end = time.monotonic() + _SETTLE_S
        while True:
            response = client.get(f"/jobs/{id}")
            if response.status_code == 404 and job.may_be_lost | job.is_damaged:
                return
            assert response.status_code == 200, f"job {id}: {response.status_code} {response.text}"
            status = response.json()["status"]
            if status != "running":
                break
            if time.monotonic() > end:
                raise ViolationError(f"job {id} has not ended after {_SETTLE_S} s: {response.text}")
            time.sleep(0.1)
        result = client.get(f"/jobs/{id}/result")
        if result.status_code == 200:
            self._compare_answer(job.body, result.json())
        elif not (job.is_damaged or (job.may_be_lost and "job-lost" in result.text)):
            raise ViolationError(f"job {id} is {status}: {result.status_code} {result.text[:300]}")

    def _compare_answer(self, body: int, answer: dict[str, Any]) -> None:
        if self.answers.setdefault(body, answer["results"]) != answer["results"]:
            raise ViolationError(
                f"two answers to one request: {answer['results']} {self.answers[body]}"
            )

    def _compare_digest(self, register: Register, node: str, answer: dict[str, Any]) -> None:
        digest = answer["graph"].get("digest")
        if digest is None:
            return
        key = f"{register.name}/{node}/{answer['graph']['revision']}/{digest}"
        result = answer["results"]
        if self.by_digest.setdefault(key, result) != result:
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


def _features(node: str) -> list[float]:
    first = sum(map(ord, node)) % 7 / 7
    return [round(first + 0.1 * i, 3) for i in range(FEATURES)]


def _patterns(value: int) -> list[list[float]]:
    """Patterns whose number tells the value."""
    return [[float(i == j) for j in range(8)] for i in range(value + 2)]


def _body(value: int) -> dict[str, Any]:
    nodes = 4 + value
    edges = [list(range(nodes - 1)), list(range(1, nodes))]
    return {"graph": {"x": [_features(f"b{i}") for i in range(nodes)], "edge_index": edges}}


def dump(steps: Sequence[Step]) -> str:
    return json.dumps([vars(step) for step in steps])
