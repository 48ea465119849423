"""The script for a GPU runs where there is none, in small."""

from __future__ import annotations

import pytest
import torch

from benchmarks import gpu, results_file


def test_pictures_in_each_precision(capsys: pytest.CaptureFixture[str]) -> None:
    results_file.take_figures()
    gpu.pictures("cpu", gpu.SMALL, gpu.SMALL_SIDE)
    lines = [line.split("|") for line in capsys.readouterr().out.splitlines()[2:]]
    off = {line[1].strip(): float(line[5]) for line in lines}
    assert off["float32"] == 0
    assert 0 < off["bfloat16"] < 0.05
    assert len(results_file.take_figures()) == 6


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_it_says_that_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["gpu"])
    with pytest.raises(SystemExit, match="no GPU"):
        gpu.main()
