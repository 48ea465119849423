"""A history: what clients ask and what breaks, drawn from a seed."""

from __future__ import annotations

import random
from dataclasses import dataclass

from tests.support.chaos.world import SERVERS, WORKER

REQUESTS = {  # with weights
    "put_graph": 3,
    "patch_graph": 8,
    "delete_graph": 1,
    "read_graph": 5,
    "put_memory": 4,
    "delete_memory": 1,
    "read_memory": 4,
    "put_stream": 1,
    "add_row": 6,
    "begin_job": 5,
    "read_job": 2,
    "score": 5,
    "ask_limited": 2,
    "list_all": 2,
}
FAULTS = {
    "kill_redis": 3,
    "start_redis": 3,
    "take_snapshot": 3,
    "go_back": 3,
    "restart_empty": 2,
    "flush": 2,
    "pause_redis": 1,
    "resume_redis": 2,
    "fill_redis": 1,
    "empty_redis": 1,
    "cut": 2,
    "stall": 1,
    "join": 3,
    "kill_process": 2,
    "start_process": 3,
    "damage": 6,
    "heal": 3,
}
DAMAGES = (
    "graph head",
    "graph snapshot",
    "graph log",
    "graph log entry",
    "graph key type",
    "memory content",
    "memory index",
    "job hash",
    "job body",
    "job ghost",
    "job foreign id",
    "cached answers",
    "rate",
)


@dataclass(frozen=True)
class Step:
    """`kind` of `REQUESTS` or `FAULTS`; numbers choose among servers, owners, objects, values."""

    kind: str
    server: int = 0
    owner: int = 0
    number: int = 0
    value: int = 0
    detail: str = ""

    def __str__(self) -> str:
        return (
            f"{self.kind}({self.server}, {self.owner}, {self.number}, {self.value}"
            + (f", {self.detail!r}" if self.detail else "")
            + ")"
        )


def draw_steps(seed: int) -> list[Step]:
    """Return the history of a seed."""
    choose = random.Random(seed)
    steps = list[Step]()
    for _ in range(choose.randint(30, 60)):
        is_fault = choose.random() < 0.15
        kinds = FAULTS if is_fault else REQUESTS
        [kind] = choose.choices(list(kinds), list(kinds.values()))
        servers = (*SERVERS, WORKER) if kind in ("kill_process", "cut", "stall") else SERVERS
        steps.append(
            Step(
                kind,
                choose.choice(servers),
                choose.randrange(2),
                choose.randrange(2),
                choose.randrange(6),
                choose.choice(DAMAGES) if kind == "damage" else "",
            )
        )
    return steps
