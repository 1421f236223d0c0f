"""What every recurrent mixer shares: projections, convolution, rotary, state, normaliser, output gate.

A mixer says in its own file which options, feature map, gates and write rule it has; the path of a token
is the same for all:

    x → q, k, v projections → teacher's QK-norm → short convolution → rotary → heads → L2 norm
      → feature map and gates (the mixer) → the recurrence → normaliser → output norm → output gate → o
"""

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import initialization as init

from evalsuite.foundation import ConfigError
from evalsuite.models.mixers.convolution import ShortConvolution
from evalsuite.models.mixers.geometry import Geometry
from evalsuite.models.mixers.options import MixerOptions
from evalsuite.models.mixers.parts import (
    SIGMOID_OPEN,
    SILU_ONE,
    RMSNorm,
    gated,
    projection,
    ratio,
    rotate,
    start_constant,
    unit,
)
from evalsuite.models.recurrence import matrix, recurrence

State = dict[str, Tensor]


class Slot(Protocol):
    """Where one recurrent layer keeps its state between calls."""

    def read(self) -> State | None:
        """The state last written, or None."""

    def write(self, state: State) -> None:
        """Keep `state`: "recurrent" [B, H, K, V] in float32, "convolution" [B, C, taps − 1]."""


@dataclass(frozen=True, slots=True)
class Terms:
    """What a mixer hands to the recurrence; shapes as `evalsuite.models.recurrence.recurrence`."""

    q: Tensor
    k: Tensor
    v: Tensor
    log_decay: Tensor | None = None
    beta: Tensor | None = None
    skip: Tensor | None = None
    """How much of its own value each token adds to its output, [B, T, H] or [H]."""


