"""The student on the meta device, from which the served model reads each layer's shape and options."""

import copy

import torch
from torch import nn

from evalsuite.foundation import ConfigError
from evalsuite.models.mixers import AttentionShape, RecurrentMixer
from evalsuite.models.student import StudentConfig, StudentModel
from evalsuite.models.vllm_plugin.sharding import local_mixer
from evalsuite.models.vllm_plugin.state import state_bytes

NOT_OVERRIDABLE = ("forward", "prepare_inputs", "project_output", "apply_normalizer", "state_shapes")
"""Methods that the served layer relies on; a mixer that overrides one may need other states."""


def build_meta_mixers(config: StudentConfig) -> list[nn.Module]:
    """Build the mixer of each layer on the meta device.

    Raises:
        ConfigError: a mixer does more than the shared recurrence, so that its state may not fit the pages.
    """
    # Building a model sets the config's attention implementation, and vLLM reads the config later.
    with torch.device("meta"):
        layers = [layer.self_attn for layer in StudentModel(copy.deepcopy(config)).layers]
    for layer, mixer in enumerate(layers):
        if not isinstance(mixer, RecurrentMixer):
            continue
        overridden = [
            method
            for method in NOT_OVERRIDABLE
            if getattr(type(mixer), method) is not getattr(RecurrentMixer, method)
        ]
        unknown = sorted(mixer.state_shapes().keys() - {"recurrent", "convolution"})
        if mixer.spans_layers:
            raise ConfigError(
                f"layer {layer}: {mixer.name} with learned_lower_bounds = True shares parameters between "
                "layers and cannot be served by vLLM; use --engine torch"
            )
        if overridden or unknown:
            raise ConfigError(
                f"layer {layer}: the mixer {mixer.name} cannot be served by vLLM (it has its own "
                f"{', '.join(overridden + unknown)}); use --engine torch"
            )
    return layers


def attention_shapes(config: StudentConfig, layers: list[nn.Module]) -> list[AttentionShape | None]:
    """Shape of each softmax or sliding-window layer; None for recurrent layers."""
    eps = config.base.rms_norm_eps
    return [
        None if isinstance(mixer, RecurrentMixer) else AttentionShape.from_attention(mixer, eps, layer)
        for layer, mixer in enumerate(layers)
    ]


def max_state_bytes(layers: list[nn.Module], tp_size: int, dtype: torch.dtype) -> int:
    """Bytes of the largest state of one rank per layer and sequence; 0 without recurrent layers."""
    with torch.device("meta"):
        mixers = [local_mixer(mixer, tp_size) for mixer in layers if isinstance(mixer, RecurrentMixer)]
    return max((state_bytes(mixer, dtype) for mixer in mixers), default=0)
