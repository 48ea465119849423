"""Run every benchmark, one after the other."""

from benchmarks import attend, classify, company, sample, scale

for benchmark in (attend, scale, sample, classify, company):
    print(f"\n## {benchmark.__name__}")
    benchmark.main()
