"""Run every benchmark, one after the other; tables are printed, and figures written to a file.

python -m benchmarks [FILE]
"""

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

path, sys.argv[1:] = Path(*sys.argv[1:2] or ["runs/bench.json"]), []
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
