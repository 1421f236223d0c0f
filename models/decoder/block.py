"""The one decoder block: mixer and MLP with their norms, for all families, training and inference."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers.masking_utils import create_causal_mask, create_sliding_window_causal_mask
from transformers.modeling_layers import GradientCheckpointingLayer

from evalsuite.models.decoder.cache import CACHE
from evalsuite.models.decoder.families import Family
from evalsuite.models.decoder.packing import packed_mask
from evalsuite.models.decoder.sequence_part import EarlierParts, part_mask
from evalsuite.models.mixers import AttentionSpan, SoftmaxHeadsMixer, SoftmaxMixer
from evalsuite.models.mixers.cached_attention import AttentionMasks
from evalsuite.models.mixers.layers import add_norm, add_normed
from evalsuite.models.ops.dispatch import HALF
from evalsuite.models.ops.glu import Activation, glu, glu_linear
from evalsuite.models.sequence_parallel import SequenceParallel

ACTIVATIONS: dict[str | None, Activation] = {"silu": "silu", "gelu_pytorch_tanh": "gelu_tanh"}
"""transformers' name of the activation of an MLP's gate → that of our op."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Context:
    """What the blocks of one forward pass share."""

    config: Any
    """The teacher's config."""
    embeddings: Tensor
    """Input of the first block [B, T, D]."""
    rotary: Sequence[tuple[Tensor, Tensor]]
    """The teacher's cos and sin [1 or B, T, head_dim] of each layer."""
    position_ids: Tensor
    explicit_position_ids: Tensor | None = None
    """Positions, if they were given: those that follow from the lengths encode no packing."""
    attention_mask: Tensor | None = None
    token_mask: Tensor | None = None
    cu_seqlens: Tensor | None = None
    row_length: int | None = None
    """Of packed sequences: a length whose multiples none of them crosses."""
    cache: Any = None
    use_cache: bool | None = None
    attention: AttentionMasks | None = None
    """Masks of an engine's pass, in place of all others."""
    sequence_parallel: SequenceParallel | None = None
    """Which part of each sequence the tokens are; None: all of it."""
    masks: Mapping[AttentionSpan, Tensor | AttentionMasks | None] = field(default_factory=dict)
    """Masks that are made already."""

    def with_masks(self, blocks: Iterable["Block"]) -> "Context":
        """This context with the masks of these blocks."""
        masks: dict[AttentionSpan, Tensor | AttentionMasks | None] = {}
        if self.attention is not None:
            return self
        for index, block in enumerate(blocks):
            mixer = block.self_attn
            if mixer.span is not None and mixer.span not in masks and self._masks_from_outside(mixer):
                masks[mixer.span] = self.mask(index, mixer)
        return replace(self, masks=masks)

    def mask(self, layer: int, mixer: Any) -> Tensor | AttentionMasks | None:
        """Attention mask of a mixer's span; None for plain causal attention and mixers without softmax."""
        span: AttentionSpan | None = mixer.span
        if span is None:
            return None
        if self.attention is not None:
            takes_all = isinstance(mixer, SoftmaxMixer | SoftmaxHeadsMixer)
            return self.attention if takes_all else self.attention.get(span)
        if span in self.masks:
            return self.masks[span]
        if not self._masks_from_outside(mixer):
            return None
        if self.cu_seqlens is not None:
            return packed_mask(self.cu_seqlens, self.embeddings, span, self.row_length)
        if self._is_causal_alone(span):
            return None
        if self.config._attn_implementation == "eager" and self._is_from_the_start():
            # transformers 5.17 copies a number from the host into its own, which no CUDA graph can capture.
            position = torch.arange(self.embeddings.shape[1], device=self.embeddings.device)
            return span.visible(position.unsqueeze(1), position)[None, None]
        if self.sequence_parallel is not None:
            return part_mask(self.sequence_parallel, self.embeddings, span)
        config = copy(self.config)
        config.sliding_window = span.window
        make = create_causal_mask if span.window is None else create_sliding_window_causal_mask
        return make(
            config=config,
            inputs_embeds=self.embeddings,
            attention_mask=self.attention_mask,
            position_ids=self.explicit_position_ids,
            layer_idx=layer,
            **{CACHE: self.cache},
        )

    def _is_causal_alone(self, span: AttentionSpan) -> bool:
        """Whether sdpa's own causal attention is the mask. transformers finds out by itself, but makes a mask
        while a CUDA graph is captured, with which attention takes 2.5 times as long."""
        within = span.window is None or span.window >= self.embeddings.shape[1]
        return self.config._attn_implementation == "sdpa" and within and self._is_from_the_start()

    def _is_from_the_start(self) -> bool:
        """Whether all rows are texts from their first token on, without pads."""
        given = (self.attention_mask, self.explicit_position_ids, self.cache)
        first = self.sequence_parallel is None or self.sequence_parallel.rank == 0
        return first and all(each is None for each in given)

    def _masks_from_outside(self, mixer: Any) -> bool:
        """Whether a mixer with softmax attention needs a mask: attention over a state, which knows its
        positions, makes it itself, but for packed sequences."""
        spec = mixer.cache_spec()
        return self.cu_seqlens is not None or not spec.states or spec.span is not None


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class LayerActivations:
    """What one block read and wrote; packed sequences are one row [1, B · T, …]."""

    context: Context
    position_embeddings: tuple[Tensor, Tensor]
    """Of the block's own mixer; that of another one makes its own from `context`."""
    block_input: Tensor
    """The residual stream [B, T, D]."""
    input: Tensor
    """Of the mixer, after the norm [B, T, D]."""
    output: Tensor
    """Of the mixer [B, T, D]."""
    attention: Tensor | None
    """Attention weights [B, H, T, T], from eager softmax attention only."""
    residual: Tensor
    """The residual stream after the mixer [B, T, D]."""
    block_output: Tensor
    """The residual stream [B, T, D]."""


