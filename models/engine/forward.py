"""One call of the decoder: rows of tokens in, hidden states and remembered state out."""

import inspect
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from evalsuite.foundation import ConfigError
from evalsuite.models.engine.attention import Attention, Masks
from evalsuite.models.engine.norms import Norms
from evalsuite.models.engine.packing import packing
from evalsuite.models.engine.states import ForkedCache, State, on_device, padded


class Decoder:
    """A causal language model, taken apart into its decoder and its head.

    Args:
        model: a transformers causal LM or one of our students, in eval mode.

    Raises:
        ConfigError: the model's logits are not `lm_head(decoder(x))`, so that calling the two parts
            separately would give other numbers than the model itself.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        self.body: nn.Module = model.get_decoder()
        self.head: nn.Module = model.get_output_embeddings()
        self.device: torch.device = model.device
        self.dtype: torch.dtype = model.dtype
        config = model.config.get_text_config()
        self.depth = int(config.num_hidden_layers)
        self.vocabulary = int(self.head.weight.shape[0])
        self._widths = int(config.hidden_size), int(getattr(config, "intermediate_size", 0) or 0)
        self._attention = Attention(model)
        self._norms = Norms(self.body)
        self._takes_token_mask = "token_mask" in inspect.signature(self.body.forward).parameters
        # On a GPU the number of kernels counts for more than padding; a recurrence must know its rows.
        self.packs = self.device.type == "cpu" and not self._takes_token_mask
        self._check(model)

    @torch.inference_mode()
    def _check(self, model: PreTrainedModel) -> None:
        """Compare parts with whole on a few tokens, and note what a state of one token weighs."""
        count = min(16, self.vocabulary)
        tokens = torch.linspace(0, self.vocabulary - 1, count).long()[None].to(self.device)
        whole = model(input_ids=tokens, use_cache=False).logits.float()
        plain = self.head(self.body(input_ids=tokens, use_cache=False).last_hidden_state).float()
        hidden, state = self.read(tokens.tolist(), keep=True)
        parts = self.head(hidden).float()
        if whole.isfinite().all():
            same = torch.allclose(whole, plain, atol=0.1, rtol=0.05)
            if not same or not _alike(whole, parts, exact=self.dtype in (torch.float32, torch.float64)):
                found = float((whole - (parts if same else plain)).abs().max())
                raise ConfigError(
                    f"{type(model).__name__}: the head on the decoder's output differs from the model's own "
                    f"logits by {found:.3g}; this engine cannot run it"
                )
        assert state is not None
        self.token_bytes = 0
        """Keys and values of one token."""
        self.row_bytes = 0
        """Recurrent states of one row, whatever its length."""
        for layer in state.layers:
            for tensor in (layer.keys, layer.values):
                self.token_bytes += tensor.nbytes // count if tensor is not None else 0
            self.row_bytes += sum(tensor.nbytes for tensor in layer.recurrent.values())

    def activation_bytes(self) -> int:
        """Rough number of bytes that one token needs while it passes through a layer."""
        hidden, intermediate = self._widths
        return (24 * hidden + 4 * intermediate) * self.dtype.itemsize

    def read(
        self,
        rows: Sequence[Sequence[int]],
        *,
        parent: State | None = None,
        parents: Sequence[int] | None = None,
        keep: bool = False,
    ) -> tuple[Tensor, State | None]:
        """Let every row read its tokens, each from the state of its parent row.

        Args:
            rows: R non-empty rows of token ids; padded on the right to the longest, T.
            parent: state to start from; None starts afresh.
            parents: for each row the row of `parent` it continues.
            keep: also return the state after each row's last real token.

        Returns:
            Hidden states [R, T, width] (those at pads mean nothing), and the state or None.
        """
        tokens, lengths = padded(rows, self.device)
        steps = torch.arange(tokens.shape[1], device=self.device)
        real = steps < lengths[:, None]
        positions = steps.expand(len(rows), -1)
        # Pads lie behind the real tokens: they matter only to a state that is kept.
        ragged = real if keep and len({len(row) for row in rows}) > 1 else None
        if parent is None:
            forked, keys = None, positions
            masks = Masks(positions, keys, None, self.dtype)
        else:
            forked = on_device(np.asarray(parents), self.device)
            positions = positions + parent.lengths[forked, None]
            lengths = lengths + parent.lengths[forked]
            keys = torch.cat([parent.positions[forked], positions], 1)
            real = torch.cat([parent.real[forked], real], 1)
            masks = Masks(positions, keys, real, self.dtype)
        packed = packing([len(row) for row in rows], self.device) if self.packs else None
        cache = ForkedCache(self.depth, parent, forked, keep, packed)
        if packed is not None:
            masks.packing, ragged = packed, None
            tokens, positions = packed.pack(tokens), packed.pack(positions)
        with _without_cudnn():
            hidden = self.call(tokens, positions, cache, masks, ragged)
        if packed is not None:
            hidden = packed.unpack(hidden)
        return hidden, State(cache.states(), lengths, keys, real) if keep else None

    def call(
        self,
        tokens: Tensor,
        positions: Tensor,
        cache: Any,
        masks: Masks,
        token_mask: Tensor | None = None,
    ) -> Tensor:
        """Run the decoder on tokens [R, T] at positions [R, T]; return hidden states [R, T, width]."""
        extra = {"token_mask": token_mask} if self._takes_token_mask and token_mask is not None else {}
        with self._attention.with_masks(masks), self._norms.fused():
            return self.body(
                input_ids=tokens, position_ids=positions, past_key_values=cache, use_cache=True, **extra
            ).last_hidden_state


@contextmanager
def _without_cudnn() -> Iterator[None]:
    """Leave cuDNN's attention out: it plans for every new shape, which takes longer than the attention."""
    before = torch.backends.cuda.cudnn_sdp_enabled()
    torch.backends.cuda.enable_cudnn_sdp(False)
    try:
        yield
    finally:
        torch.backends.cuda.enable_cudnn_sdp(before)


def _alike(whole: Tensor, parts: Tensor, *, exact: bool) -> bool:
    """Whether logits [1, T, V] differ by rounding alone.

    In half precision single positions say nothing: a few activations of thousands, as models have them at
    first and special tokens, make two orders of the same sum differ by whole nats.
    """
    if exact:
        return torch.allclose(whole, parts, atol=0.1, rtol=0.05)
    deviation = (whole - parts).abs().mean(-1) / whole.std(-1).clamp(min=1e-6)
    return float(deviation.median()) < 0.25
