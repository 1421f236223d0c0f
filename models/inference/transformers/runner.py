"""Forward passes of any causal language model: texts read whole, or part by part with its own cache."""

import inspect
import sys
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from evalsuite.models.checkpoints.positions import rotary_limit
from evalsuite.models.decoder.cache import cached_tensors, returned_cache
from evalsuite.models.inference.batching import MAX_PADDING_FRACTION, make_length_batches, to_device
from evalsuite.models.inference.proof import Text

Batching = Literal["padded", "equal lengths", "single texts"]
"""Which texts a model reads together: any, padded on the right; those of one length; none."""

Caching = Literal["batches", "single texts", "never"]
"""With which texts a model's own cache is used: several together, one at a time, or none."""


class PlainRunner:
    """Reads texts with a model's own forward pass.

    Args:
        model: a causal language model of transformers in eval mode.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        self.model = model
        self.device: torch.device = model.device
        self.dtype: torch.dtype = model.dtype
        embedding: Any = model.get_input_embeddings()
        self.vocab_size = int(embedding.weight.shape[0])
        parameters = inspect.signature(model.forward).parameters
        self._keeps_logits = "logits_to_keep" in parameters
        self._takes_positions = "position_ids" in parameters
        self.rotary_limit = rotary_limit(model.config)
        """Tokens up to which a token's position does not depend on the length of the text; None: any."""
        # The most cautious way, until `verify` has shown that others give the same.
        self.batching: Batching = "single texts"
        self.caching: Caching = "never"
        self.kv_bytes_per_token = 0
        self.state_bytes_per_seq = 0

    def bytes_per_token(self) -> int:
        """Estimate of the memory of one token: activations within a layer, its logits and its cache."""
        config: Any = self.model.config.get_text_config()
        hidden = int(getattr(config, "hidden_size", 1024))
        return (80 * hidden + self.vocab_size) * self.dtype.itemsize + self.kv_bytes_per_token

    def logits(self, texts: Sequence[Text], first: int = 0) -> Tensor:
        """Read texts whole, together.

        Args:
            texts: R non-empty texts; padded on the right to the longest, T.
            first: place of the first token whose logits are needed.

        Returns:
            [R, T − first, V], in the model's dtype; undefined at pads.
        """
        length = max(map(len, texts))
        # The last token is repeated, because models warn of pad tokens.
        padded = [text + text[-1:] * (length - len(text)) for text in texts]
        tokens = to_device(np.array(padded, dtype=np.int64), self.device)
        extra = {"logits_to_keep": length - first} if first and self._keeps_logits else {}
        logits: Tensor = self.model(input_ids=tokens, use_cache=False, **extra).logits
        return logits[:, -(length - first) :]

    def batches(self, lengths: Sequence[int], max_tokens: int) -> list[list[int]]:
        """Split texts of these lengths into batches that the model may read together."""
        padded = self.batching == "padded" and max(lengths, default=0) <= (self.rotary_limit or sys.maxsize)
        return make_length_batches(
            lengths,
            max_tokens=1 if self.batching == "single texts" else max_tokens,
            min_tokens=max_tokens // 4 if padded else 0,
            max_padding=MAX_PADDING_FRACTION if padded else 0.0,
        )

    def reader(self, longest: int) -> "CachedReader | RereadingReader":
        """Reader of texts that grow to `longest` tokens.

        The model's own cache holds keys at the positions of a shorter text, so it is not used where positions
        depend on the length.
        """
        cached = self.caching != "never" and (self.rotary_limit is None or longest <= self.rotary_limit)
        return CachedReader(self) if cached else RereadingReader(self)


class CachedReader:
    """Reads texts of one length, part by part, with the model's own cache."""

    def __init__(self, runner: PlainRunner) -> None:
        self._runner = runner
        self._length = 0
        self.cache: dict[str, Any] = {}
        """The cache, by the name of the model's argument; empty if the model has returned none."""

    def read(self, tokens: Tensor) -> Tensor:
        """Append tokens [R, T] to the texts; return the logits [R, V] after the last of them."""
        runner = self._runner
        extra: dict[str, Any] = {"logits_to_keep": 1} if runner._keeps_logits else {}
        if runner._takes_positions:
            # Where the first layer is recurrent, some models take its empty list of keys for the length.
            positions = torch.arange(self._length, self._length + tokens.shape[1], device=runner.device)
            extra["position_ids"] = positions.expand(tokens.shape[0], -1)
        self._length += tokens.shape[1]
        out = runner.model(input_ids=tokens, use_cache=True, **self.cache, **extra)
        self.cache = returned_cache(out)
        logits: Tensor = out.logits
        return logits[:, -1]

    def num_bytes(self) -> int:
        """Bytes of all tensors in the cache."""
        return sum(tensor.nbytes for tensor in cached_tensors(self.cache))


class RereadingReader:
    """Reads as `CachedReader`, but all tokens again for every new one."""

    def __init__(self, runner: PlainRunner) -> None:
        self._runner = runner
        self._tokens: Tensor | None = None

    def read(self, tokens: Tensor) -> Tensor:
        self._tokens = tokens if self._tokens is None else torch.cat([self._tokens, tokens], 1)
        texts = [tuple(row) for row in self._tokens.tolist()]
        return self._runner.logits(texts, len(texts[0]) - 1)[:, -1]
