"""Work for a scheduler, which may fail."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from models.architectures.et import ET
from models.base import Architecture, DynamicsParams, StepControl
from models.dynamics import Solution
from service.engine.scheduler import Scheduler


class Failed(Exception):  # noqa: N818
    pass


def example(seed: int) -> tuple[Architecture, list]:
    network, items = ET.build_example(seed)
    return network.eval(), items


def work_of(network: Architecture, item: object, params: DynamicsParams, fails: bool) -> Callable:
    def work(control: StepControl) -> tuple[torch.Tensor, list[Solution]]:
        output = network.infer(network.pack([item]), [params], control)
        if fails:
            raise Failed
        return output.logits, output.solutions

    return work


@contextmanager
def held(scheduler: Scheduler) -> Iterator[None]:
    """Let the tasks that are submitted within begin together."""
    gate = threading.Event()
    scheduler.submit(lambda control: gate.wait(30), "gate")
    try:
        yield
    finally:
        gate.set()
