"""Basin, but some SMILES hang or crash what reads them: see `failing_smiles_worker.py`."""

import sys
from pathlib import Path

from service.__main__ import main
from service.workers import smiles_pool

smiles_pool.WORKER_COMMAND = (
    sys.executable,
    str(Path(__file__).with_name("failing_smiles_worker.py")),
)

if __name__ == "__main__":
    main()
