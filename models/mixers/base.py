"""Base class of recurrent mixers: projections, convolution, rotary, state, normaliser, output gate.

Each mixer's own file defines its options, feature map, gates and write rule; the rest is shared:

    x → q, k, v projections → teacher's QK-norm → short convolutions, activations → rotary → heads → L2 norm
      → feature map and gates (the mixer) → the recurrence → normaliser → output norm → output gate → o
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import initialization as init

from evalsuite.foundation import ConfigError
from evalsuite.models.mixers.attention_shape import AttentionShape, divide_heads
from evalsuite.models.mixers.interface import (
    AttentionSpan,
    CacheSpec,
    Mixer,
    MixerState,
    ServedAs,
    StateKind,
    layer_cache,
)
from evalsuite.models.mixers.layers import (
    OutputNorm,
    RMSNorm,
    ShortConvolution,
    divide_by_normalizer,
    init_constant_,
    make_projection,
    repeat_heads,
    rotary_angles,
)
from evalsuite.models.mixers.options import MixerOptions
from evalsuite.models.mixers.teacher_weights import copy_projections
from evalsuite.models.mixers.window_branch import mix_window, mix_window_matrix, window_heads
from evalsuite.models.mixers.window_state import state_shapes as window_state_shapes
from evalsuite.models.ops.glu import glu
from evalsuite.models.ops.quantization import quantize_dequantize
from evalsuite.models.ops.recurrence import (
    OWN,
    RecurrenceInputs,
    StateAccess,
    compute_recurrence,
    recurrence_matrix,
)
from evalsuite.models.ops.rms_norm import l2_norm
from evalsuite.models.ops.rotary import rotary
from evalsuite.models.ops.short_conv import short_convolutions

Convolve = Callable[[Sequence[Tensor]], tuple[Sequence[Tensor], Tensor]]
"""Convolves tensors [B, T, Cᵢ] by a layer's convolutions: the outputs, and the new state."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """What a layer computes before the recurrence."""

    inputs: RecurrenceInputs
    skip: Tensor | None
    """Weight with which each token adds its own value to its output, [B, T, H] or [H]."""
    x: Tensor
    """Input of projections and output gate [B, T, hidden]: the layer's, after `convolve_input`."""
    window: tuple[Tensor, Tensor] | None
    """Rotated q and k [B, T, H, K] of the window, if the layer has one."""
    state: MixerState
    """New state of the convolutions."""