class Mixer(nn.Module):
    """A recurrent token mixer that stands where softmax attention stood, with the same call."""

    name: ClassVar[str]
    Options: ClassVar[type[MixerOptions]] = MixerOptions
    keyed: ClassVar[bool] = True
    """False where 1 − decay serves as the key: `k_proj` then gives the logits of the write gate, which see
    neither activation nor rotary nor norm."""

    def __init__(self, geometry: Geometry, options: MixerOptions, layer_idx: int) -> None:
        super().__init__()
        self.geometry, self.options, self.layer_idx = geometry, options, layer_idx
        self.heads, self.head_dim = geometry.heads, geometry.head_dim
        self.kv_heads = geometry.heads if options.expand_kv else geometry.kv_heads
        self.scale = 1.0 if options.scale == "one" else geometry.head_dim**-0.5
        inner, kv_inner = self.heads * self.head_dim, self.kv_heads * self.head_dim
        self.q_proj = nn.Linear(geometry.hidden, inner, bias=geometry.q_bias)
        self.k_proj = nn.Linear(geometry.hidden, kv_inner, bias=geometry.k_bias)
        self.v_proj = nn.Linear(geometry.hidden, kv_inner, bias=geometry.v_bias)
        self.o_proj = nn.Linear(inner, geometry.hidden, bias=geometry.o_bias)
        if geometry.qk_norm:
            self.q_norm = RMSNorm(self.head_dim, geometry.norm_eps)
            if self.keyed:
                self.k_norm = RMSNorm(self.head_dim, geometry.norm_eps)
        self.channels = (inner, kv_inner, kv_inner)
        if options.short_conv:
            activated = (inner + kv_inner if self.keyed else inner) if options.activation == "silu" else 0
            self.conv = ShortConvolution(sum(self.channels), options.short_conv, activated)
        if options.output_norm == "rms":
            self.out_norm = RMSNorm(self.head_dim, geometry.norm_eps)
        if options.output_gate != "none":
            self.gate = projection(geometry.hidden, inner, options.gate_rank)
        self.build()

    def build(self) -> None:
        """Add the parameters that only this mixer has."""

    def gates(self, x: Tensor, terms: Terms) -> Terms:
        """Apply the mixer's feature map, decay and write rule.

        Args:
            x: the layer's input [B, T, hidden].
            terms: q and k [B, T, H, D] after convolution, rotary and norm, and v.
        """
        return terms

    def denominator(self, total: Tensor) -> Tensor | None:
        """What the output is divided by, given Σ_j A_tj [B, T, H, 1]; None for a mixer without normaliser.

        A mixer that returns a tensor here also sets `normalized` to True.
        """
        return None

    normalized: bool = False
    """Whether the values carry a column of ones whose output is the normaliser."""
    started: bool = False
    """Whether `reset_parameters` has run, so that nothing runs it again on trained weights."""

    def reset_parameters(self) -> None:
        """Set what must not start at random; a mixer extends this. Runs after all linear layers are drawn."""
        if self.options.short_conv:
            identity = torch.zeros_like(self.conv.weight)
            identity[:, -1] = 1.0
            init.copy_(self.conv.weight, identity)
        for name in ("q_norm", "k_norm", "out_norm"):
            if hasattr(self, name):
                init.ones_(getattr(self, name).weight)
        if self.options.output_gate != "none":
            start = {"silu": SILU_ONE, "sigmoid": SIGMOID_OPEN}[self.options.output_gate]
            start_constant(self.gate, start)

    def key_width(self) -> int:
        """Width K of the keys after the feature map."""
        return self.head_dim

    def state_shapes(self) -> dict[str, tuple[int, ...]]:
        """Shape per sequence of what this layer keeps; see `Slot.write`."""
        value = self.head_dim + (1 if self.normalized else 0)
        shapes: dict[str, tuple[int, ...]] = {"recurrent": (self.heads, self.key_width(), value)}
        if self.options.short_conv > 1:
            shapes["convolution"] = (sum(self.channels), self.options.short_conv - 1)
        return shapes

    def terms(
        self,
        x: Tensor,
        position_embeddings: tuple[Tensor, Tensor] | None,
        state: State | None,
        token_mask: Tensor | None,
        cu_seqlens: Tensor | None,
    ) -> tuple[Terms, State]:
        """Everything up to the recurrence.

        Returns:
            The terms, in which pads neither write (k and β are 0) nor decay, and the convolution's state.
        """
        q, k, v = self.q_proj(x), self.k_proj(x), self.v_proj(x)
        if self.geometry.qk_norm:
            q = self.q_norm(self.split(q)).flatten(2)
            k = self.k_norm(self.split(k)).flatten(2) if self.keyed else k
        kept: State = {}
        if self.options.short_conv:
            past = None if state is None else state.get("convolution")
            (q, k, v), kept["convolution"] = self.conv.split([q, k, v], past, token_mask, cu_seqlens)
        elif self.options.activation == "silu":
            q, k = functional.silu(q), functional.silu(k) if self.keyed else k
        q, k, v = self.split(q), self.split(k), self.split(v)
        if self.options.rotary:
            if position_embeddings is None:
                raise ConfigError(
                    f"layer {self.layer_idx}: {self.name} with rotary needs position_embeddings"
                )
            q = rotate(q, *position_embeddings)
            k = rotate(k, *position_embeddings) if self.keyed else k
        if self.options.qk_norm == "l2":
            q, k = unit(q), unit(k) if self.keyed else k
        if self.kv_heads != self.heads:
            k = k.repeat_interleave(self.geometry.groups, 2)
            v = v.repeat_interleave(self.geometry.groups, 2)
        terms = self.gates(x, Terms(q, k, v))
        if self.normalized:
            terms = replace(terms, v=functional.pad(terms.v, [0, 1], value=1.0))
        return (terms if token_mask is None else silence_pads(terms, token_mask)), kept

    def split(self, x: Tensor) -> Tensor:
        """[B, T, H · D] → [B, T, H, D]."""
        return x.unflatten(-1, (-1, self.head_dim))

    def read_out(self, o: Tensor, terms: Terms) -> Tensor:
        """The mixed values [B, T, H, V] from the recurrence's output: normaliser and skip connection."""
        if self.normalized:
            values, total = o.split([o.shape[-1] - 1, 1], -1)
            divisor = self.denominator(total)
            assert divisor is not None
            o = ratio(values, divisor)
        if terms.skip is not None:
            o = o + terms.skip.to(o.dtype).unsqueeze(-1) * terms.v
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
    ) -> tuple[Tensor, None]:
        """Mix tokens; the call of transformers' attention modules.

        Args:
            hidden_states: [B, T, hidden].
            position_embeddings: cos and sin [B, T, D], used if the option `rotary` is on.
            attention_mask: ignored; a recurrence is causal, and `token_mask` marks its pads.
            past_key_values: a cache whose `layers[layer_idx]` is a `Slot`.
            token_mask: bool [B, T], the real tokens, contiguous in each row; None if all are.
            cu_seqlens: bounds [N + 1] of packed sequences (B = 1, no token_mask); the slot's states then
                have N rows.

        Returns:
            The output [B, T, hidden], and None where attention returns its weights.

        Raises:
            ConfigError: a stored state of another shape.
        """
        slot: Slot | None = None if past_key_values is None else past_key_values.layers[self.layer_idx]
        state = None if slot is None else slot.read()
        if state is not None:
            self._check(state, hidden_states.shape[0] if cu_seqlens is None else cu_seqlens.numel() - 1)
        terms, kept = self.terms(hidden_states, position_embeddings, state, token_mask, cu_seqlens)
        o, last = recurrence(
            terms.q,
            terms.k,
            terms.v,
            log_decay=terms.log_decay,
            beta=terms.beta,
            scale=self.scale,
            initial_state=None if state is None else state["recurrent"],
            cu_seqlens=cu_seqlens,
        )
        if slot is not None:
            slot.write({"recurrent": last, **kept})
        return self.output(self.read_out(o, terms), hidden_states), None

    def output(self, mixed: Tensor, x: Tensor) -> Tensor:
        """Output norm, output gate and output projection: [B, T, H, V] → [B, T, hidden]."""
        if self.options.output_norm == "rms":
            mixed = self.out_norm(mixed)
        mixed = mixed.flatten(2)
        if self.options.output_gate == "silu":
            mixed = gated(self.gate(x), mixed)
        elif self.options.output_gate == "sigmoid":
            mixed = mixed * torch.sigmoid(self.gate(x))
        out: Tensor = self.o_proj(mixed)
        return out

    def matrix(
        self,
        hidden_states: Tensor,
        position_embeddings: tuple[Tensor, Tensor] | None = None,
        token_mask: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Materialise the mixer's attention matrix, before output norm and output gate.

        Returns:
            A [B, H, T, T], lower triangular, and the values V [B, T, H, V] that it mixes, so that the mixed
            values are A V. Differentiable; memory T².
        """
        terms, _ = self.terms(hidden_states, position_embeddings, None, token_mask, None)
        weights = matrix(terms.q, terms.k, log_decay=terms.log_decay, beta=terms.beta, scale=self.scale)
        if terms.skip is not None:
            skip = terms.skip.expand(terms.v.shape[:3]).transpose(1, 2)
            weights = weights + torch.diag_embed(skip.to(weights.dtype))
        if not self.normalized:
            return weights, terms.v
        divisor = self.denominator(weights.sum(-1).transpose(1, 2).unsqueeze(-1))
        assert divisor is not None
        return weights / divisor.transpose(1, 2), terms.v[..., :-1]

    def _check(self, state: State, rows: int) -> None:
        for name, shape in self.state_shapes().items():
            found = tuple(state[name].shape) if name in state else None
            if found != (rows, *shape):
                raise ConfigError(
                    f"layer {self.layer_idx}: {self.name} was given a {name} state of shape {found}; "
                    f"it needs {(rows, *shape)}"
                )


def silence_pads(terms: Terms, token_mask: Tensor) -> Terms:
    """Make pads write nothing and decay nothing, so that the state passes them unchanged."""
    real = token_mask[..., None]
    log_decay = terms.log_decay
    if log_decay is not None:
        per_token = log_decay.expand(*token_mask.shape, -1) if log_decay.dim() == 1 else log_decay
        log_decay = per_token * (real if per_token.dim() == 3 else real[..., None])
    return replace(
        terms,
        k=terms.k * real[..., None],
        log_decay=log_decay,
        beta=None if terms.beta is None else terms.beta * real,
    )
