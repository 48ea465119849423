"""Compile the numba kernels once, before tests run in several processes: `make test` calls this.

Compiling takes a minute or two, more when every server of the tests does it at the same time.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from service.registry.loader import ModelLoader
from service.storage.graphs.dynamic_graph import warm_up as warm_up_graphs
from tests.support.checkpoints import save_checkpoints
from tests.support.paths import CHECKPOINTS


def main() -> None:
    warm_up_graphs()
    with tempfile.TemporaryDirectory() as name:
        small = Path(name)
        save_checkpoints(small)
        for threads in (1, 2):  # one uses the serial kernels, two also the parallel ones
            loader = ModelLoader(threads=threads)
            for folder in sorted((*small.iterdir(), *CHECKPOINTS.iterdir())):
                loader.load(folder)


if __name__ == "__main__":
    main()
