"""Attention of models that are no decoder of ours, through transformers' attention interface.

Masks are not passed through such a model, because transformers builds a mask of its own for layers with a
sliding window, which is wrong for rows of different lengths. `attention_forward` takes the mask for its
window from a context variable.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from torch import Tensor, nn
from transformers import AttentionInterface, PreTrainedModel

from evalsuite.models.mixers import AttentionSpan
from evalsuite.models.mixers.cached_attention import AttentionMasks

NAME = "evalsuite"

_masks: ContextVar[AttentionMasks] = ContextVar("masks of the running forward pass")


def attention_forward(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """Attention function for transformers' `AttentionInterface`; see `AttentionMasks.attend`.

    `attention_mask` is always None (see the module docstring), and there are no attention weights.
    """
    return _masks.get().attend(query, key, value, AttentionSpan(sliding_window), scaling, softcap), None


AttentionInterface.register(NAME, attention_forward)


class AttentionOverride:
    """Switches the softmax layers of a model to `attention_forward` and back."""

    def __init__(self, model: PreTrainedModel) -> None:
        configs: list[Any] = [getattr(module, "config", None) for module in model.modules()]
        self._configs = list({id(c): c for c in configs if hasattr(c, "_attn_implementation")}.values())

    @contextmanager
    def use_masks(self, masks: AttentionMasks) -> Iterator[None]:
        """Use `attention_forward` with `masks` in all layers; the previous implementation is restored."""
        before = [config._attn_implementation for config in self._configs]
        token = _masks.set(masks)
        try:
            for config in self._configs:
                config._attn_implementation = NAME
            yield
        finally:
            _masks.reset(token)
            for config, name in zip(self._configs, before, strict=True):
                config._attn_implementation = name