Observer = Callable[[int, LayerActivations], None]
"""Called with the number of each block and its activations when it has run."""


class Block(GradientCheckpointingLayer):
    """One decoder layer.

    Args:
        layer: transformers' decoder layer, whose modules the block takes over under their names.
        mixer: takes the place of its attention.
        family: that of the teacher.
        index: number of the layer.
    """

    self_attn: Any
    mlp: Any
    recomputes: bool = False
    """Whether only the input is stored, and all other activations are computed again in the backward pass.
    Inside the module's hooks, by which FSDP gathers weights."""

    def __init__(self, layer: nn.Module, mixer: nn.Module, family: Family, index: int) -> None:
        super().__init__()
        for name, module in layer.named_children():
            self.add_module(name, mixer if name == "self_attn" else module)
        self.family, self.index = family, index
        config: Any = self.mlp.config
        activation = getattr(config, "hidden_activation", None) or getattr(config, "hidden_act", None)
        self.activation: Activation | None = ACTIVATIONS.get(activation)
        """Of the MLP's gate; None where the MLP computes it itself."""
        self.is_random = bool(getattr(config, "attention_dropout", 0))
        """Whether it draws random numbers, which are then drawn again; a captured graph cannot do so."""

    def with_mixer(self, mixer: nn.Module) -> "Block":
        """This block with another mixer; norms and MLP are shared."""
        other = copy(self)
        other._modules = {**self._modules, "self_attn": mixer}
        return other

    def forward(
        self,
        hidden: Tensor,
        context: Context,
        *,
        normed: Tensor | None = None,
        observe: Observer | None = None,
    ) -> Tensor:
        """Run the block.

        Args:
            hidden: the residual stream [B, T, D].
            context: of the forward pass.
            normed: input of the mixer, in place of the block's own norm of `hidden`.
            observe: called with the activations.

        Returns:
            The residual stream [B, T, D] after the block.
        """
        if self.recomputes and torch.is_grad_enabled():
            return checkpoint(
                self._run, hidden, context, normed, observe,
                use_reentrant=False, preserve_rng_state=self.is_random,
            )  # fmt: skip
        return self._run(hidden, context, normed, observe)

    def position_embeddings(self, context: Context) -> tuple[Tensor, Tensor]:
        """What the mixer gets as such, also in a pass of another model with other mixers."""
        made: tuple[Tensor, Tensor] = self.self_attn.position_embeddings(
            context.rotary[self.index], context.position_ids
        )
        return made

    def mix(self, normed: Tensor, context: Context) -> tuple[Tensor, Tensor | None]:
        """Output [B, T, D] of the mixer for its input, and attention weights, if it has any."""
        cache, parallel = context.cache, context.sequence_parallel
        if parallel is not None:
            cache = EarlierParts(parallel, self.index, self.self_attn.cache_spec(), normed)
        mixed, attention = self.self_attn(
            hidden_states=normed,
            position_embeddings=self.position_embeddings(context),
            attention_mask=context.mask(self.index, self.self_attn),
            position_ids=context.position_ids,
            use_cache=context.use_cache,
            token_mask=context.token_mask,
            cu_seqlens=context.cu_seqlens,
            **{CACHE: cache},
        )
        return (mixed if parallel is None else cache.hand_over(mixed)), attention

    def _run(
        self, block_input: Tensor, context: Context, normed: Tensor | None, observe: Observer | None
    ) -> Tensor:
        hidden, gain = block_input, self.family.gain
        mixer_input, mixer_output, mlp_input, mlp_output = map(self._norm, self.family.norms)
        if normed is None:
            normed, hidden = add_norm(mixer_input, hidden, None, gain)
        mixed, attention = self.mix(normed, context)
        x, residual = add_normed(mixer_output, mixed, hidden, mlp_input, gain)
        output = None
        if observe is None and mlp_output is None:
            output = self._add_mlp_in_place(residual, x)
        if output is None:
            _, output = add_normed(mlp_output, self._mlp(x), residual, None, gain)
        if observe is not None:
            observe(
                self.index,
                LayerActivations(
                    context=context,
                    position_embeddings=self.position_embeddings(context),
                    block_input=block_input,
                    input=normed,
                    output=mixed,
                    attention=attention,
                    residual=residual,
                    block_output=output,
                ),
            )
        return output

    def _norm(self, name: str | None) -> Any:
        return None if name is None else getattr(self, name)

    def _mlp(self, x: Tensor) -> Tensor:
        mlp, down = self.mlp, self.mlp.down_proj
        # Adapters need the module's own call.
        if self.activation is not None and type(down) is nn.Linear:
            gate, up = mlp.gate_proj(x), mlp.up_proj(x)
            return glu_linear(gate, up, down.weight, down.bias, self.activation)
        return mlp(x)

    def _add_mlp_in_place(self, residual: Tensor, x: Tensor) -> Tensor | None:
        """residual + MLP(x), added by the MLP's last product into a tensor that nobody else has; None where
        other code computes it: with gradients, on a CPU, or of another kind."""
        mlp, down = self.mlp, self.mlp.down_proj
        plain = type(down) is nn.Linear and down.bias is None and residual is not x
        if self.activation is None or not plain or x.dtype not in HALF or x.dtype != down.weight.dtype:
            return None
        if not glu.has_kernel(x, self.activation):
            return None
        values = glu(mlp.gate_proj(x), mlp.up_proj(x), self.activation)
        residual.flatten(0, 1).addmm_(values.flatten(0, 1), down.weight.T)
        return residual
