"""Where the tests of Triton kernels run: on a CUDA device, or on a CPU under Triton's interpreter."""

import os

import pytest
import torch

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = "cpu" if INTERPRETED else "cuda"

NEEDS_DEVICE = [
    pytest.mark.gpu,
    pytest.mark.skipif(not INTERPRETED and not torch.cuda.is_available(), reason="no CUDA device"),
]
"""The `pytestmark` of these modules (see test_interpreter.py)."""
