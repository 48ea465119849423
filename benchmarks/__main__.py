"""Run every benchmark, one after the other."""

from benchmarks import attend, classify, company, faithfulness, include, sample, scale

for benchmark in (attend, scale, sample, classify, company, include, faithfulness):
    print(f"\n## {benchmark.__name__}")
    benchmark.main()
