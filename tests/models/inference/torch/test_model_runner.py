"""Decoder and head are run separately only if that reproduces the model's logits."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from evalsuite.foundation import ConfigError
from evalsuite.models.inference.torch import fused_norms
from evalsuite.models.inference.torch.model_runner import ModelRunner


def test_post_processed_logits_are_refused(build: Callable[..., Any]) -> None:
    model = build("llama").model
    plain = model.forward

    def capped(*args: Any, **how: Any) -> Any:
        out = plain(*args, **how)
        out.logits = 3 * torch.tanh(out.logits / 3)
        return out

    model.forward = capped
    with pytest.raises(ConfigError, match="differs from the model's own logits"):
        ModelRunner(model)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_massive_activations_in_half_precision_are_accepted(
    build: Callable[..., Any], dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As on a GPU, where a norm rounds in another place.
    monkeypatch.setattr(fused_norms.fused_forward, "__defaults__", (("cpu", "cuda"),))
    model = build("llama").model
    with torch.no_grad():
        # The first token's activations in one channel are a thousand times those of the others.
        model.model.embed_tokens.weight[0, 0] = 1000
        model.lm_head.weight.mul_(20)
    runner = ModelRunner(model.to(dtype))
    assert len(runner._norms._fused) == 7
