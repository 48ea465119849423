"""What `python -m benchmarks` writes beside its tables."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.results_file import record, take_figures, write
from benchmarks.timing import medians


def test_medians_quartiles_and_ratios_come_to_the_file(tmp_path: Path) -> None:
    take_figures()
    median = record("a case", "peer", {"peer": [4.0, 2.0, 3.0], "ours": [1.0, 1.0, 7.0]})
    assert median == {"peer": 3, "ours": 1}
    write(
        tmp_path / "bench.json",
        {"some": take_figures(), "more": take_figures()},
    )
    told = json.loads((tmp_path / "bench.json").read_text())
    assert "torch" in told["machine"]
    assert told["benchmarks"]["more"] == []
    peer, ours = told["benchmarks"]["some"]
    assert (peer["case"], peer["work"], peer["ratio"]) == ("a case", "peer", 1)
    assert (ours["median_s"], ours["quartiles_s"], ours["rounds"]) == (1, [1, 4], 3)
    assert (ours["peer"], ours["ratio"]) == ("peer", 3)


def test_works_take_turns_and_the_first_does_not_count() -> None:
    take_figures()
    seen = []
    works = {name: (lambda name=name: seen.append(name)) for name in "ab"}
    found = medians(works, "turns", "a", repeats=2, rounds=3)
    assert seen == list("aabb") * 4
    figures = take_figures()
    assert [figure["work"] for figure in figures] == list(found) == ["a", "b"]
    assert all(figure["rounds"] == 3 for figure in figures)
    assert found["b"] == pytest.approx(figures[1]["median_s"])
