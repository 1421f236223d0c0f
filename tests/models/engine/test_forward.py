"""A model is run by its parts only if its logits are its head on its decoder."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from evalsuite.foundation import ConfigError
from evalsuite.models.engine import norms
from evalsuite.models.engine.forward import Decoder


def test_logits_that_are_more_than_the_head_are_refused(build: Callable[..., Any]) -> None:
    model = build("llama").model
    plain = model.forward

    def capped(*args: Any, **how: Any) -> Any:
        out = plain(*args, **how)
        out.logits = 3 * torch.tanh(out.logits / 3)
        return out

    model.forward = capped
    with pytest.raises(ConfigError, match="differs from the model's own logits"):
        Decoder(model)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_huge_activations_in_half_precision_are_no_reason(
    build: Callable[..., Any], dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As on a GPU, where a norm rounds in another place.
    monkeypatch.setattr(norms.fused, "__defaults__", (("cpu", "cuda"),))
    model = build("llama").model
    with torch.no_grad():
        # The first token's activations in one channel are a thousand times those of the others.
        model.model.embed_tokens.weight[0, 0] = 1000
        model.lm_head.weight.mul_(20)
    decoder = Decoder(model.to(dtype))
    assert len(decoder._norms._fused) == 7
