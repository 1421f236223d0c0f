"""Arguments of fla's kernels, checked by stand-ins without a GPU."""

from typing import Any

import pytest
import torch
from torch import Tensor

from evalsuite.foundation import ConfigError
from evalsuite.models.ops.recurrence import RecurrenceInputs, fla_backend
from evalsuite.models.ops.recurrence.chunked import chunked
from tests.parity.kernel_accuracy import recurrence

CASES = [(decay, delta) for decay in ("none", "head", "scalar", "channel") for delta in (False, True)]
NAMES = {
    "chunk_simple_gla": {"g", "g_gamma"},
    "chunk_gla": {"g"},
    "chunk_delta_rule": {"beta"},
    "chunk_gated_delta_rule": {"g", "beta"},
    "chunk_kda": {"g", "beta"},
}
PER_CHANNEL = ("chunk_gla", "chunk_kda")


def stand_in(kernel: fla_backend.Kernel) -> Any:
    """A function with fla's signature that computes in torch."""

    def call(q: Tensor, k: Tensor, v: Tensor, *, scale: float, **given: Any) -> tuple[Tensor, Tensor]:
        assert v.shape[-1] % 16 == 0, "the kernels reject odd widths"
        assert given.pop("output_final_state") is True
        start, bounds = given.pop("initial_state"), given.pop("cu_seqlens")
        assert set(given) <= NAMES[kernel.name]
        assert all(x.dtype == torch.float32 and x.is_contiguous() for x in given.values())
        if "beta" in NAMES[kernel.name]:
            assert "beta" in given
        if "g" in given:
            assert given["g"].shape == (q.shape if kernel.name in PER_CHANNEL else q.shape[:3])
        if kernel.name == "chunk_delta_rule":
            assert q.dtype != torch.float32
        decay, beta = given.get("g", given.get("g_gamma")), given.get("beta")
        return chunked(RecurrenceInputs(q, k, v, decay, beta, scale, start, bounds))

    return call


@pytest.mark.parametrize("width", [64, 128])
@pytest.mark.parametrize("broken", [False, True], ids=["", "hopper-old-triton"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("decay", "delta"), CASES)
def test_every_transition_has_a_supported_kernel(
    monkeypatch: pytest.MonkeyPatch, decay: Any, delta: bool, dtype: torch.dtype, broken: bool, width: int
) -> None:
    monkeypatch.setattr(fla_backend, "_function", stand_in)
    monkeypatch.setattr(fla_backend, "scalar_decay_backward_broken", lambda: broken)
    shapes = {"head": (2,), "scalar": (1, 20, 2), "channel": (1, 20, 2, width)}
    q, k = (torch.nn.functional.normalize(torch.randn(1, 20, 2, width), dim=-1).to(dtype) for _ in range(2))
    inputs: dict[str, Any] = {
        "log_decay": -torch.rand(shapes[decay]) if decay != "none" else None,
        "beta": torch.rand(1, 20, 2) if delta else None,
        "scale": 0.5,
        "initial_state": torch.randn(3, 2, width, 65),
        "cu_seqlens": torch.tensor([0, 4, 5, 20]),
    }
    v = torch.randn(1, 20, 2, 65).to(dtype)
    kernel = fla_backend.kernel_for(decay, delta=delta, dtype=dtype)
    scalar = (fla_backend.SIMPLE_GLA, fla_backend.GATED_DELTA)
    assert not (broken and kernel in scalar)
    if not broken and dtype == torch.bfloat16:
        assert kernel == fla_backend.KERNELS[decay, delta]
    found, state = fla_backend.run(kernel, RecurrenceInputs(q, k, v, **inputs))
    wanted, last = recurrence(q, k, v, **inputs)
    assert (found.dtype, state.dtype) == (dtype, torch.float32)
    torch.testing.assert_close(found, wanted)
    torch.testing.assert_close(state, last)


def test_unsupported_inputs_are_rejected() -> None:
    x = torch.zeros(1, 2, 1, 8)
    kernel = fla_backend.kernel_for("none", delta=False, dtype=torch.float32)
    with pytest.raises(ConfigError, match="one dtype"):
        fla_backend.run(kernel, RecurrenceInputs(x, x, x.bfloat16()))
    with pytest.raises(ConfigError, match=r"not torch.float64; use kernel_policy\('torch'\)"):
        fla_backend.run(kernel, RecurrenceInputs(x.double(), x.double(), x.double()))
    wide = torch.zeros(1, 2, 1, 300)
    with pytest.raises(ConfigError, match="keys up to 256 wide, not 300"):
        fla_backend.run(kernel, RecurrenceInputs(wide, wide, x))
    fixed = fla_backend.kernel_for("head", delta=False, dtype=torch.float32)
    with pytest.raises(ConfigError, match="no gradient"):
        fla_backend.run(fixed, RecurrenceInputs(x, x, x, torch.zeros(1, requires_grad=True)))
