"""Carry out a history, and check each answer."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tests.support.chaos.damage import JOB, damage
from tests.support.chaos.expected import ViolationError, add, make_patterns, put
from tests.support.chaos.observe import Job, Observer
from tests.support.chaos.steps import Step
from tests.support.chaos.world import BURST, OWNERS, PER_SECOND, SERVERS

FEATURES = 10


@dataclass
class Player(Observer):
    """Carries out the steps of a history."""

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
        body = {"patterns": make_patterns(step.value).tolist(), "note": register.name}
        response = self._ask(step, "PUT", f"/memories/{register.name}", json=body)
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
        self._check_rate([step.server], buckets=2)

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
            self.world.flush()
            self._went_back()

    def pause_redis(self, _: Step) -> None:
        self.world.pause_redis()

    def resume_redis(self, _: Step) -> None:
        self.world.resume_redis()

    def fill_redis(self, _: Step) -> None:
        if self.world.redis_runs and not self.world.is_paused:
            self.world.set_full(True)

    def empty_redis(self, _: Step) -> None:
        if self.world.redis_runs and not self.world.is_paused:
            self.world.set_full(False)

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
                register.lose_holder(step.server)

    def start_process(self, _: Step) -> None:
        for process in self.world.processes:
            if process.running is None:
                process.start()

    def damage(self, step: Step) -> None:
        """Damage an object of the history, the first of these that Redis has."""
        if not self.world.redis_runs or self.world.is_paused:
            return
        kind = step.detail.split(" ")[0]
        registers = {"graph": self.graphs, "memory": self.memories}.get(kind, {})
        order = random.Random(step.value)
        objects = order.sample(list(registers), len(registers)) or [("", "")]
        jobs = order.sample(list(self.jobs), len(self.jobs))
        client = self.world.redis.client
        for owner, name in objects:
            key = damage(client, step.detail, owner, name, jobs, step.value)
            if key is None:
                continue
            self.counts[f"damage of {step.detail}"] += 1
            if register := registers.get((owner, name)):
                register.is_damaged = True
            elif job := self.jobs.get(key.removeprefix(JOB)):
                job.is_damaged = True
            return

    def heal(self, _: Step) -> None:
        self.settle()

    def check_all(self) -> None:
        """Heal; all objects are as they may be, on both servers alike, and all jobs end."""
        self.settle()
        for server in SERVERS:
            for (owner, _), register in self.graphs.items():
                self._check_graph(register, Step("", server, OWNERS.index(owner)))
            for (owner, _), register in self.memories.items():
                self._check_memory(register, Step("", server, OWNERS.index(owner)))
            for (owner, _), register in self.streams.items():
                self._check_stream(register, Step("", server, OWNERS.index(owner)))
        for id, job in self.jobs.items():
            self._check_job(id, job)
        self._check_rate(SERVERS, buckets=1)  # what was damaged of the bucket is replaced now
        time.sleep(BURST / PER_SECOND)  # the bucket is full
        if (accepted := self._check_rate(SERVERS, buckets=1)) < BURST:
            raise ViolationError(f"limited key: only {accepted} requests passed")
        for server in SERVERS:
            self.score(Step("", server, value=1))
            for number in range(2):
                fresh = Step("", server, number, 2 + server, 0)
                self.put_graph(fresh)
                self._check_graph(self._register(self.graphs, fresh, "g"), fresh)
                self.put_memory(fresh)
                self._check_memory(self._register(self.memories, fresh, "m"), fresh)


def _features(node: str) -> list[float]:
    first = sum(map(ord, node)) % 7 / 7
    return [round(first + 0.1 * i, 3) for i in range(FEATURES)]


def _body(value: int) -> dict[str, Any]:
    nodes = 4 + value
    edges = [list(range(nodes - 1)), list(range(1, nodes))]
    return {"graph": {"x": [_features(f"b{i}") for i in range(nodes)], "edge_index": edges}}
