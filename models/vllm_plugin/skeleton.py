"""The student without its weights, from which the served model reads every layer's shape and options."""

import copy

import torch
from torch import nn

from evalsuite.foundation import ConfigError
from evalsuite.models.mixers import Geometry, Mixer, geometry_of
from evalsuite.models.student import StudentConfig, StudentModel
from evalsuite.models.vllm_plugin.sharding import local_mixer
from evalsuite.models.vllm_plugin.state import state_bytes

HOOKS = ("forward", "terms", "output", "read_out", "state_shapes")
"""What the served layer counts on: a mixer that replaces one of these may keep or need something else."""


def skeleton(config: StudentConfig) -> list[nn.Module]:
    """Every layer's mixer, on the meta device.

    Raises:
        ConfigError: a mixer that does more than the one recurrence, which vLLM's pages could not hold.
    """
    # Building a model notes its attention implementation in the config, which vLLM goes on to use.
    with torch.device("meta"):
        layers = [layer.self_attn for layer in StudentModel(copy.deepcopy(config)).layers]
    for layer, mixer in enumerate(layers):
        if not isinstance(mixer, Mixer):
            continue
        changed = [hook for hook in HOOKS if getattr(type(mixer), hook) is not getattr(Mixer, hook)]
        unknown = sorted(mixer.state_shapes().keys() - {"recurrent", "convolution"})
        if changed or unknown:
            raise ConfigError(
                f"layer {layer}: the mixer {mixer.name} cannot be served by vLLM (it has its own "
                f"{', '.join(changed + unknown)}); use --engine torch"
            )
    return layers


def attention_geometry(config: StudentConfig, layers: list[nn.Module]) -> list[Geometry | None]:
    """The shape of each softmax or sliding-window layer; None for recurrent layers."""
    eps = config.base.rms_norm_eps
    return [
        None if isinstance(mixer, Mixer) else geometry_of(mixer, eps, layer)
        for layer, mixer in enumerate(layers)
    ]


def largest_state(layers: list[nn.Module], ranks: int, dtype: torch.dtype) -> int:
    """Bytes of the largest state that one rank keeps per layer and sequence; 0 without recurrent layers."""
    with torch.device("meta"):
        mixers = [local_mixer(mixer, ranks) for mixer in layers if isinstance(mixer, Mixer)]
    return max((state_bytes(mixer, dtype) for mixer in mixers), default=0)
