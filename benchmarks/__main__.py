"""Run every benchmark, one after the other; tables are printed, and figures written to a file.

python -m benchmarks [FILE]
"""

import sys
from pathlib import Path

from benchmarks import (
    attend,
    blocking,
    classify,
    company,
    faithfulness,
    feedforward,
    growth,
    include,
    kept,
    sample,
    scale,
    solvers,
    step,
    throughput,
)

path, sys.argv[1:] = Path(*sys.argv[1:2] or ["runs/bench.json"]), []
path.parent.mkdir(parents=True, exist_ok=True)
found = {}
for benchmark in (
    *(step, growth, feedforward, attend, scale, sample, classify, company),
    *(blocking, throughput, include, solvers, faithfulness),
):
    print(f"\n## {benchmark.__name__}")
    benchmark.main()
    found[benchmark.__name__] = kept.taken()
    kept.write(path, found)
