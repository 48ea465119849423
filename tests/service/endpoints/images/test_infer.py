"""Pictures that are looked at, without HTTP."""

from __future__ import annotations

import numpy as np
import pytest

from models import checkpoint
from models.base import DynamicsParams, Output
from models.dynamics import RUN_ALONE
from models.inputs.images import ImageInput
from service.endpoints.images.infer import recognise
from service.errors import Problem
from service.observability.progress import Progress
from service.registry.handles import ImageClassifier, handle_for


def test_no_finite_answer_left(checkpoints, monkeypatch):
    model = handle_for(checkpoint.load_checkpoint(checkpoints / "ait-glyph"))
    assert isinstance(model, ImageClassifier)
    infer = model.network.infer

    def broken(*args):
        output = infer(*args)
        return Output(output.logits * float("nan"), output.solutions)

    monkeypatch.setattr(model.network, "infer", broken)
    picture = ImageInput(np.zeros(model.config.shape, np.float32))
    with pytest.raises(Problem) as caught:
        recognise(model, [picture], DynamicsParams(), frozenset(), Progress(), RUN_ALONE)
    assert caught.value.kind == "diverged"
