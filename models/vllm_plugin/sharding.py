"""Tensor parallelism by heads: every rank runs a mixer with its share of the heads.

A mixer made for fewer heads has the same parameters, each smaller along the one dimension that counts heads.
So a parameter's share needs no table: it is cut where the two shapes differ.
"""

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from evalsuite.foundation import CheckpointError, ConfigError
from evalsuite.models.mixers import Geometry, Mixer


def local_mixer(whole: Mixer, ranks: int) -> Mixer:
    """The mixer of one rank, its parameters not yet loaded.

    Raises:
        ConfigError: the heads do not divide among the ranks.
    """
    check_heads(whole.name, whole.geometry, whole.kv_heads, ranks)
    # With a key head per query head the teacher's groups play no part in a forward pass.
    share = replace(
        whole.geometry,
        heads=whole.heads // ranks,
        kv_heads=max(1, whole.kv_heads // ranks) if whole.kv_heads != whole.heads else whole.heads // ranks,
    )
    return type(whole)(share, whole.options, whole.layer_idx)


def check_heads(mixer: str, geometry: Geometry, kv_heads: int, ranks: int) -> None:
    """Raise ConfigError if a recurrent layer's heads do not divide among `ranks`."""
    for what, heads in (("heads", geometry.heads), ("key and value heads", kv_heads)):
        if heads % ranks:
            divisors = [n for n in range(1, geometry.heads + 1) if geometry.heads % n == kv_heads % n == 0]
            raise ConfigError(
                f"tensor_parallel_size = {ranks}: {mixer} has {heads} {what}, which do not divide; "
                f"it can be {', '.join(map(str, divisors))}"
            )


def share_of(name: str, tensor: Tensor, whole: Mixer, local: Mixer, rank: int) -> Tensor:
    """The part of a checkpoint's tensor that belongs to `rank`.

    Args:
        name: of the parameter inside the mixer, such as `q_proj.weight`.
        tensor: as stored.
        whole: the mixer of the checkpoint (its tensors may be on the meta device); local: that of a rank.

    Raises:
        CheckpointError: the tensor has another shape than the config says.
    """
    wanted, mine = whole.state_dict()[name], local.state_dict()[name]
    if tensor.shape != wanted.shape:
        raise CheckpointError(
            f"layer {whole.layer_idx}: {name} is {tuple(tensor.shape)}, the config says {tuple(wanted.shape)}"
        )
    if name == "conv.weight":
        # Channels of queries, keys and values lie side by side, and each of the three is cut.
        parts = tensor.split(whole.channels)
        return torch.cat(
            [part[rank * size : (rank + 1) * size] for part, size in zip(parts, local.channels, strict=True)]
        )
    for dimension, (full, size) in enumerate(zip(wanted.shape, mine.shape, strict=True)):
        if full != size:
            return tensor.narrow(dimension, rank * size, size)
    # Partial outputs are added up over ranks; a bias that all of them had would be added as often.
    return torch.zeros_like(tensor) if name == "o_proj.bias" and rank else tensor


def load_share(local: Mixer, whole: Mixer, rank: int, tensors: Mapping[str, Tensor]) -> None:
    """Load one rank's share of a layer.

    Raises:
        CheckpointError: tensors are missing, unknown, or of another shape.
    """
    wanted = local.state_dict()
    missing, unknown = sorted(wanted.keys() - tensors.keys()), sorted(tensors.keys() - wanted.keys())
    if missing or unknown:
        raise CheckpointError(
            f"layer {whole.layer_idx}, {whole.name}: missing {missing}, unknown {unknown}; the weights do "
            "not belong to this config"
        )
    with torch.no_grad():
        for name, place in wanted.items():
            place.copy_(share_of(name, tensors[name], whole, local, rank))
