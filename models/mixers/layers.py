"""Building blocks of mixers: norms, projections and the normaliser."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import initialization as init

from evalsuite.foundation import ConfigError
from evalsuite.models.ops.numerics import upcast_fp32
from evalsuite.models.ops.rms_norm import Gain, qk_norm, rms_norm, sandwich_norm


class RMSNorm(nn.Module):
    """x / rms(x) · weight over the last dimension, computed in float32 as in the teachers."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.empty(width))

    def forward(self, x: Tensor) -> Tensor:
        return rms_norm(x, self.weight, self.eps)[0]


def norm_eps(norm: Any) -> Any:
    """Epsilon of an RMS norm of transformers' modules, by either of its names; None without one."""
    return getattr(norm, "variance_epsilon", getattr(norm, "eps", None))


def add_norm(norm: Any, x: Tensor, residual: Tensor | None, gain: Gain | None) -> tuple[Tensor, Tensor]:
    """The norm of x + residual, and the sum; without a norm the sum twice.

    Args:
        norm: an RMS norm of transformers' modules for the teacher.
        x: [B, T, D].
        residual: of the same shape; without it the sum is x.
        gain: how its weight multiplies; None: as the module does.
    """
    if norm is not None and gain is not None and _alike(x, norm.weight, residual):
        return rms_norm(x, norm.weight, norm_eps(norm), residual, gain)
    hidden = x if residual is None else residual + x
    return hidden if norm is None else norm(hidden), hidden


def add_normed(
    norm: Any, x: Tensor, residual: Tensor, following: Any, gain: Gain | None
) -> tuple[Tensor, Tensor]:
    """The norm `following` of residual + norm(x), and the sum; a norm that is None changes nothing.

    Else as `add_norm`.
    """
    if norm is None:
        return add_norm(following, x, residual, gain)
    weight, eps = None if following is None else following.weight, norm_eps(norm)
    one_eps = following is None or norm_eps(following) == eps
    if gain is not None and one_eps and _alike(x, residual, norm.weight, weight):
        return sandwich_norm(x, norm.weight, eps, residual, weight, gain)
    return add_norm(following, add_norm(norm, x, None, gain)[0], residual, gain)


def norm_queries_and_keys(
    q_norm: Any, q: Tensor, k_norm: Any, k: Tensor, gain: Gain | None
) -> tuple[Tensor, Tensor]:
    """Norms of queries [B, T, H, D] and keys [B, T, H / groups, D] of each head; `gain` as in `add_norm`."""
    eps = norm_eps(q_norm)
    if gain is not None and norm_eps(k_norm) == eps and _alike(q, k, q_norm.weight, k_norm.weight):
        return qk_norm(q, k, q_norm.weight, k_norm.weight, eps, gain)
    return add_norm(q_norm, q, None, gain)[0], add_norm(k_norm, k, None, gain)[0]


def _alike(x: Tensor, *others: Tensor | None) -> bool:
    """Whether one of our norms computes them: transformers' round float64 to float32."""
    return x.dtype != torch.float64 and all(each is None or each.dtype == x.dtype for each in others)


