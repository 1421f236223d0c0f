"""The shape of a Llama-style decoder, and what its parts cost."""

from dataclasses import dataclass
from typing import Any

CHUNK_SIZE = 64
"""Chunk length of the recurrence, within which its cost is quadratic."""


@dataclass(frozen=True, kw_only=True)
class ModelShape:
    """The shape of a Llama-style decoder. Field names follow transformers' LlamaConfig.

    FLOPs are per token of a forward pass and count matrix products, two per multiply-add.
    """

    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int
    tie_word_embeddings: bool = True

    @classmethod
    def from_config(cls, config: Any) -> "ModelShape":
        """The shape of a teacher or student, from its transformers config."""
        config = getattr(config, "base", config)
        return cls(
            hidden_size=config.hidden_size,
            num_hidden_layers=config.num_hidden_layers,
            num_attention_heads=config.num_attention_heads,
            num_key_value_heads=config.num_key_value_heads,
            head_dim=getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads,
            intermediate_size=config.intermediate_size,
            vocab_size=config.vocab_size,
            tie_word_embeddings=config.tie_word_embeddings,
        )

    @property
    def attention_params(self) -> int:
        """Parameters of one layer of softmax attention."""
        return self.hidden_size * self.head_dim * 2 * (self.num_attention_heads + self.num_key_value_heads)

    @property
    def mixer_params(self) -> int:
        """Parameters of one linear-attention layer with full key and value heads and an output gate."""
        return 5 * self.hidden_size * self.inner_size

    @property
    def mlp_params(self) -> int:
        """Parameters of one MLP."""
        return 3 * self.hidden_size * self.intermediate_size

    @property
    def head_params(self) -> int:
        """Parameters of the language-model head."""
        return self.hidden_size * self.vocab_size

    @property
    def embedding_params(self) -> int:
        """Parameters of embeddings and head."""
        return self.head_params * (1 if self.tie_word_embeddings else 2)

    @property
    def num_params(self) -> int:
        """Parameters of the Transformer, without norms."""
        return self.num_hidden_layers * (self.attention_params + self.mlp_params) + self.embedding_params

    @property
    def inner_size(self) -> int:
        """Width of all heads together."""
        return self.num_attention_heads * self.head_dim

    def attention_flops(self, seq_len: int) -> int:
        """FLOPs of one layer of causal softmax attention."""
        return 2 * self.attention_params + 2 * seq_len * self.inner_size

    @property
    def mixer_flops(self) -> int:
        """FLOPs of one linear-attention layer."""
        recurrence = 4 * CHUNK_SIZE * self.inner_size + 4 * self.inner_size * self.head_dim
        return 2 * self.mixer_params + recurrence

    def body_flops(self, seq_len: int, num_softmax: int | None = None) -> int:
        """FLOPs of all layers, `num_softmax` of which are softmax attention; default: all."""
        softmax = self.num_hidden_layers if num_softmax is None else num_softmax
        return (
            softmax * self.attention_flops(seq_len)
            + (self.num_hidden_layers - softmax) * self.mixer_flops
            + self.num_hidden_layers * 2 * self.mlp_params
        )

    def layer_activation_bytes(self, width: int) -> int:
        """Bytes of one layer's activations per token; `width`: bytes of an activation.

        About 12 vectors of the heads, 4 of the residual stream and 2 of the MLP (measured for 32,768 tokens
        in bf16: 28.6 GB in total for SmolLM2-135M; 79.9 GB for Qwen3-0.6B, whose heads are twice as wide as
        the residual stream).
        """
        return width * (12 * self.inner_size + 4 * self.hidden_size + 2 * self.intermediate_size)
