"""Models by name, and who sees which."""

from __future__ import annotations

from pathlib import Path

import pytest

from service.errors import Problem
from service.registry.handles import Scorer
from service.registry.loader import ModelLoader
from service.registry.registry import Registry


def test_a_server_that_ends_loads_no_more(
    checkpoints: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry, read, ready = Registry(), [], ModelLoader.load

    def first(machine: ModelLoader, path: Path) -> object:
        read.append(path)
        registry.stop_loading()
        return ready(machine, path)

    monkeypatch.setattr(ModelLoader, "load", first)
    registry.load(checkpoints)
    assert len(read) == 1
    assert registry.list_models() == []
    with pytest.raises(Problem, match="not-ready"):
        registry.require_loaded()


def test_a_view_has_its_models_alone(checkpoints: Path) -> None:
    registry = Registry()
    registry.load(checkpoints)
    view = registry.scoped(frozenset({"et-small", "not-there"}))
    assert [model.name for model in view.list_models()] == ["et-small"]
    assert view.get_of_kind(Scorer, "et-small").name == "et-small"
    refused = {}
    for name in ("cdat-small", "not-there", "nothing"):
        with pytest.raises(Problem) as caught:
            view.get(name)
        refused[name] = caught.value.kind
    # What it may not see is refused whether it is there or not.
    assert refused == {
        "cdat-small": "forbidden",
        "nothing": "forbidden",
        "not-there": "unknown-model",
    }
    assert len(registry.scoped(None).list_models()) == len(registry.list_models()) > 1
    registry.drop("et-small")
    assert view.list_models() == []
