"""Rows of results that are made once."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from lightning_fabric import Fabric

from training.common.results_log import ResultsLog

KEY = ("et", "test", "abc")


@pytest.fixture
def makes() -> Iterator[dict[str, Any]]:
    return ({"value": number} for number in count())


def test_what_is_there_is_not_made_again(tmp_path: Path, makes: Iterator[dict[str, Any]]) -> None:
    path = tmp_path / "rows.jsonl"
    first = ResultsLog(path).get_or_compute(KEY, lambda: next(makes))
    assert ResultsLog(path).get_or_compute(KEY, lambda: next(makes)) == first
    assert ResultsLog(path).get_or_compute(("vit", *KEY[1:]), lambda: next(makes))["value"] == 1
    assert len(path.read_text().splitlines()) == 2


def test_another_precision_is_another_result(
    tmp_path: Path, makes: Iterator[dict[str, Any]]
) -> None:
    path = tmp_path / "rows.jsonl"
    plain = Fabric(accelerator="cpu", devices=1)
    mixed = Fabric(accelerator="cpu", devices=1, precision="bf16-mixed")
    rows = [
        ResultsLog(path, fabric).get_or_compute(KEY, lambda: next(makes))
        for fabric in (plain, mixed, plain)
    ]
    assert [row["value"] for row in rows] == [0, 1, 0]
    assert [row["precision"] for row in rows] == ["32-true", "bf16-mixed", "32-true"]


def test_who_knows_better_how_long_it_took_tells(tmp_path: Path) -> None:
    row = ResultsLog(tmp_path / "rows.jsonl").get_or_compute(KEY, lambda: {"seconds": 1234.5})
    assert row["seconds"] == 1234.5
