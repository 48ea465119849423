"""Run the benchmarks of the engine, one after the other; tables are printed, figures written."""

import argparse
import sys
from pathlib import Path

from benchmarks import (
    attend,
    bad_neighbor,
    blocking,
    classify,
    complexity,
    faithfulness,
    feedforward,
    include,
    results_file,
    sample,
    scale,
    solvers,
    step,
    throughput,
)

parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
parser.add_argument("file", type=Path, nargs="?", default=Path("runs/bench.json"))
path: Path = parser.parse_args().file
sys.argv[1:] = []  # the benchmarks have arguments of their own
path.parent.mkdir(parents=True, exist_ok=True)
figures = {}
for benchmark in (
    *(step, complexity, feedforward, attend, scale, sample, classify, bad_neighbor),
    *(blocking, throughput, include, solvers, faithfulness),
):
    print(f"\n## {benchmark.__name__}")
    benchmark.main()
    figures[benchmark.__name__] = results_file.take_figures()
    results_file.write(path, figures)
