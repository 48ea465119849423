"""`python -m tests.support.chaos --histories 200 --seed 1`: play random histories.

Prints each history that shows what must not happen, and a shorter one that shows it too.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from tests.support.chaos.histories import Histories


def main() -> None:
    parser = argparse.ArgumentParser("python -m tests.support.chaos", description=__doc__)
    parser.add_argument("--histories", type=int, default=10)
    parser.add_argument("--seed", type=int, default=1, help="of the first; the others follow")
    parser.add_argument("--keep", type=Path, help="folder for what the processes write")
    parser.add_argument("--no-shrink", action="store_true")
    args = parser.parse_args()
    folder = args.keep or Path(tempfile.mkdtemp())
    began, failed, counts = time.monotonic(), list[int](), Counter[str]()
    with Histories(folder) as histories:
        for seed in range(args.seed, args.seed + args.histories):
            violation = histories.play_seed(seed, counts)
            if violation is None:
                continue
            failed.append(seed)
            print(f"seed {seed}: {violation}", flush=True)
            if not args.no_shrink:
                steps, reason = histories.shrink(seed, violation)
                print(f"  shortest: {'; '.join(map(str, steps))}\n  {reason}", flush=True)
    print(", ".join(f"{kind} {count}" for kind, count in sorted(counts.items())))
    print(
        f"{args.histories} histories, seeds {args.seed} to {args.seed + args.histories - 1}: "
        f"{len(failed)} with violations {failed or ''}, {time.monotonic() - began:.0f} s"
    )
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
