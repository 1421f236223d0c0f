"""The teacher's activations layer by layer, and single layers of students on them."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from evalsuite.distill.types import CausalLM, MicroBatch, call_within
from evalsuite.models.decoder.model import packed_mask
from evalsuite.models.mixers import AttentionSpan


@dataclass(frozen=True, eq=False)
class LayerActivations:
    """What one layer of the teacher read and wrote, without gradients.

    input: of the mixer, after the norm [B, T, D]. output: of the mixer [B, T, D]. attention: its matrix
    [B, H, T, T], with `teacher_attention = "eager"` only. position_embeddings: cos and sin of the rotary
    embedding. block_input, block_output: the residual stream [B, T, D]. Packed documents are one sequence
    [1, B · T, …] if the teacher is a student itself.
    """

    input: Tensor
    output: Tensor
    attention: Any
    position_embeddings: tuple[Tensor, Tensor]
    block_input: Tensor
    block_output: Tensor


@contextmanager
def each_layer(
    teacher: CausalLM, layers: set[int], callback: Callable[[int, LayerActivations], None]
) -> Iterator[None]:
    """Call `callback(layer, activations)` when each of the given layers of the teacher finishes."""
    mixer: dict[str, Any] = {}
    hooks = []

    def after_attention(module: nn.Module, args: Any, kwargs: dict[str, Any], output: Any) -> None:
        mixer.update(
            input=kwargs["hidden_states"],
            output=output[0],
            attention=output[1],
            position_embeddings=kwargs["position_embeddings"],
        )

    def after_block(layer: int) -> Any:
        def hook(module: nn.Module, args: Any, kwargs: dict[str, Any], output: Any) -> None:
            block_input = args[0] if args else kwargs["hidden_states"]
            block_output = output[0] if isinstance(output, tuple) else output
            activations = LayerActivations(**mixer, block_input=block_input, block_output=block_output)
            mixer.clear()
            callback(layer, activations)

        return hook

    try:
        for layer in layers:
            block = teacher.model.layers[layer]
            hooks.append(block.self_attn.register_forward_hook(after_attention, with_kwargs=True))
            hooks.append(block.register_forward_hook(after_block(layer), with_kwargs=True))
        yield
    finally:
        for hook in hooks:
            hook.remove()


def run_block(
    layer: Any, activations: LayerActivations, batch: MicroBatch, *, own_input_norm: bool = False
) -> Tensor:
    """Output [B, T, D] of a student's block on the teacher's input.

    Args:
        own_input_norm: use the student's norm before the mixer, which has gradients if whole blocks train,
            instead of the teacher's output of it.
    """
    output: Tensor = call_within(layer, _run_block, layer, activations, batch, own_input_norm)
    return output


def _run_block(layer: Any, activations: LayerActivations, batch: MicroBatch, own_input_norm: bool) -> Tensor:
    block_input = activations.block_input
    own_input_norm = own_input_norm and hasattr(layer, "input_layernorm")
    hidden = layer.input_layernorm(block_input) if own_input_norm else activations.input
    residual = add_mixed(layer, block_input, run_mixer(layer, hidden, activations, batch))
    output: Tensor
    if normalizes_outputs(layer):
        before = getattr(layer, "pre_feedforward_layernorm", nn.Identity())
        output = residual + layer.post_feedforward_layernorm(layer.mlp(before(residual)))
        return output
    output = residual + layer.mlp(layer.post_attention_layernorm(residual))
    return output


def normalizes_outputs(layer: Any) -> bool:
    """Whether a block normalises what mixer and MLP add to the residual stream (Gemma, OLMo)."""
    return hasattr(layer, "post_feedforward_layernorm")


def add_mixed(layer: Any, block_input: Tensor, mixed: Tensor) -> Tensor:
    """The residual stream [B, T, D] after a block's mixer, given the mixer's output."""
    added: Tensor = layer.post_attention_layernorm(mixed) if normalizes_outputs(layer) else mixed
    return block_input + added


def run_mixer(layer: Any, hidden: Tensor, activations: LayerActivations, batch: MicroBatch) -> Tensor:
    """Output, of the shape of `hidden`, of a student's mixer on `hidden`; packed documents run as one
    sequence."""
    mixer = layer.self_attn
    cos, sin = activations.position_embeddings
    span: AttentionSpan | None = mixer.span
    output: Tensor
    if batch.cu_seqlens is None:
        mask = None if span is None or span.window is None else span_mask(hidden, span)
        output = mixer(hidden_states=hidden, attention_mask=mask, position_embeddings=(cos, sin))[0]
        return output
    packed = hidden.reshape(1, -1, hidden.shape[-1])
    mask = None if span is None else packed_mask(batch.cu_seqlens, packed, span, batch.input_ids.shape[1])
    output = mixer(
        hidden_states=packed,
        attention_mask=mask,
        position_embeddings=(cos.reshape(*packed.shape[:2], -1), sin.reshape(*packed.shape[:2], -1)),
        cu_seqlens=batch.cu_seqlens,
    )[0]
    return output.view_as(hidden)


def span_mask(hidden: Tensor, span: AttentionSpan) -> Tensor:
    """Mask of softmax attention: bool [1, 1, T, T], True where a token attends."""
    places = torch.arange(hidden.shape[1], device=hidden.device)
    return span.visible(places[:, None], places)[None, None]
