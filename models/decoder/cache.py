"""The student's cache: per layer keys and values, a sliding window of them, or a recurrent state."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor
from transformers.cache_utils import DynamicCache, DynamicLayer, DynamicSlidingWindowLayer
from transformers.modeling_outputs import BaseModelOutputWithPast

from evalsuite.foundation import ConfigError
from evalsuite.models.mixers import CacheSpec
from evalsuite.models.ops.recurrence import OWN, StateAccess

CACHE = "cache" if "cache" in BaseModelOutputWithPast.__dataclass_fields__ else "past_key_values"
"""Name of the cache in transformers' forward passes: `cache` since 5.24, `past_key_values` before."""

CACHES = tuple(dict.fromkeys((CACHE, "past_key_values", "cache_params", "state")))
"""Names of the cache in outputs and arguments of transformers' models."""

StateDict = dict[str, Tensor]


def returned_cache(output: Any) -> dict[str, Any]:
    """The cache of a forward pass, by the name of the argument that takes it; empty if there is none."""
    for name in CACHES:
        if (cache := getattr(output, name, None)) is not None:
            return {name: cache}
    return {}


def cached_tensors(cache: Any) -> list[Tensor]:
    """All tensors in a cache, which can be an object of any class, each once and in a fixed order."""
    found: list[Tensor] = []
    seen: set[int] = set()
    waiting = [cache]
    while waiting:
        value = waiting.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, Tensor):
            found.append(value)
        elif isinstance(value, dict):
            waiting += value.values()
        elif isinstance(value, list | tuple):
            waiting += value
        elif hasattr(value, "__dict__") and not isinstance(value, type):
            waiting += vars(value).values()
    return found


class StateLayerCache(DynamicLayer):
    """The state of a recurrent layer, and keys and values of its softmax heads."""

    is_croppable = False
    supports_early_init = False

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._state: StateDict | None = None

    def read(self) -> StateDict | None:
        """The last written state, or None."""
        return self._state

    def lend(self, *, slots: bool) -> tuple[StateDict | None, StateAccess]:
        return self._state, OWN

    def write(self, state: StateDict) -> None:
        """Store `state`: "recurrent" [B, H, K, V] in float32, "convolution" [B, C, kernel size − 1]."""
        self._state = state

    def reset(self) -> None:
        super().reset()
        self._state = None

    def crop(self, tokens_to_remove: int) -> None:
        if tokens_to_remove != 0 and self._state is not None:
            raise ConfigError("a recurrent state cannot be cropped: it has no entries per token")

    def reorder_cache(self, beam_idx: Tensor) -> None:
        super().reorder_cache(beam_idx)  # type: ignore[arg-type]  # a subclass of Tensor in annotations alone
        self._map(lambda x: x.index_select(0, beam_idx.to(x.device)))

    def batch_repeat_interleave(self, repeats: int) -> None:
        super().batch_repeat_interleave(repeats)
        self._map(lambda x: x.repeat_interleave(repeats, 0))

    def batch_select_indices(self, indices: Tensor) -> None:
        super().batch_select_indices(indices)
        self._map(lambda x: x[indices])

    def _map(self, function: Any) -> None:
        if self._state is not None:
            self._state = {name: function(x) for name, x in self._state.items()}


class RecurrentLayerCache(StateLayerCache):
    """The state of one recurrent layer, as a transformers cache layer."""

    def update(self, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        raise ConfigError("a recurrent layer has no keys and values")

    def get_seq_length(self) -> int:
        # A state has no length; `StudentCache` counts the tokens.
        return 0


class SlidingStateLayerCache(StateLayerCache, DynamicSlidingWindowLayer):
    """The same where the teacher's layer has a sliding window."""


class StudentCache(DynamicCache):
    """A cache of the layers with these `CacheSpec`s, for transformers' `generate` (beam search included)."""

    def __init__(self, specs: Sequence[CacheSpec]) -> None:
        super().__init__()
        self.layers = [_layer(spec) for spec in specs]
        self.layer_class_to_replicate = None
        self._seen = 0

    def advance(self, tokens: int) -> None:
        """Count tokens that every layer has processed."""
        self._seen += tokens

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Number of tokens processed, padding included."""
        return self._seen

    def crop(self, tokens_to_remove: int) -> None:
        super().crop(tokens_to_remove)
        self._seen -= abs(tokens_to_remove)

    def reset(self) -> None:
        super().reset()
        self._seen = 0

    @property
    def is_linear(self) -> list[bool]:
        # `generate` leaves out the tokens that a cache holds unless all layers are linear, whose length
        # transformers does not know. This cache counts its tokens, whatever its layers.
        return [False] * len(self.layers)


def _layer(spec: CacheSpec) -> DynamicLayer:
    if spec.span is None:
        return RecurrentLayerCache()
    if spec.span.window is None:
        return StateLayerCache() if spec.states else DynamicLayer()
    # transformers retains window − 1 past tokens; with a window of 1 its slice [-0:] would retain all.
    window = max(spec.span.window, 2)
    return (SlidingStateLayerCache if spec.states else DynamicSlidingWindowLayer)(sliding_window=window)
