"""Forward passes of teacher and students up to the language-model head."""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from evalsuite.distill.types import CausalLM, MicroBatch, call_within
from evalsuite.models.decoder.config import ARCHITECTURES
from evalsuite.models.decoder.model import attention_of
from evalsuite.models.mixers.base import RecurrentMixer

_log = logging.getLogger(__name__)


def set_attention(teacher: CausalLM, implementation: str) -> None:
    """Switch the teacher's attention implementation; `eager` instead of `sdpa` if its scores are capped.

    sdpa has no soft cap, and eager attention holds [B, H, T, T] scores, which is logged as a warning.
    """
    supported = attention_of(teacher.config, implementation)
    assert supported is not None
    if supported != implementation:
        _log.warning(
            "the teacher caps its attention scores, which %s does not support: softmax layers of teacher and "
            "students use %s attention, whose memory grows with the square of the sequence length",
            implementation,
            supported,
        )
    teacher.set_attn_implementation(supported)


@dataclass(frozen=True, slots=True, eq=False)
class CheckpointedForward:
    """The forward pass of a block that stores its inputs, and runs again in the backward pass.

    It takes the place of the method `forward`, inside the module's hooks, by which FSDP gathers weights.
    """

    forward: Callable[..., Any]
    is_random: bool = False
    """Whether it draws random numbers, which are then drawn again; a captured graph cannot do so."""

    def __call__(self, *inputs: Any, **options: Any) -> Any:
        """Run the block."""
        if not torch.is_grad_enabled():
            return self.forward(*inputs, **options)
        return checkpoint(
            self.forward, *inputs, use_reentrant=False, preserve_rng_state=self.is_random, **options
        )


def set_activation_checkpointing(model: CausalLM, *, enabled: bool) -> None:
    """Compute the activations of every block again in the backward pass, or store them."""
    base = getattr(model.config, "base", model.config)
    is_random = bool(getattr(base, "attention_dropout", 0))
    for layer in model.model.layers:
        if isinstance(layer.forward, CheckpointedForward):
            layer.forward = layer.forward.forward
        if enabled:
            layer.forward = CheckpointedForward(layer.forward, is_random)


def set_state_leak(model: CausalLM, *, enabled: bool) -> None:
    """Let the states of recurrent layers run on from sequence to sequence, or isolate sequences."""
    for layer in model.model.layers:
        if isinstance(layer.self_attn, RecurrentMixer):
            layer.self_attn.leaks_state = enabled


def teacher_hidden_states(teacher: CausalLM, batch: MicroBatch) -> Tensor:
    """`hidden_states` of a model that this process may hold a shard of."""
    hidden: Tensor = call_within(teacher, hidden_states, teacher, batch)
    return hidden


def hidden_states(model: CausalLM, batch: MicroBatch) -> Tensor:
    """Last hidden states [B, T, D] of a teacher or student, whose packed documents are isolated."""
    decoder, ids, positions = model.model, batch.input_ids, batch.position_ids
    if hasattr(model.config, "mixers") and batch.cu_seqlens is not None and positions is not None:
        # One varlen sequence, since recurrent layers isolate documents by their boundaries only.
        packed: Tensor = decoder(
            input_ids=ids.view(1, -1),
            position_ids=positions.view(1, -1),
            cu_seqlens=batch.cu_seqlens,
            row_length=ids.shape[1],
            use_cache=False,
        ).last_hidden_state
        return packed.view(*ids.shape, -1)
    if positions is None and _needs_no_mask(model, ids.shape[1]):
        return _causal_hidden_states(decoder, ids)
    output: Tensor = decoder(input_ids=ids, position_ids=positions, use_cache=False).last_hidden_state
    return output


def _needs_no_mask(model: CausalLM, length: int) -> bool:
    """Whether every layer is SDPA over all earlier tokens, of a Transformer as transformers has it."""
    config = model.config
    if config.model_type not in ARCHITECTURES or config._attn_implementation != "sdpa":
        return False
    window = getattr(config, "sliding_window", None)
    # Gemma 3 and OLMo 3 rotate by layer type.
    return (window is None or window >= length) and not hasattr(model.model.rotary_emb, "layer_types")


def _causal_hidden_states(decoder: Any, ids: Tensor) -> Tensor:
    """Last hidden states without the check for packed documents in transformers' decoders, which waits for
    the GPU."""
    hidden: Tensor = decoder.embed_tokens(ids)
    positions = torch.arange(ids.shape[1], device=hidden.device)[None]
    rotary = decoder.rotary_emb(hidden, positions)
    for layer in decoder.layers:
        hidden = layer(
            hidden, attention_mask=None, position_ids=positions, use_cache=False, position_embeddings=rotary
        )
    last: Tensor = decoder.norm(hidden)
    return last


@dataclass(frozen=True, slots=True, eq=False)
class LanguageModelHead:
    """The head of a model: its weight [V, D], and the soft cap of its logits, if any (Gemma 2)."""

    weight: Tensor
    soft_cap: float | None = None

    def logits(self, hidden: Tensor) -> Tensor:
        """Logits [N, V] of hidden states [N, D], in their dtype."""
        return apply_soft_cap(hidden @ self.weight.to(hidden.dtype).T, self.soft_cap)


def lm_head(model: CausalLM) -> LanguageModelHead:
    """The language-model head of a teacher or student."""
    config: Any = getattr(model.config, "base", model.config)
    cap: float | None = getattr(config, "final_logit_softcapping", None)
    return LanguageModelHead(model.get_output_embeddings().weight, cap)


def apply_soft_cap(logits: Tensor, cap: float | None) -> Tensor:
    """cap · tanh(logits / cap); the logits themselves without a cap."""
    return logits if cap is None else cap * torch.tanh(logits / cap)
