"""Every kernel for inference passes its proof, and a wrong one does not.

Runs on a CUDA device, or on a CPU under Triton's interpreter (see test_interpreter.py).
"""

from collections.abc import Iterator
from typing import Any, get_args

import pytest
import torch
from torch import Tensor

from evalsuite.models.ops import attention, gates, glu, logprobs, recurrence, rms_norm, rotary, short_conv
from evalsuite.models.ops.dispatch import Op
from evalsuite.models.ops.recurrence.inputs import DecayShape, Rule
from tests.models.ops.device import DEVICE, INTERPRETED, NEEDS_DEVICE

pytestmark = NEEDS_DEVICE

HEADS = [(6, 2, 32), (2, 2, 16)] + [(9, 3, 64), (32, 8, 128)] * (not INTERPRETED)
OPS: list[tuple[Op[..., Any], tuple[Any, ...]]] = [
    *((rms_norm.rms_norm, (gain,)) for gain in get_args(rms_norm.Gain)),
    *((rms_norm.sandwich_norm, (gain,)) for gain in get_args(rms_norm.Gain)),
    *((rms_norm.qk_norm, (gain,)) for gain in get_args(rms_norm.Gain)),
    (rms_norm.l2_norm, ()),
    (rotary.rotary, ()),
    *((glu.glu, (activation,)) for activation in get_args(glu.Activation)),
    (short_conv.short_convolutions, ()),
    (gates.gates_of_logits, ()),
    (logprobs.row_logprobs, ()),
    *((attention.decode_attention, shape) for shape in HEADS),
    *((attention.branch_attention, shape) for shape in HEADS),
    *((attention.rotate_and_store, shape) for shape in HEADS),
    *(
        (recurrence.op.recurrent, (decay, rule, two_keys))
        for decay in get_args(DecayShape)
        for rule in get_args(Rule)
        for two_keys in {False, rule == "generalized delta rule"}
    ),
]
DTYPES = [torch.float32, torch.float16, torch.bfloat16]


def cases() -> Iterator[Any]:
    for each, form in OPS:
        for dtype in DTYPES:
            assert each.inference is not None
            fits = each.inference.dtypes is None or dtype in each.inference.dtypes
            # The interpreter truncates to bfloat16, and has no products of such matrices.
            if fits and not (INTERPRETED and dtype == torch.bfloat16):
                yield pytest.param(each, form, dtype, id=f"{each.__name__}-{form}-{dtype}")


@pytest.mark.parametrize(("each", "form", "dtype"), cases())
def test_the_kernel_proves_right_and_a_wrong_one_does_not(
    each: Op[..., Any],
    form: tuple[Any, ...],
    dtype: torch.dtype,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr("evalsuite.models.ops.dispatch._messages", set())
    monkeypatch.setattr(each, "_proofs", {})
    device = torch.device(DEVICE)
    with torch.inference_mode():
        off = max(each.deviations(device, dtype, *form))
    assert off < {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1.5e-2}[dtype]
    assert each.proven(device, dtype, *form)
    right = each.load("inference")
    module = each._modules["inference"]
    outputs = len(list(flat(right(*next(iter(sample(each, form, device, dtype)))))))
    for changed in range(outputs):

        def wrong(*arguments: Any, changed: int = changed) -> list[Tensor]:
            found = [x.clone() for x in flat(right(*arguments))]
            found[changed] = ~found[changed] if found[changed].dtype == torch.bool else found[changed] * 1.05
            return found

        monkeypatch.setattr(module, each.__name__, wrong)
        monkeypatch.setattr(each, "_proofs", {})
        assert not each.proven(device, dtype, *form), changed
    assert "off by" in caplog.text


def sample(each: Op[..., Any], form: tuple[Any, ...], device: torch.device, dtype: torch.dtype) -> Any:
    assert each.inference is not None
    assert each.inference.samples is not None
    return each.inference.samples(lambda *shape: torch.randn(*shape, device=device).to(dtype), *form)


def flat(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    else:
        for each in value:
            yield from flat(each)
