"""Basin, but it looks for garbage all the time."""

from service.__main__ import main
from service.observability import malloc

malloc._TRIM_INTERVAL_S, malloc._TRIMS_PER_COLLECTION = 0.2, 1

if __name__ == "__main__":
    main()
