"""Basin, but some SMILES hang or crash what reads them: see `troubled_child.py`."""

import sys
from pathlib import Path

from service.__main__ import main
from service.molecules import parser

parser.COMMAND = (sys.executable, str(Path(__file__).with_name("troubled_child.py")))

if __name__ == "__main__":
    main()
