"""Which machines a table names."""

from __future__ import annotations

import time

import torch

from training.common.hardware import describe_run, format_machines


def test_machines_are_those_of_the_rows_and_not_that_of_the_moment() -> None:
    here = describe_run(torch.device("cpu"), "32-true", time.perf_counter() - 2)
    assert 2 <= here["seconds"] < 60
    there = {"machine": "Elsewhere, 8 threads", "torch": "2.7.0"}
    assert format_machines([there, there]) == "Elsewhere, 8 threads, torch 2.7.0."
    mixed = format_machines([there, here, {}, {"machine": "x86_64, 2 threads"}])
    assert mixed.count("; ") == 3
    assert "A machine that was not noted; " in mixed
    assert "x86_64, 2 threads." in mixed
