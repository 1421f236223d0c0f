"""Losses over the vocabulary and their gradient.

Runs on a CUDA device, or on a CPU under Triton's interpreter (see test_interpreter.py).
"""

import pytest
import torch
from torch.nn import functional

from tests.models.ops.device import DEVICE, INTERPRETED, NEEDS_DEVICE, draw

pytestmark = [*NEEDS_DEVICE, pytest.mark.usefixtures("tuned")]


@pytest.mark.parametrize(("ce", "kl", "temperature"), [(0, 1, 1.0), (0, 1, 2.5), (1, 0, 1.0), (0.5, 2, 1.0)])
@pytest.mark.parametrize("vocabulary", [1000, 49152])
def test_row_losses(ce: float, kl: float, temperature: float, vocabulary: int) -> None:
    from evalsuite.models.ops.distill_loss.training import row_losses

    rows = 2 if INTERPRETED else 64
    logits, teacher = 3 * draw(rows, vocabulary), 3 * draw(rows, vocabulary)
    labels = torch.randint(0, vocabulary, (rows,), device=DEVICE)
    labels[0] = -1
    weights = torch.rand(rows, device=DEVICE)
    exact = logits.double().requires_grad_()
    log_student = (exact / temperature).log_softmax(-1)
    log_teacher = (teacher.double() / temperature).log_softmax(-1)
    divergence = (log_teacher.exp() * (log_teacher - log_student)).sum(-1)
    rows_ce = functional.cross_entropy(exact, labels, reduction="none", ignore_index=-1)
    expected_ce = (rows_ce * weights).sum()
    expected_kl = (divergence * weights).sum() * temperature**2
    (ce * expected_ce + kl * expected_kl).backward()
    found_ce, found_kl, gradient = row_losses(
        logits, teacher, labels, weights, ce=ce, kl=kl, temperature=temperature
    )
    assert gradient is logits
    assert exact.grad is not None
    pairs = [(logits, exact.grad)]
    pairs += [(found_ce, expected_ce)] if ce else []
    pairs += [(found_kl, expected_kl)] if kl else []
    for found, wanted in pairs:
        torch.testing.assert_close(found.double(), wanted.detach(), rtol=1e-3, atol=1e-5)
