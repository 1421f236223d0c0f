"""Arguments of fla's kernels, checked by stand-ins without a GPU."""

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from evalsuite.foundation import ConfigError
from evalsuite.models.ops.recurrence import Erase, RecurrenceInputs, fla_backend
from evalsuite.models.ops.recurrence.chunked import chunked
from tests.parity.kernel_accuracy import MAX_ERROR, recurrence, relative_error

CASES = [(decay, delta) for decay in ("none", "head", "scalar", "channel") for delta in (False, True)]
NAMES = {
    "chunk_simple_gla": {"g", "g_gamma"},
    "chunk_gla": {"g"},
    "chunk_delta_rule": {"beta"},
    "chunk_gated_delta_rule": {"g", "beta"},
    "chunk_kda": {"g", "beta"},
    "chunk_dplr_delta_rule": {"a", "b", "gk"},
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


@pytest.mark.parametrize("along", [False, True])
@pytest.mark.parametrize("decay", ["none", "head", "scalar", "channel"])
def test_generalized_delta_rule_is_that_of_fla(
    monkeypatch: pytest.MonkeyPatch, decay: Any, along: bool
) -> None:
    """S_t = (Diag(e^gk) + b aᵀ) S_{t-1} + k vᵀ, token by token, with decays that are not too small."""

    def rule(q: Tensor, k: Tensor, v: Tensor, a: Tensor, b: Tensor, gk: Tensor, **given: Any) -> Any:
        assert gk.shape == k.shape
        assert gk.min() >= fla_backend.DPLR_MIN_LOG_DECAY
        assert q.dtype == k.dtype == v.dtype == a.dtype == b.dtype == torch.bfloat16
        state, outputs = given["initial_state"], []
        for t in range(q.shape[1]):
            kept = gk[0, t].exp()[..., None] * state
            read = (a[0, t].float()[..., None] * state).sum(-2, keepdim=True)
            wrote = k[0, t].float()[..., None] * v[0, t].float()[..., None, :]
            state = kept + b[0, t].float()[..., None] * read + wrote
            outputs.append(given["scale"] * (q[0, t].float()[..., None] * state).sum(-2))
        return torch.cat(outputs).unsqueeze(0).bfloat16(), state

    monkeypatch.setattr(fla_backend, "_function", lambda kernel: rule)
    normal = partial(torch.randn, generator=torch.Generator().manual_seed(0))
    q, k, v, read, other = (0.3 * normal(5, 1, 12, 2, 64)).bfloat16()
    shapes = {"head": (2,), "scalar": (1, 12, 2), "channel": (1, 12, 2, 64)}
    log_decay = None if decay == "none" else -normal(shapes[decay]).abs()
    if log_decay is not None:
        log_decay.view(-1)[0] = -30.0
    erase = Erase(read, other if along else None)
    start = 0.1 * normal(1, 2, 64, 64)
    inputs = RecurrenceInputs(q, k, v, log_decay, scale=0.5, initial_state=start, erase=erase)
    found, state = fla_backend.run(fla_backend.DPLR, inputs)
    wanted, last = chunked(inputs)
    assert max(relative_error(found, wanted), relative_error(state, last)) <= MAX_ERROR[torch.bfloat16]
