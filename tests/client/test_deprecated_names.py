"""Names of the previous release of the Python client, which still work and warn."""

from __future__ import annotations

import base64
import importlib
import io
import sys

import basin_client
import pytest
from basin_client import Client, Job, graph_operations, operations
from PIL import Image

CLASSES = {
    "Classified": "ClassificationResult",
    "Completed": "CompletionResult",
    "Predicted": "Prediction",
    "Recognised": "ImageResult",
    "Sampled": "SampleResult",
    "Unread": "ItemError",
}
MODULES = {"asks": operations, "stored": graph_operations}


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make as if the old modules had never been imported."""
    for name in MODULES:
        monkeypatch.delitem(sys.modules, f"basin_client.{name}", raising=False)
        monkeypatch.delitem(vars(basin_client), name, raising=False)


@pytest.mark.parametrize("old", CLASSES)
def test_classes(old: str) -> None:
    new = CLASSES[old]
    with pytest.warns(DeprecationWarning, match=f"{old} is now basin_client.{new}$") as warned:
        old_class = getattr(basin_client, old)
    assert old_class is getattr(basin_client, new)
    assert warned[0].filename == __file__


def test_from_import_of_a_class() -> None:
    with pytest.warns(DeprecationWarning, match="Prediction") as warned:
        from basin_client import Predicted
    assert Predicted is basin_client.Prediction
    assert warned[0].filename == __file__


@pytest.mark.usefixtures("fresh")
@pytest.mark.parametrize("old", MODULES)
def test_import_of_a_module(old: str) -> None:
    expected = f"basin_client.{old} is now {MODULES[old].__name__}$"
    with pytest.warns(DeprecationWarning, match=expected) as warned:
        module = importlib.import_module(f"basin_client.{old}")
    assert len(warned) == 1
    names = getattr(MODULES[old], "__all__", vars(MODULES[old]))
    public = {name for name in names if not name.startswith("_")}
    assert all(getattr(module, name) is getattr(MODULES[old], name) for name in public)


@pytest.mark.usefixtures("fresh")
@pytest.mark.parametrize("old", MODULES)
def test_attribute_that_is_a_module(old: str) -> None:
    expected = f"basin_client.{old} is now {MODULES[old].__name__}$"
    with pytest.warns(DeprecationWarning, match=expected) as warned:
        module = getattr(basin_client, old)
    assert len(warned) == 1
    assert warned[0].filename == __file__
    assert module.__name__ == f"basin_client.{old}"


@pytest.mark.usefixtures("fresh")
def test_import_statements() -> None:
    with pytest.warns(DeprecationWarning, match=r"basin_client\.operations") as warned:
        import basin_client.asks
    assert warned[0].filename == __file__
    assert basin_client.asks.sample is operations.sample


@pytest.mark.usefixtures("fresh")
def test_from_import_of_a_module() -> None:
    with pytest.warns(DeprecationWarning, match=r"basin_client\.operations") as warned:
        from basin_client import asks
    assert {warning.filename for warning in warned} == {__file__}
    assert asks.complete is operations.complete


@pytest.mark.filterwarnings("ignore:basin_client.asks is now:DeprecationWarning")
def test_functions_that_make_results() -> None:
    from basin_client.asks import completed_of, picture_of

    buffer = io.BytesIO()
    Image.new("L", (3, 2)).save(buffer, "PNG")
    text = base64.b64encode(buffer.getvalue()).decode()
    assert picture_of(text).size == (3, 2)
    result = completed_of({"images": [{"b64_png": text, "convergence": {"steps": 6}}]})
    assert isinstance(result, basin_client.CompletionResult)
    assert result.images[0].size == (3, 2)


@pytest.mark.parametrize("client_type", [Client, basin_client.AsyncClient])
def test_patience_s(client_type: type) -> None:
    with pytest.warns(DeprecationWarning, match=r"max_retry_wait_s=") as warned:
        client = client_type(patience_s=7.0)
    assert client._max_retry_wait_s == 7.0
    assert warned[0].filename == __file__


def test_document_of_a_job() -> None:
    request = operations.classify("C")
    with Client() as client:
        job = Job(client, {"id": "j", "status": "running"}, request)
    with pytest.warns(DeprecationWarning, match=r"Job\.document") as warned:
        assert job.told is job.document
    assert warned[0].filename == __file__


def test_unknown_name() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Missing'"):
        basin_client.Missing  # noqa: B018