class RecurrentMixer(Mixer):
    """Recurrent token mixer that replaces softmax attention, with the same call."""

    Options: ClassVar[type[MixerOptions]] = MixerOptions
    state_kind = StateKind.RECURRENT
    served_as: ServedAs = "recurrence"
    has_keys: ClassVar[bool] = True
    """False if 1 − decay serves as the key: `k_proj` then computes the logits of the input gate, which skip
    activation, rotary and norm."""
    uses_normalizer: bool = False
    """True if the values carry a column of ones, whose output is Σ_j A_tj."""
    uses_delta_rule: bool = False
    """True if `compute_gates` sets β or `erase`, so that each token first removes what the state holds for a
    key."""
    removes_along_own_key: ClassVar[bool] = False
    """True if `erase` removes along another key than that of the write, which is one more product."""
    recurrence: Callable[[RecurrenceInputs], tuple[Tensor, Tensor]] = staticmethod(compute_recurrence)
    """What computes the recurrence; training may replace it."""
    q_conv1d: ShortConvolution
    k_conv1d: ShortConvolution
    v_conv1d: ShortConvolution
    state_precision: str | None = None
    """To what the recurrent state is rounded when it is stored in a cache, as in `quantize_dequantize`."""

    def __init__(self, attention_shape: AttentionShape, options: MixerOptions, layer_idx: int) -> None:
        super().__init__()
        shape = attention_shape
        self.attention_shape, self.options, self.layer_idx = shape, options, layer_idx
        self.num_heads, self.num_kv_heads, self.head_dim, self.head_k_dim, self.head_v_dim = divide_heads(
            shape, options, f"layer {layer_idx}: {self.name}"
        )
        q_dim = (options.num_qk_heads or self.num_heads) * self.head_k_dim
        k_dim = (options.num_qk_heads or self.num_kv_heads) * self.head_k_dim
        v_dim, o_dim = self.num_kv_heads * self.head_v_dim, self.num_heads * self.head_v_dim
        self.q_proj = nn.Linear(shape.hidden_size, q_dim, bias=shape.q_bias)
        self.k_proj = nn.Linear(shape.hidden_size, k_dim, bias=shape.k_bias)
        self.v_proj = nn.Linear(shape.hidden_size, v_dim, bias=shape.v_bias)
        self.o_proj = nn.Linear(o_dim, shape.hidden_size, bias=shape.o_bias)
        if shape.qk_norm is not None and options.teacher_qk_norm:
            per_head = shape.qk_norm == "head"
            self.q_norm = RMSNorm(self.head_k_dim if per_head else q_dim, shape.norm_eps)
            if self.has_keys:
                self.k_norm = RMSNorm(self.head_k_dim if per_head else k_dim, shape.norm_eps)
        self.qkv_dims = (q_dim, k_dim, v_dim)
        self._build_convolutions()
        if options.output_norm == "rms":
            self.o_norm: nn.Module = RMSNorm(self.head_v_dim, shape.norm_eps)
        elif options.output_norm != "none":
            self.o_norm = OutputNorm(options.output_norm, self.num_heads, self.head_v_dim, shape.norm_eps)
        if options.output_gate != "none":
            rank = self.head_dim if options.gate_rank < 0 else options.gate_rank
            self.g_proj = make_projection(shape.hidden_size, o_dim, rank, options.gate_bias)
        if options.window and not self.has_keys:
            raise ConfigError(
                f"layer {layer_idx}: {self.name} has no keys that a window could attend to; set window: 0"
            )
        if options.window:
            self.span = AttentionSpan(options.window, options.window_sinks)
            self.state_kind, self.served_as = StateKind.RECURRENT | StateKind.WINDOW, None
        self._build_parameters()
        self.scale = 1.0 if options.scale == "one" else self.key_dim() ** -0.5

    @classmethod
    def from_attention(
        cls, attention: nn.Module, shape: AttentionShape, options: Any, *, layer: int, window: int | None
    ) -> "RecurrentMixer":
        return cls(shape, options, layer)

    def copy_from_teacher(self, attention: nn.Module, init: str) -> None:
        copy_projections(self, attention, init)

    def position_embeddings(
        self, rotary: tuple[Tensor, Tensor], position_ids: Tensor
    ) -> tuple[Tensor, Tensor]:
        base = self.options.rotary_base
        return rotary_angles(position_ids, self.head_k_dim, base, rotary[0].dtype) if base else rotary

    def _build_convolutions(self) -> None:
        options = self.options
        if options.short_conv:
            silu = options.activation == "silu"
            activated = silu, silu and self.has_keys, self._v_activated_by_conv
            letters = "qkv" if self.convolves_values else "qk"
            for letter, width, activates in zip(letters, self.qkv_dims, activated, strict=False):
                setattr(self, f"{letter}_conv1d", ShortConvolution(width, options.short_conv, activates))

    @property
    def _v_activated_by_conv(self) -> bool:
        """Whether the convolution activates v: only after q and k, as activated convolutions come first."""
        options = self.options
        first = options.activation == "silu" and self.has_keys
        convolved = self.convolves_projections and self.convolves_values
        return first and options.v_activation == "silu" and convolved

    def _build_parameters(self) -> None:
        """Add the parameters that only this mixer has."""

    def compute_gates(self, x: Tensor, inputs: RecurrenceInputs) -> RecurrenceInputs:
        """Apply the mixer's feature map, decay and write rule.

        Args:
            x: the layer's input [B, T, hidden].
            inputs: q and k [B, T, H, D] after convolution, rotary and norm, and v.
        """
        return inputs

    def skip(self, inputs: RecurrenceInputs) -> Tensor | None:
        """Weight with which each token adds its own value to its output, [B, T, H] or [H]; None for 0.

        Args:
            inputs: what `compute_gates` returned.
        """
        return None

    def normalizer(self, total: Tensor) -> Tensor:
        """Divisor of the output, given Σ_j A_tj [B, T, H, 1], of a mixer that sets `uses_normalizer`."""
        raise NotImplementedError

    def reset_parameters(self) -> None:
        """Set the initial values that are not random; mixers extend this. Runs after all linear layers."""
        if self.options.short_conv:
            for convolution in self._convolutions():
                convolution.reset_parameters()
        for name in ("q_norm", "k_norm", "o_norm"):
            if hasattr(getattr(self, name, None), "weight"):
                init.ones_(getattr(self, name).weight)
        if self.options.output_gate != "none" and self.options.gate_bias:
            # silu(1.2784645) = 1, and sigmoid(4) = 0.98, which cannot be the identity.
            init_constant_(self.g_proj, {"silu": 1.2784645, "sigmoid": 4.0}[self.options.output_gate])

    @property
    def options_across_heads(self) -> dict[str, Any]:
        """Options by which heads are not independent, so that they cannot be split over devices."""
        options = self.options
        across = {name: getattr(options, name) for name in ("num_heads", "num_qk_heads")}
        if options.output_norm == "rms_all_heads":
            across["output_norm"] = options.output_norm
        return {name: value for name, value in across.items() if value}

    def _convolutions(self) -> tuple[ShortConvolution, ...]:
        if not self.convolves_values:
            return self.q_conv1d, self.k_conv1d
        return self.q_conv1d, self.k_conv1d, self.v_conv1d

    @property
    def convolves_projections(self) -> bool:
        """Whether q, k and v are convolved."""
        return self.options.short_conv > 0

    @property
    def convolves_values(self) -> bool:
        """Whether v is convolved where q and k are."""
        return True

    def convolve_input(self, x: Tensor, convolve: Convolve) -> tuple[Tensor, MixerState]:
        """Convolve the layer's input [B, T, hidden], if the mixer does: the input of all that follows, and
        the new state of the convolution."""
        return x, {}

    def joint_projections(self) -> list[nn.Module]:
        """Layers that read the same tensor in every forward pass, so that one product can compute them."""
        full_rank_gate = self.options.output_gate != "none" and isinstance(self.g_proj, nn.Linear)
        return [self.q_proj, self.k_proj, self.v_proj, *([self.g_proj] if full_rank_gate else [])]

    def further_columns(self) -> int:
        """Columns of the recurrence's values after the V of the layer's own, which only its states need."""
        return 1 if self.uses_normalizer else 0

    def key_dim(self) -> int:
        """Width K of the keys after the feature map."""
        return self.head_k_dim

    def state_shapes(self) -> dict[str, tuple[int, ...]]:
        """Shape per sequence of each part of the `MixerState`."""
        value_dim = self.head_v_dim + self.further_columns()
        shapes: dict[str, tuple[int, ...]] = {"recurrent": (self.num_heads, self.key_dim(), value_dim)}
        if self.options.short_conv > 1:
            channels = sum(convolution.channels for convolution in self._convolutions())
            shapes["convolution"] = (channels, self.options.short_conv - 1)
        if self.span is not None:
            shapes |= window_state_shapes(self.span, self.num_heads, self.head_k_dim, self.head_v_dim)
        return shapes

    def cache_spec(self) -> CacheSpec:
        return CacheSpec(states=self.state_shapes())

    def mixing_flops(self, length: int) -> float:
        """Write, read, the delta rules' read before the write and removal, and convolutions."""
        heads, keys, values = self.state_shapes()["recurrent"]
        passes = 2 + self.uses_delta_rule + self.removes_along_own_key
        channels = sum(each.channels for each in self._convolutions()) if self.options.short_conv else 0
        seen = self.span.mean_length(length) if self.span is not None else 0
        attention = self.num_heads * (self.head_k_dim + self.head_v_dim) * seen
        return 2 * (passes * heads * keys * values + channels * self.options.short_conv + attention)

    def prepare(
        self,
        x: Tensor,
        position_embeddings: tuple[Tensor, Tensor] | None = None,
        *,
        state: MixerState | None = None,
        token_mask: Tensor | None = None,
        cu_seqlens: Tensor | None = None,
        access: StateAccess = OWN,
    ) -> Prepared:
        """Compute everything before the recurrence; arguments as in `forward`, and `access` to `state`."""

        def convolve(parts: Sequence[Tensor]) -> tuple[Sequence[Tensor], Tensor]:
            past = None if state is None else state.get("convolution")
            weights = [each.weight for each in self._convolutions()]
            num_activated = sum(each.silu for each in self._convolutions())
            return short_convolutions(parts, weights, num_activated, past, token_mask, cu_seqlens, access)

        x, new_state = self.convolve_input(x, convolve)
        q, k, v = self.q_proj(x), self.k_proj(x), self.v_proj(x)
        if hasattr(self, "q_norm") and self.attention_shape.qk_norm == "all_heads":
            q, k = self.q_norm(q), self.k_norm(k) if self.has_keys else k
        elif hasattr(self, "q_norm"):
            q = self.q_norm(self.split_heads(q)).flatten(2)
            k = self.k_norm(self.split_heads(k)).flatten(2) if self.has_keys else k
        window = window_heads(self, q, k, position_embeddings) if self.options.window else None
        if self.convolves_projections:
            parts = [q, k, v] if self.convolves_values else [q, k]
            convolved, new_state["convolution"] = convolve(parts)
            q, k, v = [*convolved, v][:3]
        elif self.options.activation == "silu":
            q, k = functional.silu(q), functional.silu(k) if self.has_keys else k
        if self.options.v_activation == "silu" and not self._v_activated_by_conv:
            v = functional.silu(v)
        q, k, v = self.split_heads(q), self.split_heads(k), v.unflatten(-1, (-1, self.head_v_dim))
        if self.options.rotary and (self.attention_shape.rotary or self.options.rotary_base):
            if position_embeddings is None:
                raise ConfigError(
                    f"layer {self.layer_idx}: {self.name} with rotary needs position_embeddings"
                )
            q = rotary(q, *position_embeddings)
            k = rotary(k, *position_embeddings) if self.has_keys else k
        if self.options.qk_norm == "l2":
            q, k = l2_norm(q, k) if self.has_keys else (*l2_norm(q), k)
        q, k, v = (repeat_heads(part, self.num_heads) for part in (q, k, v))
        initial = None if state is None else state["recurrent"]
        inputs = RecurrenceInputs(
            q,
            k,
            v,
            scale=self.scale,
            initial_state=initial,
            cu_seqlens=cu_seqlens,
            token_mask=token_mask,
            access=access,
        )
        inputs = self.compute_gates(x, inputs)
        skip = self.skip(inputs)
        if self.uses_normalizer:
            inputs = replace(inputs, v=functional.pad(inputs.v, [0, 1], value=1.0))
        return Prepared(inputs, skip, x, window, new_state)

    def split_heads(self, x: Tensor) -> Tensor:
        """[B, T, H · K] → [B, T, H, K]."""
        return x.unflatten(-1, (-1, self.head_k_dim))

    def apply_normalizer(self, o: Tensor, layer: Prepared) -> Tensor:
        """Apply normaliser and skip connection to the recurrence's output: [B, T, H, V]."""
        if columns := self.further_columns():
            o, further = o.split([o.shape[-1] - columns, columns], -1)
            if self.uses_normalizer:
                o = divide_by_normalizer(o, self.normalizer(further))
        if layer.skip is not None:
            o = o + layer.skip.to(o.dtype).unsqueeze(-1) * self.values(layer.inputs)
        return o

    def forward(
        self,
        hidden_states: Tensor,
        position_embeddings: tuple[Tensor, Tensor] | None = None,
        attention_mask: Tensor | None = None,
        past_key_values: Any = None,
        position_ids: Tensor | None = None,
        use_cache: bool | None = None,
        token_mask: Tensor | None = None,
        cu_seqlens: Tensor | None = None,
        cache: Any = None,
    ) -> tuple[Tensor, None]:
        """Mix tokens, with the signature of transformers' attention modules.

        Args:
            hidden_states: [B, T, hidden].
            position_embeddings: what the method of that name returned: cos and sin [1 or B, T, D], used if
                the option `rotary` is on.
            attention_mask: for the window of packed sequences only; a recurrence is causal, and `token_mask`
                marks its pads.
            past_key_values, cache (from transformers 5.24 on): its `layers[layer_idx]` is a `LayerCache`.
            token_mask: bool [B, T], the real tokens, contiguous in each row; None if all are real.
            cu_seqlens: bounds [N + 1] of packed sequences (B = 1, no token_mask); the cached state then has
                N rows.

        Returns:
            The output [B, T, hidden], and None in place of attention weights.

        Raises:
            ConfigError: the cached state has another shape.
        """
        own = layer_cache(past_key_values if cache is None else cache, self.layer_idx)
        state, access = (None, OWN) if own is None else own.lend(slots=not self.options.window)
        if state is not None:
            rows = len(hidden_states) if cu_seqlens is None else len(cu_seqlens) - 1
            rows = len(state["recurrent"]) if access.slots is not None else rows
            self._validate_state(state, rows)
        layer = self.prepare(
            hidden_states,
            position_embeddings,
            state=state,
            token_mask=token_mask,
            cu_seqlens=cu_seqlens,
            access=access,
        )
        o, last = self.recurrence(layer.inputs)
        if own is not None and self.state_precision is not None:
            last = quantize_dequantize(last, self.state_precision)
        mixed, new_state = self.apply_normalizer(o, layer), {"recurrent": last, **layer.state}
        if layer.window is not None:
            mixed, window_state = mix_window(
                self,
                mixed,
                layer.window,
                self.values(layer.inputs),
                state=state,
                token_mask=token_mask,
                cu_seqlens=cu_seqlens,
                packed_mask=attention_mask,
            )
            new_state |= window_state
        if own is not None:
            own.write(new_state)
        return self.project_output(mixed, layer), None

    def _validate_state(self, state: Mapping[str, Tensor], rows: int) -> None:
        """Raise ConfigError unless `state` has this layer's shapes for `rows` sequences."""
        for name, shape in self.state_shapes().items():
            found = tuple(state[name].shape) if name in state else None
            if found != (rows, *shape):
                raise ConfigError(
                    f"layer {self.layer_idx}: {self.name} received a {name} state of shape {found}; "
                    f"expected {(rows, *shape)}"
                )

    def values(self, inputs: RecurrenceInputs) -> Tensor:
        """The values [B, T, H, V], without further columns."""
        return inputs.v[..., : self.head_v_dim]

    def project_output(self, mixed: Tensor, layer: Prepared) -> Tensor:
        """Apply output norm, output gate and output projection: [B, T, H, V] → [B, T, hidden]."""
        return self.o_proj(self.norm_and_gate(mixed, layer))

    def norm_and_gate(self, mixed: Tensor, layer: Prepared) -> Tensor:
        """Apply output norm and output gate: [B, T, H, V] → [B, T, H · V]."""
        if self.options.output_norm != "none":
            mixed = self.o_norm(mixed)
        return self.apply_gate(mixed.flatten(2), layer.x)

    def apply_gate(self, mixed: Tensor, x: Tensor) -> Tensor:
        """Apply the output gate to [B, T, H · V]."""
        if self.options.output_gate == "silu":
            return glu(self.g_proj(x), mixed)
        return mixed * torch.sigmoid(self.g_proj(x)) if self.options.output_gate == "sigmoid" else mixed

    def attention_matrix(
        self,
        hidden_states: Tensor,
        position_embeddings: tuple[Tensor, Tensor] | None = None,
        token_mask: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        layer = self.prepare(hidden_states, position_embeddings, token_mask=token_mask)
        weights = recurrence_matrix(layer.inputs)
        if layer.skip is not None:
            skip = layer.skip.expand(layer.inputs.v.shape[:3]).transpose(1, 2)
            weights = weights + torch.diag_embed(skip.to(weights.dtype))
        if self.uses_normalizer:
            total = weights.sum(-1).transpose(1, 2).unsqueeze(-1)
            weights = weights / self.normalizer(total).transpose(1, 2)
        if layer.window is not None:
            weights = mix_window_matrix(self, weights, layer.window, token_mask)
        return weights, self.values(layer.inputs)
