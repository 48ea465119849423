"""`python -m basin`: the same as the command `basin`."""

from basin.cli import main

if __name__ == "__main__":
    main()
