"""A run that is killed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from training import trainer


@contextmanager
def killed_after(epoch: int) -> Iterator[None]:
    """Training within the context must end there, once the state after `epoch` is written."""
    write = trainer._RunState._save

    def killed(self: trainer._RunState, run: Path) -> None:
        write(self, run)
        if self.epoch == epoch:
            raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trainer._RunState, "_save", killed)
        with pytest.raises(KeyboardInterrupt):
            yield
