"""What a large bad body costs the others: latency of small requests alone, and beside it.

One client asks a server of its own to score `examples/tolokers.json` over and over: 200 times
alone, after 20 that do not count, then for as long as another client posts a bad body of 60 MiB,
five times, one after the other. There are three such bodies: features of which the last is no
number, rows of which the last has one feature, and brackets that are never closed. Printed are the
status and the median time of the bad body's answers, median and worst of the small requests, and
each of the two over the same of those alone.

    python -m benchmarks.bad_neighbor
"""

from __future__ import annotations

import statistics
import threading
import time
from pathlib import Path

import httpx

from benchmarks.machine import describe
from benchmarks.server import serving

SMALL = Path(__file__).parents[1] / "examples" / "tolokers.json"
ROUNDS, SIZE = 5, 60 << 20
HEADERS = {"content-type": "application/json"}


def _bodies() -> dict[str, bytes]:
    row = b"[" + b",".join([b"0.123456"] * 10) + b"],"
    rows = row * (SIZE // len(row))
    return {
        "no number at the end": b'{"graph":{"x":[' + rows + b'[NaN]],"edge_index":[[0],[1]]}}',
        "wrong feature count at the end": (
            b'{"graph":{"x":[' + rows + b'[1]],"edge_index":[[0],[1]]}}'
        ),
        "never closed": b"[" * SIZE,
    }


def _post(client: httpx.Client, body: bytes) -> tuple[float, int]:
    start = time.perf_counter()
    response = client.post("/anomaly/score", content=body, headers=HEADERS)
    return time.perf_counter() - start, response.status_code


def main() -> None:
    print(describe())
    with serving() as client:
        _measure(client, SMALL.read_bytes())


def _measure(client: httpx.Client, small: bytes) -> None:
    alone = [_post(client, small)[0] for _ in range(220)][20:]
    print(
        f"alone: median {1e3 * statistics.median(alone):.1f} ms, worst {1e3 * max(alone):.1f} ms "
        f"of {len(alone)}"
    )
    for name, body in _bodies().items():
        beside: list[float] = []
        answers: list[tuple[float, int]] = []

        def large(body: bytes = body, answers: list[tuple[float, int]] = answers) -> None:
            with httpx.Client(base_url=client.base_url, timeout=120) as other:
                for _ in range(ROUNDS):
                    answers.append(_post(other, body))

        thread = threading.Thread(target=large)
        thread.start()
        while thread.is_alive():
            took, status = _post(client, small)
            assert status == 200
            beside.append(took)
        thread.join()
        statuses = sorted({status for _, status in answers})
        print(
            f"beside {len(body) / 2**20:.0f} MiB, {name}: answered {statuses} in "
            f"{statistics.median(took for took, _ in answers):.2f} s (median of {ROUNDS}); others "
            f"median {1e3 * statistics.median(beside):.1f} ms, worst {1e3 * max(beside):.1f} ms of "
            f"{len(beside)}: {statistics.median(beside) / statistics.median(alone):.1f} and "
            f"{max(beside) / max(alone):.1f} times alone"
        )


if __name__ == "__main__":
    main()
