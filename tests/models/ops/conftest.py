"""Fixtures of the tests of ops."""

import pytest
import torch


@pytest.fixture
def tuned() -> None:
    """Kernels of training find their configurations, and random numbers are the same in each test."""
    from evalsuite.models.ops import tuning

    if tuning.active() is None:
        tuning.install()
    torch.manual_seed(0)
