"""Pictures that are looked at, without HTTP."""

from __future__ import annotations

import numpy as np
import pytest

from models import checkpoint
from models.base import Knobs, Output
from models.inputs.images import Picture
from service.engine import recognise
from service.errors import Problem
from service.jobs import Progress
from service.registry.handles import PictureClassifier, served


def test_no_finite_answer_left(checkpoints, monkeypatch):
    model = served(checkpoint.load(checkpoints / "ait-glyph"))
    assert isinstance(model, PictureClassifier)
    infer = model.network.infer

    def broken(*args):
        output = infer(*args)
        return Output(output.logits * float("nan"), output.solutions)

    monkeypatch.setattr(model.network, "infer", broken)
    picture = Picture(np.zeros(model.config.shape, np.float32))
    with pytest.raises(Problem) as caught:
        recognise(model, [picture], Knobs(), frozenset(), Progress(), lambda: None)
    assert caught.value.kind == "diverged"
