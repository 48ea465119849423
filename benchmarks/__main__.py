"""Run every benchmark, one after the other."""

from benchmarks import attend, sample, scale

for benchmark in (attend, scale, sample):
    print(f"\n## {benchmark.__name__}")
    benchmark.main()
