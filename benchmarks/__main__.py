"""Run every benchmark, one after the other."""

from benchmarks import (
    attend,
    blocking,
    classify,
    company,
    faithfulness,
    include,
    sample,
    scale,
    throughput,
)

for benchmark in (
    *(attend, scale, sample, classify, company),
    *(blocking, throughput, include, faithfulness),
):
    print(f"\n## {benchmark.__name__}")
    benchmark.main()
