"""Run every benchmark, one after the other."""

from benchmarks import attend, company, sample, scale

for benchmark in (attend, scale, sample, company):
    print(f"\n## {benchmark.__name__}")
    benchmark.main()
