"""Run every benchmark, one after the other."""

from benchmarks import (
    attend,
    blocking,
    classify,
    company,
    faithfulness,
    feedforward,
    growth,
    include,
    sample,
    scale,
    step,
    throughput,
)

for benchmark in (
    *(step, growth, feedforward, attend, scale, sample, classify, company),
    *(blocking, throughput, include, faithfulness),
):
    print(f"\n## {benchmark.__name__}")
    benchmark.main()
