"""What a model costs: parameters, FLOPs and cache, counted on its own layers without weights."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any

import torch
from torch import nn
from transformers import AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel
from transformers.initialization import no_init_weights

from evalsuite.foundation import ConfigError
from evalsuite.models.decoder.config import decoder_config
from evalsuite.models.decoder.measured_layers import MeasuredLayer, measure_layers, weights_in_products
from evalsuite.models.decoder.model import StudentForCausalLM
from evalsuite.models.mixers import (
    MIXERS,
    AttentionSpan,
    CacheSpec,
    RecurrenceInputs,
    RecurrentMixer,
    SoftmaxHeadsMixer,
    SoftmaxMixer,
)
from evalsuite.models.ops.recurrence import naive_recurrent

PEAK_FLOPS = {
    "H100 NVL": 835e12,
    "H100 PCIe": 756e12,
    "H100": 989e12,
    "H200": 989e12,
    "B200": 2250e12,
    "A100": 312e12,
}
"""Dense bf16 FLOP/s by a part of a GPU's name, the more specific names first: NVIDIA's data sheets of A100,
H100, H200 and B200, without sparsity, as in torchtitan's `get_peak_flops`."""

EXPERT_COUNTS = ("num_experts", "num_local_experts", "n_routed_experts")
"""What configs of transformers call the number of experts of a layer."""


def peak_flops(device: str) -> float | None:
    """Dense bf16 FLOP/s that the vendor states for a device of this name; None for one not in the table."""
    return next((peak for part, peak in PEAK_FLOPS.items() if part in device), None)


def format_flops(rate: float, device: str) -> str:
    """FLOP/s of a device as text, with the share of its peak: `312 TFLOP/s (31.5 % of 989)`."""
    peak = peak_flops(device)
    share = "" if peak is None else f" ({rate / peak:.1%} of {peak / 1e12:,.0f})".replace("%", " %")
    return f"{rate / 1e12:,.3g} TFLOP/s{share}"


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheSize:
    """Cache size of one sequence in bytes."""

    layers: tuple[CacheSpec, ...]
    dtype: torch.dtype
    """Dtype of everything but recurrent states, which are in float32."""

    @property
    def per_token(self) -> int:
        """Keys and values of full attention, per token."""
        full = [each for each in self.layers if each.span is not None and each.span.window is None]
        return sum(each.kv_width for each in full) * self.dtype.itemsize

    @property
    def fixed(self) -> int:
        """Recurrent and convolution states, independent of the length."""
        return sum(each.state_bytes(self.dtype) for each in self.layers)

    @property
    def bounded(self) -> int:
        """What does not grow with the length: states, and the keys and values of full windows."""
        return self.at(_LONG) - self.per_token * _LONG

    def at(self, tokens: int) -> int:
        """Cache size in bytes after `tokens` tokens."""
        return sum(each.bytes(tokens, self.dtype) for each in self.layers)


