"""The loop that every task shares."""

from __future__ import annotations

import torch

from training.trainer import _centralize_gradients, _weights_to_centralize


def test_centralised_gradients() -> None:
    few, many = torch.nn.Linear(1, 12), torch.nn.Linear(12, 3)
    network = torch.nn.Sequential(few, torch.nn.ReLU(), many)
    network(torch.randn(5, 1)).square().sum().backward()
    before = {name: p.grad.clone() for name, p in network.named_parameters() if p.grad is not None}
    _centralize_gradients(_weights_to_centralize(network))
    after = {name: p.grad for name, p in network.named_parameters() if p.grad is not None}
    assert after["2.weight"].mean(1).abs().max() < 1e-6
    assert not torch.equal(after.pop("2.weight"), before["2.weight"])
    for name, gradient in after.items():  # the map of one input above all
        assert torch.equal(gradient, before[name])
