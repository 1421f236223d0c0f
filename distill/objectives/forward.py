"""Forward passes of teacher and students up to the language-model head."""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from evalsuite.distill.types import CausalLM, MicroBatch
from evalsuite.models.mixers.base import RecurrentMixer
from evalsuite.models.student.model import attention_of

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


def call_within(module: Any, function: Callable[..., Any], *arguments: Any) -> Any:
    """Call `function(*arguments)`, which uses parameters of `module` without calling the module.

    A sharded module (see `training.memory.fsdp`) has the method `within`, which gathers the parameters first.
    """
    within = getattr(module, "within", None)
    return function(*arguments) if within is None else within(function, *arguments)


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
    """Last hidden states [B, T, D] of the teacher."""
    hidden: Tensor = call_within(teacher, _teacher_hidden_states, teacher, batch)
    return hidden


def _teacher_hidden_states(teacher: CausalLM, batch: MicroBatch) -> Tensor:
    decoder, config = teacher.model, teacher.config
    window = getattr(config, "sliding_window", None)
    causal = batch.position_ids is None and (window is None or window >= batch.input_ids.shape[1])
    # Gemma 3 and OLMo 3 rotate by layer type.
    causal = causal and not hasattr(decoder.rotary_emb, "layer_types")
    if config._attn_implementation != "sdpa" or not causal:
        output = decoder(input_ids=batch.input_ids, position_ids=batch.position_ids, use_cache=False)
        hidden: Tensor = output.last_hidden_state
        return hidden
    # transformers' decoder synchronizes with the GPU to check the positions for packed documents. Unpacked
    # sequences need no mask: SDPA layers are causal without one.
    hidden = decoder.embed_tokens(batch.input_ids)
    positions = torch.arange(batch.input_ids.shape[1], device=hidden.device)[None]
    rotary = decoder.rotary_emb(hidden, positions)
    for layer in decoder.layers:
        hidden = layer(
            hidden, attention_mask=None, position_ids=positions, use_cache=False, position_embeddings=rotary
        )
    last: Tensor = decoder.norm(hidden)
    return last


def student_hidden_states(model: CausalLM, batch: MicroBatch) -> Tensor:
    """Last hidden states [B, T, D] of a student; packed documents run as one varlen sequence."""
    if batch.cu_seqlens is None or batch.position_ids is None or not hasattr(model.config, "mixers"):
        output = model.model(input_ids=batch.input_ids, position_ids=batch.position_ids, use_cache=False)
        hidden: Tensor = output.last_hidden_state
        return hidden
    output = model.model(
        input_ids=batch.input_ids.view(1, -1),
        position_ids=batch.position_ids.view(1, -1),
        cu_seqlens=batch.cu_seqlens,
        row_length=batch.input_ids.shape[1],
        use_cache=False,
    )
    hidden = output.last_hidden_state
    return hidden.view(*batch.input_ids.shape, -1)


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