class ModelCost:
    """Parameters, FLOPs and cache of one model, whose weights are neither read nor made.

    FLOPs are per token of a forward pass, averaged over a sequence, and count matrix products, two per
    multiply-add. Layers of a foreign architecture are not known: of such a model parameters are counted, its
    cache is measured, and FLOPs follow from both.

    Args:
        config: of a teacher or student.
    """

    def __init__(self, config: PreTrainedConfig) -> None:
        self.config: Any = decoder_config(config)
        self.model: Any = build_on_meta(self.config)

    @classmethod
    def of(cls, config: PreTrainedConfig) -> "ModelCost":
        """That of a config, built once."""
        key = json.dumps(config.to_dict(), sort_keys=True, default=str)
        if key not in _COSTS:
            _COSTS[key] = cls(config)
        return _COSTS[key]

    @property
    def is_foreign(self) -> bool:
        """Whether the architecture is not one that students have."""
        return not isinstance(self.model, StudentForCausalLM)

    @property
    def inner_size(self) -> int:
        """Width of all query heads of the teacher together."""
        return int(self.config.num_attention_heads) * _head_dim(self.config)

    @property
    def _layers(self) -> Any:
        if self.is_foreign:
            raise ConfigError(f"the layers of architecture '{self.config.model_type}' are not known")
        return self.model.model.layers

    @cached_property
    def replaced(self) -> list[int]:
        """Layers whose mixers replace softmax attention."""
        return [index for index, layer in enumerate(self._layers) if not layer.self_attn.is_teacher_layer]

    @cached_property
    def num_params(self) -> int:
        """All parameters; a tied head is counted once."""
        return count(self.model.parameters())

    @cached_property
    def embedding_params(self) -> int:
        """Parameters of embeddings and head."""
        embeddings = self.model.get_input_embeddings(), self.model.get_output_embeddings()
        return count({id(each.weight): each.weight for each in embeddings if each is not None}.values())

    @cached_property
    def mixer_params(self) -> int:
        """Parameters of the mixers of all layers."""
        return sum(count(layer.self_attn.parameters()) for layer in self._layers)

    @cached_property
    def largest_block_params(self) -> int:
        """Parameters of the largest layer."""
        return max(count(layer.parameters()) for layer in self._layers)

    def forward_flops(self, length: int, *, head: bool = True) -> float:
        """FLOPs of the model, with or without its head, in sequences of `length` tokens.

        Raises:
            ConfigError: a foreign architecture whose cache can't be measured.
        """
        if self.is_foreign:
            return self.counted_flops(length, self._measured_layers) - (0 if head else self._head_flops)
        layers = range(len(self._layers))
        mixers = sum(self.mixer_flops(layer, length) for layer in layers)
        mlps = sum(self.mlp_flops(layer) for layer in layers)
        return mixers + mlps + (self._head_flops if head else 0)

    def counted_flops(self, length: int, layers: Sequence[CacheSpec]) -> float:
        """FLOPs of any architecture: two per weight that a token meets, attention, and states.

        Products of a recurrence's own algorithm, as within its chunks, and masked attention are left out: 1
        to 6 % of what torch's `FlopCounterMode` counts of Zamba2, Bamba, Falcon-H1, Qwen3.5, OLMo hybrid,
        LFM2 and Mamba2 in the sizes of transformers' default configs at 2,048 tokens. Products with weights
        are equal.

        Args:
            length: tokens of a sequence.
            layers: what each layer keeps. Keys and values are attended to by all query heads; an element of a
                state in float32 counts four, for writing and reading it, which is the least that a recurrence
                needs.
        """
        config = self.config.get_text_config()
        spans = sum(each.span.mean_length(length) for each in layers if each.span is not None)
        states = sum(prod(each.states.get("recurrent", (0,))) for each in layers)
        heads = int(getattr(config, "num_attention_heads", 0) or 0) if spans else 0
        widths = 2 * _head_dim(config) if heads else 0
        return 2 * self._active_weights + 2 * heads * widths * spans + 4 * states

    @property
    def _head_flops(self) -> int:
        config = self.config.get_text_config()
        return 2 * int(config.hidden_size) * int(config.vocab_size)

    @property
    def _measured_layers(self) -> list[CacheSpec]:
        if isinstance(self.foreign, str):
            raise ConfigError(f"architecture '{self.config.model_type}': {self.foreign}")
        return [layer.cache for layer in self.foreign]

    @cached_property
    def _active_weights(self) -> float:
        """Weights in products of one token: of routed experts those that it meets, and the head."""
        config, weights = self.config.get_text_config(), weights_in_products(self._in_bfloat16())
        routed = sum(size for name, size in weights.items() if ".experts." in name)
        sizes = (getattr(config, name, None) for name in EXPERT_COUNTS)
        experts, met = next(filter(None, sizes), 1), getattr(config, "num_experts_per_tok", None) or 1
        return sum(weights.values()) - routed * (1 - met / experts if routed else 0)

    def mixer_flops(self, layer: int, length: int) -> float:
        """FLOPs of the mixer of a layer."""
        return self._layers[layer].self_attn.flops(length)

    def mixer_matrix_flops(self, layer: int) -> int:
        """FLOPs of the projections of a layer's mixer."""
        return _matrix_flops(self._layers[layer].self_attn)

    def mlp_flops(self, layer: int) -> int:
        """FLOPs of the MLP of a layer."""
        return _matrix_flops(self._layers[layer].mlp)

    @cached_property
    def layer_activations(self) -> tuple[int, ...]:
        """Numbers of one token that the backward pass needs of each layer.

        About 4 vectors of the residual stream and 2 of the MLP, and those of the mixer. Measured in bf16 for
        32,768 tokens, with all else that a stage holds: in SmolLM2-135M's shape 20.3 GB for softmax attention
        and 28.6 GB for Gated DeltaNet, in Qwen3-0.6B's, whose heads are twice as wide as the residual stream,
        79.9 GB.
        """
        outside = 4 * self.config.hidden_size + 2 * int(self.config.intermediate_size)
        return tuple(outside + mixer for mixer in self.mixer_activations)

    @cached_property
    def mixer_activations(self) -> tuple[int, ...]:
        """Numbers of one token that the backward pass needs of each layer's mixer: queries, keys, values and
        outputs of softmax attention, or vectors of all heads (see `recurrent_vectors`)."""
        key_width = int(self.config.num_key_value_heads) * _head_dim(self.config)
        numbers: dict[tuple[str, bool], int] = {}
        found = []
        for layer in self._layers:
            mixer = layer.self_attn
            kind = mixer.name, isinstance(mixer, SoftmaxMixer)
            if kind not in numbers:
                softmax = 2 * (self.inner_size + key_width)
                numbers[kind] = softmax if kind[1] else recurrent_vectors(mixer) * self.inner_size
            found.append(numbers[kind])
        return tuple(found)

    def spans(self, *, packed: bool) -> list[AttentionSpan]:
        """Spans of the layers whose softmax attention takes the decoder's masks, which those that attend to a
        state do in packed sequences only. Empty for a foreign architecture."""
        mixers = [] if self.is_foreign else [layer.self_attn for layer in self._layers]
        found = [mixer.span if packed else mixer.cache_spec().span for mixer in mixers]
        return [span for span in found if span is not None]

    def cache(self, dtype: torch.dtype = torch.bfloat16) -> CacheSize | None:
        """Cache per sequence; recurrent states are in float32, everything else in `dtype`.

        That of a foreign architecture is measured on the meta device; None if it can't be, see `foreign`.
        """
        if not self.is_foreign:
            specs = tuple(layer.self_attn.cache_spec() for layer in self._layers)
        elif isinstance(self.foreign, str):
            return None
        else:
            specs = tuple(self._measured_layers)
        return CacheSize(layers=specs, dtype=dtype)

    @cached_property
    def foreign(self) -> list[MeasuredLayer] | str:
        """Layers of a foreign architecture as its own code keeps them, or why they can't be measured."""
        try:
            return measure_layers(self._in_bfloat16())
        except Exception as error:
            return f"{error or type(error).__name__}".splitlines()[0]

    def _in_bfloat16(self) -> PreTrainedModel:
        return build_on_meta(self.config, torch.bfloat16)


