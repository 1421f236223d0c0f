"""Tensor parallelism by heads: each rank runs a mixer with its share of the heads.

A mixer with fewer heads has the same parameters, each smaller along the dimension that counts heads. Sharding
therefore needs no table: a parameter is split along the dimension in which the two shapes differ.
"""

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from evalsuite.foundation import CheckpointError, ConfigError
from evalsuite.models.mixers import RecurrentMixer


def local_mixer(mixer: RecurrentMixer, tp_size: int) -> RecurrentMixer:
    """Build the mixer of one rank, without loading its parameters.

    Raises:
        ConfigError: the heads do not divide among the ranks.
    """
    validate_ranks(mixer, tp_size)
    shape = mixer.attention_shape
    if tp_size > 1:
        # With one key head per query head, the teacher's groups play no role in the forward pass.
        grouped = mixer.num_kv_heads != mixer.num_heads
        heads = mixer.num_heads // tp_size
        kv_heads = max(1, mixer.num_kv_heads // tp_size) if grouped else heads
        shape = replace(shape, num_heads=heads, num_kv_heads=kv_heads)
    return type(mixer)(shape, mixer.options, mixer.layer_idx)


def validate_ranks(mixer: RecurrentMixer, tp_size: int) -> None:
    """Raise ConfigError if a mixer's heads depend on each other or do not divide among `tp_size` ranks."""
    if tp_size > 1 and (across := mixer.options_across_heads):
        named = ", ".join(f"{name} = {value}" for name, value in across.items())
        raise ConfigError(
            f"tensor_parallel_size = {tp_size}: the heads of {mixer.name} with {named} depend on each other; "
            "it can be 1"
        )
    all_heads, kv_heads = mixer.attention_shape.num_heads, mixer.num_kv_heads
    for what, heads in (("heads", all_heads), ("key and value heads", kv_heads)):
        if heads % tp_size:
            divisors = [n for n in range(1, all_heads + 1) if all_heads % n == kv_heads % n == 0]
            raise ConfigError(
                f"tensor_parallel_size = {tp_size}: {mixer.name} has {heads} {what}, which do not divide; "
                f"it can be {', '.join(map(str, divisors))}"
            )


@torch.no_grad()
def load_sharded_weights(
    local: RecurrentMixer, mixer: RecurrentMixer, rank: int, tensors: Mapping[str, Tensor]
) -> None:
    """Load one rank's shards of a layer: of each tensor those heads that the rank has.

    Args:
        local: the mixer of this rank, loaded in place.
        mixer: the checkpoint's mixer, on the meta device.
        rank: rank in the tensor-parallel group.
        tensors: the layer's tensors by name inside the mixer.

    Raises:
        CheckpointError: tensors are missing, unknown, or of another shape.
    """
    parameters = local.state_dict()
    missing, unknown = sorted(parameters.keys() - tensors.keys()), sorted(tensors.keys() - parameters.keys())
    if missing or unknown:
        raise CheckpointError(
            f"layer {mixer.layer_idx}, {mixer.name}: missing {missing}, unknown {unknown}; the weights do "
            "not belong to this config"
        )
    for name, full in mixer.state_dict().items():
        tensor, parameter = tensors[name], parameters[name]
        if tensor.shape != full.shape:
            raise CheckpointError(
                f"layer {mixer.layer_idx}: {name} is {tuple(tensor.shape)}, the config says "
                f"{tuple(full.shape)}"
            )
        for dimension, size in enumerate(parameter.shape):
            if size != full.shape[dimension]:
                tensor = tensor.narrow(dimension, rank * size, size)
        # Partial outputs are summed over ranks, so only one rank may add the output bias.
        parameter.copy_(torch.zeros_like(tensor) if name == "o_proj.bias" and rank else tensor)
