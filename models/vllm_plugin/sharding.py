"""Tensor parallelism by heads: each rank runs a mixer with its share of the heads.

A mixer with fewer heads has the same parameters, each smaller along the dimension that counts heads. Sharding
therefore needs no table: a parameter is split along the dimension in which the two shapes differ.
"""

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from evalsuite.foundation import CheckpointError, ConfigError
from evalsuite.models.mixers import AttentionShape, RecurrentMixer


def local_mixer(mixer: RecurrentMixer, tp_size: int) -> RecurrentMixer:
    """Build the mixer of one rank, without loading its parameters.

    Raises:
        ConfigError: the heads do not divide among the ranks.
    """
    validate_heads(mixer.name, mixer.attention_shape, mixer.num_kv_heads, tp_size)
    validate_options(mixer, tp_size)
    # With one key head per query head, the teacher's groups play no role in the forward pass.
    grouped = mixer.num_kv_heads != mixer.num_heads
    shape = replace(
        mixer.attention_shape,
        num_heads=mixer.num_heads // tp_size,
        num_kv_heads=max(1, mixer.num_kv_heads // tp_size) if grouped else mixer.num_heads // tp_size,
    )
    return type(mixer)(shape, mixer.options, mixer.layer_idx)


def validate_heads(name: str, shape: AttentionShape, num_kv_heads: int, tp_size: int) -> None:
    """Raise ConfigError if the heads of the recurrent layer `name` do not divide among `tp_size` ranks."""
    for what, heads in (("heads", shape.num_heads), ("key and value heads", num_kv_heads)):
        if heads % tp_size:
            divisors = [
                n for n in range(1, shape.num_heads + 1) if shape.num_heads % n == num_kv_heads % n == 0
            ]
            raise ConfigError(
                f"tensor_parallel_size = {tp_size}: {name} has {heads} {what}, which do not divide; "
                f"it can be {', '.join(map(str, divisors))}"
            )


def validate_options(mixer: RecurrentMixer, tp_size: int) -> None:
    """Raise ConfigError if an option makes the heads depend on each other and there are several ranks."""
    if tp_size > 1 and (across := mixer.options_across_heads):
        named = ", ".join(f"{name} = {value}" for name, value in across.items())
        raise ConfigError(
            f"tensor_parallel_size = {tp_size}: the heads of {mixer.name} with {named} depend on each other; "
            "it can be 1"
        )


def shard_weight(
    name: str, tensor: Tensor, mixer: RecurrentMixer, local: RecurrentMixer, rank: int
) -> Tensor:
    """Return the part of a checkpoint's tensor that belongs to `rank`.

    Args:
        name: of the parameter inside the mixer, such as `q_proj.weight`.
        tensor: as stored in the checkpoint.
        mixer: the checkpoint's mixer (its tensors may be on the meta device).
        local: the mixer of one rank.
        rank: rank in the tensor-parallel group.

    Raises:
        CheckpointError: the tensor's shape differs from the config's.
    """
    full, part = mixer.state_dict()[name], local.state_dict()[name]
    if tensor.shape != full.shape:
        raise CheckpointError(
            f"layer {mixer.layer_idx}: {name} is {tuple(tensor.shape)}, the config says {tuple(full.shape)}"
        )
    for dimension, (full_size, size) in enumerate(zip(full.shape, part.shape, strict=True)):
        if full_size != size:
            return tensor.narrow(dimension, rank * size, size)
    # Partial outputs are summed over ranks, so only one rank may add the output bias.
    return torch.zeros_like(tensor) if name == "o_proj.bias" and rank else tensor


def load_sharded_weights(
    local: RecurrentMixer, mixer: RecurrentMixer, rank: int, tensors: Mapping[str, Tensor]
) -> None:
    """Load one rank's shards of a layer.

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
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(shard_weight(name, tensors[name], mixer, local, rank))