def recurrent_vectors(mixer: nn.Module) -> int:
    """Vectors of a layer's heads, in the dtype of its activations, that its backward pass needs of a token.

    About 12; with a decay per channel 7 more, its gate and logarithm in float32; under the generalized delta
    rule 9 more, the erase key and what it is made of in float32, and the decay that fla's kernel takes per
    channel; where values hold keys as well (MesaNet) 16 more, everything in float32. Measured on an H200
    (bf16, 30 layers of SmolLM2-135M's shape, 4,096 tokens unless stated; what models, optimizer and logits
    take is subtracted): Gated DeltaNet 13 (16,384 tokens: 11), GLA 18, KDA (8,192 tokens) 20, Comba 20, Gated
    DeltaNet 2 30, RWKV-7, which removes along another key, 33, MesaNet 28.
    """
    recurrent = mixer.recurrent if isinstance(mixer, SoftmaxHeadsMixer) else mixer
    if not isinstance(recurrent, RecurrentMixer):
        return 12
    try:
        inputs = recurrence_inputs(recurrent)
    except Exception:
        # A layer of another package may not run without weights, which no estimate should end with.
        if MIXERS.origin(recurrent.name) == "evalsuite":
            raise
        return 12
    by_channel, keys_as_values = inputs.decay_shape == "channel", recurrent.further_columns() > 1
    return 12 + 7 * by_channel + 9 * (inputs.erase is not None) + 16 * keys_as_values


def recurrence_inputs(layer: RecurrentMixer) -> RecurrenceInputs:
    """What the recurrence of a layer on the meta device gets of two tokens."""
    shape, dtype = layer.attention_shape, layer.q_proj.weight.dtype
    x = torch.empty(1, 2, shape.hidden_size, dtype=dtype, device="meta")
    # For a mixer whose queries need states. Chunks turn autocast off, which the meta device does not have.
    layer.recurrence = naive_recurrent
    angles = torch.empty(1, 2, shape.head_dim, dtype=dtype, device="meta")
    positions = torch.empty(1, 2, device="meta")
    return layer.prepare(x, layer.position_embeddings((angles, angles), positions)).inputs


_COSTS: dict[str, ModelCost] = {}
_LONG = 2**40
"""Tokens that fill any window."""


def build_on_meta(config: PreTrainedConfig, dtype: torch.dtype | None = None) -> PreTrainedModel:
    """The model of a config on the meta device; `dtype`: None for that of the config."""
    # Some releases of torch take a second to draw weights that do not exist.
    with torch.device("meta"), no_init_weights():
        model: PreTrainedModel = AutoModelForCausalLM.from_config(config, dtype=dtype)
    model.tie_weights()
    return model


def count(parameters: Iterable[torch.Tensor]) -> int:
    """Number of elements."""
    return sum(parameter.numel() for parameter in parameters)


def _matrix_flops(module: nn.Module) -> int:
    return 2 * count(each.weight for each in module.modules() if isinstance(each, nn.Linear))


def _head_dim(config: Any) -> int:
    return int(getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads)
