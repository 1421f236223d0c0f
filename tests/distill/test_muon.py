"""Muon with matrices taken together is torch's own, which takes them one by one."""

import torch
from torch import nn

from evalsuite.distill.muon import Muon, orthogonalized

SHAPES = [(16, 16), (16, 16), (16, 16), (3, 16), (16, 40), (40, 16)]


def matrices() -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(0)
    return [nn.Parameter(torch.randn(shape, generator=generator)) for shape in SHAPES]


def test_equals_torchs_muon_step_by_step():
    ours, theirs = matrices(), matrices()
    mine = Muon(ours, lr=3e-2, weight_decay=0.1, momentum=0.9)
    reference = torch.optim.Muon(
        theirs, lr=3e-2, weight_decay=0.1, momentum=0.9, adjust_lr_fn="match_rms_adamw"
    )
    generator = torch.Generator().manual_seed(1)
    for _ in range(4):
        for a, b in zip(ours, theirs, strict=True):
            a.grad = torch.randn(a.shape, generator=generator)
            b.grad = a.grad.clone()
        mine.step()
        reference.step()
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=2e-3)


def test_a_parameter_without_gradient_stays():
    ours = matrices()
    before = [parameter.detach().clone() for parameter in ours]
    ours[0].grad = torch.ones_like(ours[0])
    Muon(ours, lr=1e-2).step()
    assert not torch.equal(ours[0], before[0])
    assert all(torch.equal(a, b) for a, b in zip(ours[1:], before[1:], strict=True))


def test_singular_values_come_near_one():
    values = torch.linalg.svdvals(orthogonalized(torch.randn(4, 24, 64)).float())
    assert values.min() > 0.5
    assert values.max() < 1.4
