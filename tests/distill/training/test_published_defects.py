"""Switches that reproduce defects of published code do what that code does; without them nothing changes."""

from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from torch import Tensor

from evalsuite.distill.defects import leaking_recurrence
from evalsuite.distill.objectives.forward import hidden_states, set_recurrence
from evalsuite.distill.optim.optimizers import Optimizer
from evalsuite.distill.recipe.stage import Stage
from evalsuite.distill.training.train_step import StudentTrainState
from evalsuite.distill.types import MicroBatch
from evalsuite.models import build_student
from evalsuite.models.ops.recurrence import compute_recurrence

MIXERS = ("gated_deltanet", "kda", "mlstm", "retnet")


def rows(count: int, length: int) -> Tensor:
    return torch.randint(8, 500, (count, length), generator=torch.Generator().manual_seed(0))


def hidden(student: Any, tokens: Tensor, *, leaks: bool, bounds: list[int] | None = None) -> Tensor:
    set_recurrence(student, leaking_recurrence if leaks else compute_recurrence)
    batch = MicroBatch(tokens, tokens)
    if bounds is not None:
        cu_seqlens = torch.tensor(bounds, dtype=torch.int32)
        positions = torch.cat([torch.arange(end - start) for start, end in pairwise(bounds)])
        batch = MicroBatch(tokens, tokens, None, positions.view_as(tokens), cu_seqlens)
    with torch.no_grad():
        return hidden_states(student, batch)


@pytest.mark.parametrize("mixer", MIXERS)
def test_a_leaking_state_runs_on_from_row_to_row(teacher, mixer):
    """Without convolution and rotary embedding, rows then equal one long sequence."""
    student = build_student(teacher, mixer, options={mixer: {"short_conv": 0, "rotary": False}}).double()
    tokens = rows(3, 8)
    alone = hidden(student, tokens, leaks=False)
    leaking = hidden(student, tokens, leaks=True)
    one_row = hidden(student, tokens.view(1, -1), leaks=False).view_as(leaking)
    torch.testing.assert_close(leaking, one_row)
    torch.testing.assert_close(leaking[0], alone[0])
    assert (leaking[1:] - alone[1:]).abs().max() > 1e-3
    torch.testing.assert_close(hidden(student, tokens, leaks=False), alone)


def test_convolutions_and_softmax_layers_do_not_leak(teacher):
    student = build_student(teacher, ["softmax", "gated_deltanet", "softmax"]).double()
    tokens, bounds = rows(2, 8), [0, 5, 8, 16]
    alone = hidden(student, tokens, leaks=False, bounds=bounds)
    leaking = hidden(student, tokens, leaks=True, bounds=bounds)
    torch.testing.assert_close(leaking.view(16, -1)[:5], alone.view(16, -1)[:5])
    assert (leaking - alone).view(16, -1)[5:].abs().amax(-1).min() > 1e-6
    # With a state of zero, only convolutions and attention could carry anything over.
    for layer in student.model.layers[1:2]:
        layer.self_attn.b_proj.weight.data.zero_()
        layer.self_attn.v_proj.weight.data.zero_()
    alone = hidden(student, tokens, leaks=False, bounds=bounds)
    torch.testing.assert_close(hidden(student, tokens, leaks=True, bounds=bounds), alone)


def test_only_the_stage_that_asks_for_it_leaks(teacher, stage):
    state = StudentTrainState("s", build_student(teacher, "kda").train())
    mixers = [layer.self_attn for layer in state.model.model.layers]
    for objective, recurrence in (
        ("kd_leaking_state", leaking_recurrence),
        ("kd", compute_recurrence),
        ("sft_leaking_state", leaking_recurrence),
        ("attention_output", compute_recurrence),
    ):
        state.begin_stage(Stage.model_validate(stage("s", objective)))
        assert [mixer.recurrence for mixer in mixers] == [recurrence] * len(mixers)


def test_the_batchmean_kl_is_seq_len_times_larger(stage):
    tokens: Any = SimpleNamespace(distillation=lambda loss: loss)
    settings = {"loss": {"ce": 0.5, "kl": 2.0}}
    correct, defect = (
        Stage.model_validate(stage("s", objective, **settings)).loss_columns(tokens)
        for objective in ("kd", "kd_batchmean")
    )
    assert (defect.ce, defect.kl) == (correct.ce, 64 * correct.kl)


def updated(stage: Any, dtype: torch.dtype, lr: float, **optimizer: Any) -> Tensor:
    """A weight after five steps on fixed gradients."""
    chosen = Stage.model_validate(stage("s", "kd", lr=lr, optimizer={"weight_decay": 0.0, **optimizer}))
    generator = torch.Generator().manual_seed(0)
    weight = torch.nn.Parameter(torch.randn(64, 8, generator=generator).bfloat16().to(dtype))
    (made,) = chosen.optimizer.build({"weight": weight}, lambda name: lr, set())
    for _ in range(5):
        weight.grad = torch.randn(64, 8, generator=generator).bfloat16().to(dtype)
        made.step()
    return weight.detach().float()


def test_bf16_weights_are_updated_as_by_pytorch(stage):
    found = updated(stage, torch.float32, 1e-2, kind="adamw_bf16")
    torch.testing.assert_close(found, updated(stage, torch.bfloat16, 1e-2), rtol=2**-7, atol=0)
    assert (found == updated(stage, torch.bfloat16, 1e-2)).float().mean() > 0.98
    assert torch.equal(found, found.bfloat16().float())


def test_bf16_weights_lose_small_updates(stage):
    """A step of 1e-4 is below half the distance of bf16 numbers for all weights above 0.05."""
    start = updated(stage, torch.float32, 1e-30)
    large = start.abs() > 0.06
    assert torch.equal(updated(stage, torch.float32, 1e-4, kind="adamw_bf16")[large], start[large])
    assert (updated(stage, torch.float32, 1e-4) != start).all()


def test_bf16_weights_have_32_bit_states():
    with pytest.raises(ValidationError, match="state_bits"):
        Optimizer.model_validate({"kind": "adamw_bf16", "state_bits": 8})
