"""`python -m basin`, which is `basin` once it is installed."""

from __future__ import annotations

import sys


def main() -> None:
    try:
        from basin.cli import main as run
    except ModuleNotFoundError as error:
        sys.exit(f"{error.name} is missing: pip install 'basin[cli]'")
    run()


if __name__ == "__main__":
    main()
