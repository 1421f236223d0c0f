"""Shapes of captured decode steps, and captured steps on a GPU."""

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from evalsuite.models.inference.requests import GenerateRequest, SamplingParams, ScoreRequest
from evalsuite.models.inference.torch.cuda_graphs import round_up_length, round_up_num_seqs
from evalsuite.models.inference.torch.engine import TorchEngine
from evalsuite.models.ops.dispatch import KernelPolicy, kernel_policy


@given(st.integers(1, 600), st.integers(0, 600))
def test_rounding_never_shrinks(rows: int, more: int) -> None:
    most = rows + more
    assert rows <= round_up_num_seqs(rows, most) <= most
    assert min(64 * rows, most * 64) <= round_up_length(64 * rows, 64 * most) <= 64 * most


def test_few_sizes() -> None:
    assert {round_up_num_seqs(rows, 512) for rows in range(1, 513)} == {8, 32, 128, 512}
    assert {round_up_length(length, 1984) for length in range(1, 1985)} == {128, 256, 512, 1024, 1984}


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("kind", ["llama", "gated_deltanet+softmax+gla", "sliding_window+gla+softmax"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("policy", ["torch", "auto"])
def test_gpu_equals_cpu(
    build: Callable[..., Any], kind: str, dtype: torch.dtype, policy: KernelPolicy
) -> None:
    torch.backends.cuda.matmul.allow_tf32 = False
    # Rows of at most 60 tokens run on kernels that compute token by token, in full float32.
    with kernel_policy(policy):
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
            for sampling in (SamplingParams(40), SamplingParams(40, 1.0, 0.9, 20)):
                requests = [GenerateRequest(ids(1, 60), sampling, seed) for seed in range(64)]
                eager, captured = dict(cpu.generate(requests)), dict(gpu.generate(requests))
                assert sum(eager[i] == captured[i] for i in range(64)) >= 62
                again = dict(gpu.generate(requests))  # Replays the graphs of the first call.
                assert sum(again[i] == captured[i] for i in range(64)) >= 62
