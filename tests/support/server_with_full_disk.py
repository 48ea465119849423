"""Basin where no file may grow beyond a megabyte, as if its disk were full by then."""

import resource

from service.__main__ import main

if __name__ == "__main__":
    resource.setrlimit(
        resource.RLIMIT_FSIZE, (1 << 20, resource.getrlimit(resource.RLIMIT_FSIZE)[1])
    )
    main()
