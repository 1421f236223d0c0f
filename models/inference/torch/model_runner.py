"""Forward passes of a causal language model: rows of tokens in, hidden states and caches out."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from evalsuite.models.decoder import StudentModel
from evalsuite.models.decoder.cache import CACHE
from evalsuite.models.decoder.head import LanguageModelHead
from evalsuite.models.inference.batching import pad_right, to_device
from evalsuite.models.inference.proof import UnsupportedModelError, largest_deviation
from evalsuite.models.inference.torch.attention import AttentionOverride
from evalsuite.models.inference.torch.joined_projections import join_projections
from evalsuite.models.inference.torch.kv_cache import BranchingCache, KVCache
from evalsuite.models.inference.torch.norms import replace_norms
from evalsuite.models.inference.torch.unpadding import make_unpadded_layout
from evalsuite.models.mixers import Mixer, SoftmaxMixer
from evalsuite.models.mixers.cached_attention import AttentionMasks


class ModelRunner:
    """Runs the decoder and the head of a causal language model separately.

    Args:
        model: a transformers causal LM or one of our students, in eval mode.

    Raises:
        UnsupportedModelError: the model's logits are not `lm_head(decoder(x))`, so that running the two parts
            separately would give other numbers than the model itself.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        self.decoder: nn.Module = model.get_decoder()
        self.head = LanguageModelHead.of(model)
        self.device: torch.device = model.device
        self.dtype: torch.dtype = model.dtype
        config = model.config.get_text_config()
        self.num_layers = int(config.num_hidden_layers)
        self.vocab_size = int(self.head.weight.shape[0])
        self._widths = int(config.hidden_size), int(getattr(config, "intermediate_size", 0) or 0)
        self._attention = AttentionOverride(model)
        self._is_ours = isinstance(self.decoder, StudentModel)
        if self._is_ours:
            join_projections(self.decoder)
        else:
            replace_norms(self.decoder)
        layers = [each for each in self.decoder.modules() if isinstance(each, SoftmaxMixer)]
        with torch.no_grad():
            self.storing = next((each for each in layers if each.stores_keys), None)
        """A layer that stores its keys in the cache itself; set to None to run its other code, for
        comparison."""
        # On a GPU the number of kernels matters more than padding; a recurrence needs padded rows.
        has_states = any(isinstance(each, Mixer) and each.cache_spec().states for each in model.modules())
        self.unpads = self.device.type == "cpu" and not has_states
        self.rounds_states = False
        """Whether the model's states are rounded when they are stored: each prompt is then read in one pass,
        and each continuation from its context's stored state, whatever other requests there are."""
        self._check(model)

    @torch.inference_mode()
    def _check(self, model: PreTrainedModel) -> None:
        """Compare head and decoder with the full model on a few tokens, and measure the cache per token."""
        count = min(16, self.vocab_size)
        tokens = torch.linspace(0, self.vocab_size - 1, count).long()[None].to(self.device)
        full = model(input_ids=tokens, use_cache=False).logits[0]
        parts = self.head.logits(self.decoder(input_ids=tokens, use_cache=False).last_hidden_state)[0]
        if (deviation := largest_deviation([full], [parts])) is not None:
            raise UnsupportedModelError(
                f"{type(model).__name__}: the head on the decoder's output differs from the model's own "
                f"logits by up to {deviation:.3g}"
            )
        _, cache = self.prefill(tokens.tolist(), keep=True)
        assert cache is not None
        self.kv_bytes_per_token = 0
        """Bytes of keys and values of one token."""
        self.state_bytes_per_seq = 0
        """Bytes of the recurrent states of one sequence, independent of its length."""
        for layer in cache.layers:
            for tensor in (layer.keys, layer.values):
                self.kv_bytes_per_token += tensor.nbytes // count if tensor is not None else 0
            self.state_bytes_per_seq += sum(tensor.nbytes for tensor in layer.recurrent.values())

    def bytes_per_token(self) -> int:
        """Estimate of the memory of one token: activations within a layer, keys and values."""
        hidden, intermediate = self._widths
        return (24 * hidden + 4 * intermediate) * self.dtype.itemsize + self.kv_bytes_per_token

    def prefill(
        self,
        rows: Sequence[Sequence[int]],
        *,
        parent: KVCache | None = None,
        parent_rows: Sequence[int] | None = None,
        keep: bool = False,
    ) -> tuple[Tensor, KVCache | None]:
        """Run rows of tokens, each continuing a row of the parent cache.

        Args:
            rows: R non-empty rows of token ids; padded on the right to the longest, T.
            parent: cache to continue from; None starts with an empty one.
            parent_rows: for each row the row of `parent` that it continues.
            keep: also return the cache after each row's last real token.

        Returns:
            Hidden states [R, T, width] (undefined at pads), and the cache or None.
        """
        tokens, lengths = pad_right(rows, self.device)
        steps = torch.arange(tokens.shape[1], device=self.device)
        valid = steps < lengths[:, None]
        positions = steps.expand(len(rows), -1)
        # Pads follow the real tokens, so they matter only to a recurrent state that is kept.
        token_mask = valid if keep and len({len(row) for row in rows}) > 1 else None
        if parent is None:
            selected, keys = None, positions
            masks = AttentionMasks(positions, keys, None, self.dtype)
        else:
            selected = to_device(np.asarray(parent_rows), self.device)
            positions = positions + parent.lengths[selected, None]
            lengths = lengths + parent.lengths[selected]
            keys = torch.cat([parent.positions[selected], positions], 1)
            valid = torch.cat([parent.valid[selected], valid], 1)
            masks = AttentionMasks(positions, keys, valid, self.dtype)
        layout = make_unpadded_layout([len(row) for row in rows], self.device) if self.unpads else None
        cache = BranchingCache(self.num_layers, parent, selected, keep, layout)
        if self.storing is not None and layout is None:
            known = 0 if parent is None else parent.valid.shape[1]
            if parent is not None and parent.in_front and not keep and self.storing.reads_parents:
                assert selected is not None
                known, masks.branches = 0, (selected, parent.lengths)
            masks.cache_places = (steps + known).repeat(len(rows))
        if layout is not None:
            masks.layout, token_mask = layout, None
            tokens, positions = layout.unpad(tokens), layout.unpad(positions)
        with _cudnn_attention_disabled():
            hidden = self.forward(tokens, positions, cache, masks, token_mask)
        if layout is not None:
            hidden = layout.pad(hidden)
        if not keep:
            return hidden, None
        return hidden, KVCache(cache.layer_states(), lengths, keys, valid, in_front=parent is None)

    def forward(
        self,
        tokens: Tensor,
        positions: Tensor,
        cache: Any,
        masks: AttentionMasks,
        token_mask: Tensor | None = None,
    ) -> Tensor:
        """Run the decoder on tokens [R, T] at positions [R, T]; return hidden states [R, T, width]."""
        extra: dict[str, Any] = {"attention": masks, "token_mask": token_mask} if self._is_ours else {}
        with nullcontext() if self._is_ours else self._attention.use_masks(masks):
            hidden: Tensor = self.decoder(
                input_ids=tokens, position_ids=positions, use_cache=True, **{CACHE: cache}, **extra
            ).last_hidden_state
            return hidden


@contextmanager
def _cudnn_attention_disabled() -> Iterator[None]:
    """Disable cuDNN's attention, which builds a plan per shape; that takes longer than the attention."""
    before = torch.backends.cuda.cudnn_sdp_enabled()
    torch.backends.cuda.enable_cudnn_sdp(False)
    try:
        yield
    finally:
        torch.backends.cuda.enable_cudnn_sdp(before)
