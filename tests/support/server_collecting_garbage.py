"""Basin, but it looks for garbage all the time."""

from service.__main__ import main
from service.observability import malloc

malloc._EVERY_S, malloc._ROUNDS = 0.2, 1

if __name__ == "__main__":
    main()
