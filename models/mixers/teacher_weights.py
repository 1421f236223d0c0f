"""Copies a teacher's projections into the mixer that replaces its attention."""

from typing import Any

import torch
from torch import Tensor, nn

from evalsuite.foundation import ConfigError
from evalsuite.models.inits import INITS


def copy_projections(mixer: Any, attention: nn.Module, init: str) -> None:
    """Copy the projections of `init` into a recurrent mixer; QK-norms are copied along with q and k.

    Raises:
        ConfigError: a projection of another shape; the message names an `init` or option that avoids it.
    """
    chosen, shape = INITS[init], mixer.attention_shape
    letters = chosen.letters
    for letter in letters:
        source, target = getattr(attention, f"{letter}_proj"), getattr(mixer, f"{letter}_proj", None)
        if target is None:
            continue
        for name in ("weight", "bias"):
            value, place = getattr(source, name), getattr(target, name)
            if value is None:
                continue
            if letter == "k" and not mixer.has_keys:
                # Logits of an input gate, which keys of a trained teacher, tens in magnitude, would saturate.
                length = source.weight.norm(dim=1).clamp_min(1e-6)
                value = value / (length.unsqueeze(1) if name == "weight" else length)
            if letter in "kv" and mixer.options.expand_kv and shape.num_kv_groups > 1:
                value = chosen.repeat_kv(value, shape.head_dim, shape.num_kv_groups)
            fitting = value if value.shape == place.shape else widen_heads(mixer, letter, value, place)
            if fitting is None:
                raise ConfigError(
                    f"layer {mixer.layer_idx}: the teacher's {letter}_proj.{name} is {tuple(value.shape)}, "
                    f"that of {mixer.name} {tuple(place.shape)}; choose an init that does not copy it "
                    f"({', '.join(INITS)}), or the teacher's widths (expand_k, expand_v, num_qk_heads)"
                )
            place.copy_(fitting)
    for letter in "qk":
        if letter in letters and hasattr(mixer, f"{letter}_norm"):
            gain = norm_gain(getattr(attention, f"{letter}_norm"))
            if letter == "k" and shape.qk_norm == "all_heads" and mixer.options.expand_kv:
                # Copies of heads leave the mean square over all heads as it is.
                gain = chosen.repeat_kv(gain, shape.head_dim, shape.num_kv_groups)
            getattr(mixer, f"{letter}_norm").weight.copy_(gain)


def widen_heads(mixer: Any, letter: str, value: Tensor, place: Tensor) -> Tensor | None:
    """The teacher's heads as the first channels of wider ones (`expand_k`, `expand_v` above 1).

    Further channels of values stay as drawn, and those of the output projection are zero, so that further
    values do not change the output at first. Further channels of queries and keys are scaled to the mean
    square of their head: a teacher's weights can be ten times those of a new layer, and channels drawn for
    that would vanish in the norm of their head.

    Args:
        value: weight or bias of the teacher's projection, with the mixer's number of heads.
        place: the mixer's own, as drawn.

    Returns:
        The wider one; None if the mixer's heads are not the teacher's with further channels.
    """
    width, dim = mixer.head_v_dim if letter in "vo" else mixer.head_k_dim, int(letter == "o")
    head_dim = mixer.attention_shape.head_dim
    heads = value.shape[dim] // head_dim
    if mixer.head_dim != head_dim or width <= head_dim or place.shape[dim] != heads * width:
        return None
    wide = torch.zeros_like(place) if letter == "o" else place.clone()
    parts = wide.unflatten(dim, (heads, width))
    own, further = parts.split([head_dim, width - head_dim], dim + 1)
    own.copy_(value.unflatten(dim, (heads, head_dim)))
    if letter in "qk" and value.ndim == 2:
        squares = [part.square().mean((1, 2), keepdim=True) for part in (own, further)]
        further.mul_((squares[0] / squares[1]).sqrt())
    return wide


def norm_gain(norm: Any) -> Tensor:
    """Factor of each channel of an RMS norm; the weight is the factor or, as in Gemma, the factor − 1."""
    weight: Tensor = norm.weight
    # The root mean square of ones is one, so that the output is the factor itself.
    found = norm(torch.ones_like(weight))
    return weight if torch.allclose(found, weight, rtol=1e-2, atol=1e-2) else 1 + weight
