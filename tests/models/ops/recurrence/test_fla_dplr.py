"""fla's kernel of the generalized delta rule, as the recurrence calls it, against the torch backend."""

import itertools
from functools import partial

import pytest
import torch

from evalsuite.models.ops.recurrence import compute_recurrence, fla_backend
from evalsuite.models.ops.recurrence.inputs import DecayShape
from tests.parity.kernel_accuracy import MAX_ERROR, draw_case, exact_float32, relative_errors

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(1200), pytest.mark.usefixtures("tuned")]
if not torch.cuda.is_available():
    pytest.skip("needs a CUDA device", allow_module_level=True)
pytest.importorskip("fla")


@pytest.mark.parametrize(("length", "packed"), itertools.product([2048, 63], [False, True]))
@pytest.mark.parametrize("rule", ["generalized", "two keys"])
@pytest.mark.parametrize("decay", ["none", "scalar", "channel"])
@pytest.mark.parametrize("width", [32, 64, 128, 256])
def test_dplr_matches_torch(
    monkeypatch: pytest.MonkeyPatch, decay: DecayShape, rule: str, width: int, length: int, packed: bool
) -> None:
    exact_float32(monkeypatch)
    calls: list[str] = []
    run = fla_backend.run
    monkeypatch.setattr(
        fla_backend, "run", lambda kernel, inputs: calls.append(kernel.name) or run(kernel, inputs)
    )
    draw = partial(draw_case, decay, rule, dtype=torch.bfloat16, width=width)
    errors = relative_errors(compute_recurrence, *draw(length=length, packed=packed, device="cuda"))
    assert calls == ["chunk_dplr_delta_rule"]
    # Nothing that is rounded is forgotten without a decay: 0.012 over 2,048 tokens.
    assert max(errors.values()) <= (1.5 if decay == "none" else 1) * MAX_ERROR[torch.bfloat16], errors


@pytest.mark.parametrize("rule", ["generalized", "two keys"])
def test_strong_decays_are_finite(monkeypatch: pytest.MonkeyPatch, rule: str) -> None:
    """Sixteen tokens that keep e^-20 each would overflow in the kernel, but for the least decay."""
    exact_float32(monkeypatch)
    leaves, others, weights = draw_case(
        "channel", rule, dtype=torch.bfloat16, width=64, length=256, packed=False, device="cuda"
    )
    leaves["log_decay"] = torch.where(leaves["log_decay"] < -0.05, -20.0, leaves["log_decay"])
    leaves["log_decay"][..., :8] = -20.0  # In every token of a chunk.
    errors = relative_errors(compute_recurrence, leaves, others, weights)
    del errors["dlog_decay"]  # That of a decay under the least one is zero.
    assert max(errors.values()) <= 2 * MAX_ERROR[torch.bfloat16], errors
