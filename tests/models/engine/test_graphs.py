"""Sizes that captured steps are rounded to, and captured steps on a GPU."""

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from evalsuite.models.engine.graphs import rounded_length, rounded_rows
from evalsuite.models.engine.requests import GenerateRequest, Sampling, ScoreRequest
from evalsuite.models.engine.torch_engine import TorchEngine
from evalsuite.models.recurrence import op


@given(st.integers(1, 600), st.integers(0, 600))
def test_sizes_hold_what_is_asked(rows: int, more: int) -> None:
    most = rows + more
    assert rows <= rounded_rows(rows, most) <= most
    assert min(64 * rows, most * 64) <= rounded_length(64 * rows, 64 * most) <= 64 * most


def test_few_sizes() -> None:
    assert {rounded_rows(rows, 512) for rows in range(1, 513)} == {8, 32, 128, 512}
    assert {rounded_length(length, 1984) for length in range(1, 1985)} == {128, 256, 512, 1024, 1984}


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("kind", ["llama", "gated_deltanet+softmax+gla", "sliding_window+gla+softmax"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("backend", ["torch", "auto"])
def test_gpu_equals_cpu(
    build: Callable[..., Any], kind: str, dtype: torch.dtype, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.backends.cuda.matmul.allow_tf32 = False
    # Contexts of at most 60 tokens: fla's kernels then go token by token, in full float32.
    monkeypatch.setattr(op, "_chosen", backend)
    here, there = build(kind), build(kind)
    there.model = there.model.to("cuda", dtype)
    cpu, gpu = TorchEngine(here), TorchEngine(there)
    draw = random.Random(0)

    def ids(low: int, high: int) -> tuple[int, ...]:
        return tuple(draw.randrange(4, 400) for _ in range(draw.randint(low, high)))

    scored = [
        ScoreRequest(ids(1, 60), tuple(ids(1, 9) for _ in range(draw.choice([1, 4])))) for _ in range(40)
    ]
    expected, found = dict(cpu.score(scored)), dict(gpu.score(scored))
    tolerance = 2e-3 if dtype == torch.float32 else 1.5
    for index in range(40):
        assert found[index].logprobs == pytest.approx(expected[index].logprobs, abs=tolerance)
    if dtype == torch.float32:
        for sampling in (Sampling(40), Sampling(40, 1.0, 0.9, 20)):
            written = [GenerateRequest(ids(1, 60), sampling, seed) for seed in range(64)]
            alone, captured = dict(cpu.generate(written)), dict(gpu.generate(written))
            assert sum(alone[i] == captured[i] for i in range(64)) >= 62
