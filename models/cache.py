"""What a student's layers keep between calls: keys and values, a window of them, or a recurrent state."""

from typing import Any

from torch import Tensor
from transformers.cache_utils import DynamicCache, DynamicLayer, DynamicSlidingWindowLayer

from evalsuite.foundation import ConfigError

State = dict[str, Tensor]


class RecurrentSlot(DynamicLayer):
    """The state of one recurrent layer, behind the interface that transformers expects of a cache layer."""

    is_croppable = False
    supports_early_init = False

    def __init__(self) -> None:
        super().__init__()
        self._state: State | None = None

    def read(self) -> State | None:
        """The state last written, or None."""
        return self._state

    def write(self, state: State) -> None:
        """Keep `state`: "recurrent" [B, H, K, V] in float32, "convolution" [B, C, taps − 1]."""
        self._state = state

    def update(self, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        raise ConfigError("a recurrent layer keeps no keys and values")

    def get_seq_length(self) -> int:
        # A state does not know how many tokens went into it; the cache counts them.
        return 0

    def reset(self) -> None:
        self._state = None

    def crop(self, tokens_to_remove: int) -> None:
        if tokens_to_remove != 0 and self._state is not None:
            raise ConfigError("a recurrent state cannot be cropped: it does not remember single tokens")

    def offload(self) -> None:
        self._map(lambda x: x.to("cpu", non_blocking=True))

    def prefetch(self) -> None:
        """Nothing to do: states are a few kilobytes per head and stay where they are used."""

    def reorder_cache(self, beam_idx: Tensor) -> None:
        self._map(lambda x: x.index_select(0, beam_idx.to(x.device)))

    def batch_repeat_interleave(self, repeats: int) -> None:
        self._map(lambda x: x.repeat_interleave(repeats, 0))

    def batch_select_indices(self, indices: Tensor) -> None:
        self._map(lambda x: x[indices])

    def _map(self, function: Any) -> None:
        if self._state is not None:
            self._state = {name: function(x) for name, x in self._state.items()}


class StudentCache(DynamicCache):
    """A cache of mixed layers, accepted by transformers' `generate` (beam search included).

    `windows` says what each layer keeps: "state" for a recurrent layer, None for all keys and values, a
    number for a sliding window of them.
    """

    def __init__(self, windows: list[int | str | None]) -> None:
        super().__init__()
        self.layers = [_layer(window) for window in windows]
        self.layer_class_to_replicate = None
        self._seen = 0

    def advance(self, tokens: int) -> None:
        """Count tokens that every layer has taken in."""
        self._seen += tokens

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """How many tokens (pads included) went in."""
        return self._seen

    def crop(self, tokens_to_remove: int) -> None:
        super().crop(tokens_to_remove)
        self._seen -= abs(tokens_to_remove)

    def reset(self) -> None:
        super().reset()
        self._seen = 0

    @property
    def is_linear(self) -> list[bool]:
        return [isinstance(layer, RecurrentSlot) for layer in self.layers]

    def bytes(self) -> int:
        """Memory that the cache holds now."""
        total = 0
        for layer in self.layers:
            if isinstance(layer, RecurrentSlot):
                kept = list((layer.read() or {}).values())
            elif isinstance(layer, DynamicLayer) and layer.is_initialized:
                kept = [x for x in (layer.keys, layer.values) if x is not None]
            else:
                kept = []
            total += sum(x.numel() * x.element_size() for x in kept)
        return total


def _layer(window: int | str | None) -> DynamicLayer:
    if window == "state":
        return RecurrentSlot()
    if isinstance(window, int):
        # transformers keeps window − 1 past tokens; slicing by [-0:] would keep all of them.
        return DynamicSlidingWindowLayer(sliding_window=max(window, 2))
    return DynamicLayer()
