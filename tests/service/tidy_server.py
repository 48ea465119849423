"""Basin, but it looks for garbage all the time."""

from service import heap
from service.__main__ import main

heap._EVERY_S, heap._ROUNDS = 0.2, 1

if __name__ == "__main__":
    main()
