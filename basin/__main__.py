"""`python -m basin`: the same as the command `basin`."""

from __future__ import annotations

import sys


def main() -> None:
    try:
        from basin.cli import main as run
    except ModuleNotFoundError as error:
        sys.exit(f"{error.name} is not installed. Run: pip install 'basin[cli]'")
    run()


if __name__ == "__main__":
    main()
