"""Either library multiplies alike, and only one of them where gradients are wanted."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from models import products
from models.products import Linear, linear


@pytest.mark.parametrize("lead", [(200,), (4, 50), (2, 2, 50)])
@pytest.mark.parametrize("biased", [True, False])
def test_it_is_the_linear_map_of_torch(
    lead: tuple[int, ...], biased: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    x, weight = torch.randn(*lead, 300)[..., 4:260], torch.randn(100, 256)
    bias = torch.randn(100) if biased else None
    known = torch.nn.functional.linear(
        x.double(), weight.double(), None if bias is None else bias.double()
    )
    for wide in (True, False):
        monkeypatch.setattr(products, "_ONEDNN", wide)
        with torch.no_grad():
            torch.testing.assert_close(linear(x, weight, bias).double(), known, rtol=0, atol=1e-4)
        with torch.inference_mode():
            torch.testing.assert_close(linear(x, weight, bias).double(), known, rtol=0, atol=1e-4)


def test_gradients_and_other_precisions_are_torch_s(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "_ONEDNN", True)
    layer, x = Linear(256, 100), torch.randn(200, 256, requires_grad=True)
    layer(x).square().sum().backward()
    assert x.grad is not None
    assert layer.weight.grad is not None
    with torch.no_grad():
        with torch.autocast("cpu", torch.bfloat16):
            assert layer(x).dtype == torch.bfloat16
        assert layer.double()(x.double()).dtype == torch.float64


def test_which_processors(tmp_path: Path) -> None:
    told = {"AuthenticAMD fpu avx512f": True, "GenuineIntel avx512f": False, "AuthenticAMD": False}
    for text, wide in told.items():
        (tmp_path / "cpuinfo").write_text(text)
        assert products._wide(tmp_path / "cpuinfo") is (wide and torch.backends.mkl.is_available())
    assert not products._wide(tmp_path / "none")
