"""Where the files are that ship with Basin, and where a server keeps its state.

In a checkout both are folders beside the code. In an installed wheel the files that ship are data
of this package (`setup.py`), and the state goes to the platform's folder for it.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from platformdirs import user_cache_path, user_state_path

_CHECKOUT = Path(__file__).resolve().parent.parent
_PACKAGE_DATA = Path(__file__).resolve().parent / "shipped"


def find_shipped(folder: str) -> Path:
    """Return the folder `checkpoints` or `memories` that ships with this installation; of an empty
    name the folder that holds both."""
    return (_PACKAGE_DATA if _PACKAGE_DATA.is_dir() else _CHECKOUT) / folder


def find_state_folder() -> Path:
    """Return the folder of what a server stores: `var/` of a checkout, else the platform's."""
    return user_state_path("basin") if _PACKAGE_DATA.is_dir() else _CHECKOUT / "var"


def set_kernel_cache() -> None:
    """Have an installed wheel cache its compiled kernels in the platform's folder for caches.

    Numba would write them beside the code, where an uninstallation leaves them, and which may be
    read-only. `NUMBA_CACHE_DIR` of the environment counts where it is set.
    """
    if not _PACKAGE_DATA.is_dir() or os.environ.get("NUMBA_CACHE_DIR"):
        return
    os.environ["NUMBA_CACHE_DIR"] = str(user_cache_path("basin") / "kernels")
    if "numba" in sys.modules:  # which has read its environment
        sys.modules["numba"].config.reload_config()
