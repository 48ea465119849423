"""A completion by itself: its windows, noise, interrupts and size."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from models import checkpoint
from models.base import DynamicsParams, Output
from models.dynamics import RUN_ALONE, StopReason
from models.inputs.image_files.data import ImageData
from models.inputs.inpainting.plan import Tiling, plan_windows
from models.sampling import RunInterruptedError
from service.endpoints.common.convergence import MeanConvergence
from service.endpoints.complete import infer
from service.endpoints.complete.infer import CompleteInputs, complete_image
from service.endpoints.complete.routes import require_response_fits
from service.errors import Problem
from service.media_types import JSON, PNG
from service.observability.progress import Progress
from service.registry.handles import Completer, handle_for
from service.settings import Settings
from tests.support.completion import (
    HOLE,
    SHAPE,
    hole,
)
from tests.support.image_files import smooth
from tests.support.stop_when import StopWhen


def test_windows_have_noise_of_their_own(tile):
    """Two windows that see the same would otherwise be filled the same."""
    flat = ImageData(np.full((16, 64, 3), 100, np.uint8))
    hole = np.zeros((16, 64), bool)
    hole[6:9, 6:9] = hole[6:9, 54:57] = True
    plan = plan_windows(hole, Tiling.from_size(16), 99)
    assert plan.levels[0].corners.tolist() == [[0, 0], [0, 48]]

    def both(noise):
        knobs = DynamicsParams(noise=noise, seed=1)
        task = CompleteInputs(tile, flat, plan, 1, knobs, frozenset())
        [done] = complete_image(task, Progress(), RUN_ALONE).completions
        return done.image.pixels[6:9, 6:9], done.image.pixels[6:9, 54:57]

    np.testing.assert_array_equal(*both(0.0))
    assert not np.array_equal(*both(0.5))


def test_the_mean_of_courses_of_different_length():
    class Some:
        def __init__(self, *energies):
            self.energies = np.array(energies)

        def totals(self):
            return [{"energy": self.energies}]

    mean = MeanConvergence()
    for one in (Some(6.0, 4.0), Some(3.0, 2.0, 1.0), Some(9.0)):
        mean.add(one, 1)  # type: ignore[arg-type]
    energies = [entry["energy"] for entry in mean.trace(num_nodes=2)]
    assert energies == [18 / 6, 15 / 6, 14 / 6]


def test_progress_counts_what_the_network_sees(checkpoints):
    model = handle_for(checkpoint.load_checkpoint(checkpoints / "et-grey"))
    assert isinstance(model, Completer)
    progress, picture = Progress(), ImageData(smooth(*SHAPE))
    plan = plan_windows(HOLE, Tiling.from_size(16), 99)
    task = CompleteInputs(model, picture, plan, 2, DynamicsParams(), frozenset())
    done = complete_image(task, progress, RUN_ALONE)
    assert progress.step == progress.steps == 2 * 3 * plan.num_windows
    assert [one.convergence["windows"] for one in done.completions] == [3, 3]


def test_no_finite_pixel_left(tile, monkeypatch):
    infer = tile.network.infer

    def broken(*args):
        output = infer(*args)
        return Output(output.logits * float("nan"), output.solutions)

    monkeypatch.setattr(tile.network, "infer", broken)
    plan = plan_windows(HOLE, Tiling.from_size(16), 99)
    task = CompleteInputs(tile, ImageData(smooth(*SHAPE)), plan, 1, DynamicsParams(), frozenset())
    with pytest.raises(Problem) as caught:
        complete_image(task, Progress(), RUN_ALONE)
    assert caught.value.kind == "diverged"


def test_an_interrupt_ends_it_within_a_step(tile):
    asked = 0

    def stop_after_five():
        nonlocal asked
        asked += 1
        return StopReason.CANCELLED if asked > 5 else None

    plan = plan_windows(HOLE, Tiling.from_size(16), 99)
    task = CompleteInputs(
        tile, ImageData(smooth(*SHAPE)), plan, 16, DynamicsParams(steps=64), frozenset()
    )
    with pytest.raises(RunInterruptedError):
        complete_image(task, Progress(), StopWhen(stop_after_five))
    assert asked < 9  # the step at hand, the block after it, and the window


def test_an_answer_larger_than_is_allowed(tile):
    picture, plan = ImageData(smooth(*SHAPE)), plan_windows(HOLE, Tiling.from_size(16), 99)
    settings = Settings(max_response_bytes=2 * 20 * 30 * 4)

    def ask(picture, count, include=(), form=JSON):
        task = CompleteInputs(tile, picture, plan, count, DynamicsParams(), frozenset(include))
        require_response_fits(task, form, settings)

    ask(picture, 2)
    ask(picture, 2, (), PNG)  # a quarter smaller
    profiled = replace(picture, profile=bytes(9))
    for asked in ((picture, 3), (picture, 2, ("trace",)), (picture, 3, (), PNG), (profiled, 2)):
        with pytest.raises(Problem) as caught:
            ask(*asked)
        assert caught.value.faults[0].pointer == "/num_samples"


def test_the_prefill_has_a_cost(tile):
    """Of samples the one solve is shared where no smaller scale comes before it."""

    def cost(box, samples):
        marked = hole((64, 64), *box)
        plan = plan_windows(marked, Tiling.from_size(16), 999)
        picture = ImageData(smooth(64, 64))
        task = CompleteInputs(tile, picture, plan, samples, DynamicsParams(), frozenset())
        return task.cost - task.rows * task.patches * (1 + 2 * 3), plan

    thin, plan = cost((8, 8, 12, 40), 1)
    assert len(plan.levels) == 1
    assert thin == pytest.approx(4 * 32 * infer.COST_DIRECT)
    assert cost((8, 8, 12, 40), 5)[0] == pytest.approx(thin)
    wide, plan = cost((8, 8, 56, 56), 1)
    pixels = [int(level.completed.sum()) for level in plan.levels]
    assert len(pixels) > 1
    assert wide == pytest.approx(sum(pixels) * infer.COST_DIRECT)
    several = 5 * sum(pixels[:-1]) + pixels[-1]
    assert cost((8, 8, 56, 56), 5)[0] == pytest.approx(several * infer.COST_DIRECT)