def rotary_angles(position_ids: Tensor, width: int, base: float, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """cos and sin [1 or B, T, width] of a plain rotary embedding in Llama's half-split layout.

    Args:
        position_ids: [1 or B, T].
        width: channels of a head, all of which are rotated.
        base: the pair i turns by base ** (−2 i / width) a position.
        dtype: of the result; the angles are computed in float32, as the teachers' are.
    """
    rates = base ** -(torch.arange(0, width, 2, device=position_ids.device).float() / width)
    half = position_ids.float().unsqueeze(-1) * rates
    angles = torch.cat([half, half], -1)
    return angles.cos().to(dtype), angles.sin().to(dtype)


class OutputNorm(nn.Module):
    """Norm of the mixed values [B, T, H, V], for the values of `MixerOptions.output_norm` but "rms"."""

    def __init__(self, kind: str, num_heads: int, head_v_dim: int, eps: float) -> None:
        super().__init__()
        self.kind, self.eps = kind, eps
        if kind != "group":
            self.weight = nn.Parameter(torch.empty(num_heads * head_v_dim))

    def forward(self, x: Tensor) -> Tensor:
        exact = upcast_fp32(x)
        if self.kind == "rms_all_heads":
            exact = exact * torch.rsqrt(exact.square().mean((-2, -1), keepdim=True) + self.eps)
        else:
            exact = functional.layer_norm(exact, exact.shape[-1:], eps=self.eps)
        if self.kind == "group":
            return exact.to(x.dtype)
        return self.weight.view(x.shape[-2:]).to(x.dtype) * exact.to(x.dtype)


class ShortConvolution(nn.Module):
    """Parameters of y_t = Σ_d w_d x_{t-d} per channel, optionally followed by SiLU.

    Initialised to the identity (all weight on the current token), so that the copied projection before it is
    not disturbed (arXiv 2603.26556, section 4.1). The convolutions of q, k and v, named as in fla, are
    computed together by `short_convolutions` and share one state.
    """

    def __init__(self, channels: int, kernel_size: int, silu: bool) -> None:
        super().__init__()
        self.channels, self.silu = channels, silu
        self.weight = nn.Parameter(torch.empty(channels, 1, kernel_size))

    def reset_parameters(self) -> None:
        """Set the identity."""
        identity = torch.zeros_like(self.weight)
        identity[..., -1] = 1.0
        init.copy_(self.weight, identity)


def repeat_heads(x: Tensor, num_heads: int) -> Tensor:
    """[B, T, groups, D] → [B, T, num_heads, D]."""
    groups = x.shape[2]
    return x if groups == num_heads else x.repeat_interleave(num_heads // groups, 2)


def pad_groups(x: Tensor, sizes: Sequence[int]) -> Tensor:
    """[..., sum of sizes, D] → [..., groups · largest size, D], zeros after the heads of smaller groups."""
    parts = x.split(list(sizes), -2)
    return torch.cat([functional.pad(part, [0, 0, 0, max(sizes) - part.shape[-2]]) for part in parts], -2)


def unpad_groups(x: Tensor, sizes: Sequence[int]) -> Tensor:
    """The heads of `pad_groups` without those that were added."""
    groups = x.unflatten(-2, (len(sizes), -1)).unbind(-3)
    return torch.cat([group[..., :size, :] for group, size in zip(groups, sizes, strict=True)], -2)


def num_decay_groups(head_k_dim: int, group_size: int) -> int:
    """Decays per head if `group_size` adjacent channels share one; ConfigError if they do not divide."""
    if group_size < 1 or head_k_dim % group_size:
        raise ConfigError(f"decay_group_size = {group_size}: must divide the {head_k_dim} channels of a key")
    return head_k_dim // group_size


def expand_decay_groups(x: Tensor, num_heads: int, group_size: int) -> Tensor:
    """[B, T, H · groups] → [B, T, H, groups · group_size], each value repeated for its group."""
    x = x.unflatten(-1, (num_heads, -1))
    return x if group_size == 1 else x.repeat_interleave(group_size, -1)


def make_projection(
    in_features: int, out_features: int, rank: int, bias: bool = True, activation: nn.Module | None = None
) -> nn.Module:
    """Linear layer: full rank if `rank` is 0, else through a bottleneck, with parameter names as in fla and
    an `activation` between its factors."""
    if rank:
        between = [] if activation is None else [activation]
        return nn.Sequential(
            nn.Linear(in_features, rank, bias=False), *between, nn.Linear(rank, out_features, bias=bias)
        )
    return nn.Linear(in_features, out_features, bias=bias)


def output_layer(projection: nn.Module) -> nn.Linear:
    """The layer of a `make_projection` whose bias is that of the output."""
    last = projection[-1] if isinstance(projection, nn.Sequential) else projection
    assert isinstance(last, nn.Linear)
    return last


def init_constant_(projection: nn.Module, value: float | Tensor) -> None:
    """Make the output of a `make_projection` layer constant: zero weight, bias set to `value`."""
    last = output_layer(projection)
    init.zeros_(last.weight)
    init.copy_(last.bias, torch.as_tensor(value, dtype=last.bias.dtype).expand(last.bias.shape))


class _Divide(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, divisor: Tensor) -> Tensor:
        out = values / divisor
        ctx.save_for_backward(divisor, out)
        return out

    @staticmethod
    def backward(ctx: Any, d_out: Tensor) -> Any:
        divisor, out = ctx.saved_tensors
        d_values = d_out / divisor
        return d_values, -(d_values * out).sum(-1, keepdim=True)


def divide_by_normalizer(values: Tensor, divisor: Tensor) -> Tensor:
    """values [..., V] / divisor [..., 1]; autograd's own backward needs three more passes over the values."""
    return _Divide.apply(values, divisor)
