"""Building blocks of mixers: norm, projections, rotary embedding and elementwise functions.

Triton and fla kernels are imported inside the functions that use them, so that this module needs neither.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import initialization as init

from evalsuite.foundation import ConfigError
from evalsuite.models.ops import reference
from evalsuite.models.ops.dispatch import inference_kernels, use_triton
from evalsuite.models.ops.reference import upcast_fp32


class RMSNorm(nn.Module):
    """x / rms(x) · weight over the last dimension, computed in float32 as in the teachers."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.empty(width))

    def forward(self, x: Tensor) -> Tensor:
        if x.requires_grad and use_triton(x):
            from evalsuite.models.ops.rms_norm import rms_norm

            return rms_norm(x, self.weight, self.eps)[0]
        return reference.rms_norm(x, self.weight, self.eps)[0]


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


class PerHeadLinear(nn.Linear):
    """Projection to one number per head.

    Tensor cores need rows of 8 half-precision numbers; a matrix product with 9 output columns falls back to
    pre-Hopper kernels. On CUDA the weight is therefore padded when there are enough tokens for the padding to
    pay off. Nothing is cached: writes through `Parameter.data` leave no trace that would invalidate a copy.
    """

    joined: Callable[[Tensor], Tensor] | None = None
    """Set by an engine that computes the output without bias together with those of other layers."""

    def forward(self, x: Tensor) -> Tensor:
        if not x.is_cuda or self.out_features % 16 == 0 or x.numel() < 1024 * self.in_features:
            return super().forward(x)
        return self.forward_padded(x)

    def forward_padded(self, x: Tensor) -> Tensor:
        """The same through a weight whose number of rows is a multiple of 16."""
        rows = self.out_features + -self.out_features % 16
        bias = None if self.bias is None else _pad_rows(self.bias, rows)
        return functional.linear(x, _pad_rows(self.weight, rows), bias)[..., : self.out_features]


def project_together(layers: Sequence[PerHeadLinear], x: Tensor) -> list[Tensor]:
    """Outputs of projections of x [..., D], without their biases, as views of one matrix product.

    For passes without gradients: the rows of all weights are joined and padded by one kernel. Not cached, as
    in `PerHeadLinear`.
    """
    joined = [layer.joined for layer in layers if layer.joined is not None]
    if len(joined) == len(layers):
        return [output(x) for output in joined]
    sizes = [layer.out_features for layer in layers]
    rows = sum(sizes) + -sum(sizes) % 16
    weight = torch.cat([layer.weight for layer in layers] * -(-rows // sum(sizes)))[:rows]
    return list(functional.linear(x, weight)[..., : sum(sizes)].split(sizes, -1))


def _pad_rows(x: Tensor, rows: int) -> Tensor:
    """x [N, …] with further rows, up to `rows`: zeros, or without gradients x again."""
    if torch.is_grad_enabled():
        return functional.pad(x, [0, 0] * (x.dim() - 1) + [0, rows - len(x)])
    # One kernel; zeros take another to fill them in.
    return torch.cat([x] * -(-rows // len(x)))[:rows]


def repeat_heads(x: Tensor, num_heads: int) -> Tensor:
    """[B, T, groups, D] → [B, T, num_heads, D]."""
    groups = x.shape[2]
    return x if groups == num_heads else x.repeat_interleave(num_heads // groups, 2)


def num_decay_groups(head_k_dim: int, group_size: int) -> int:
    """Decays per head if `group_size` adjacent channels share one; ConfigError if they do not divide."""
    if group_size < 1 or head_k_dim % group_size:
        raise ConfigError(f"decay_group_size = {group_size}: must divide the {head_k_dim} channels of a key")
    return head_k_dim // group_size


def expand_decay_groups(x: Tensor, num_heads: int, group_size: int) -> Tensor:
    """[B, T, H · groups] → [B, T, H, groups · group_size], each value repeated for its group."""
    x = x.unflatten(-1, (num_heads, -1))
    return x if group_size == 1 else x.repeat_interleave(group_size, -1)


class LowRankLinear(nn.Sequential):
    """Projection through a bottleneck of `rank` channels; parameter names as in fla."""

    def __init__(self, in_features: int, out_features: int, rank: int, bias: bool) -> None:
        super().__init__(nn.Linear(in_features, rank, bias=False), nn.Linear(rank, out_features, bias=bias))


def make_projection(in_features: int, out_features: int, rank: int, bias: bool = True) -> nn.Module:
    """Linear layer: full rank if `rank` is 0, else low rank."""
    if rank:
        return LowRankLinear(in_features, out_features, rank, bias)
    return nn.Linear(in_features, out_features, bias=bias)


def output_layer(projection: nn.Module) -> nn.Linear:
    """The layer of a `make_projection` whose bias is that of the output."""
    last = projection[1] if isinstance(projection, LowRankLinear) else projection
    assert isinstance(last, nn.Linear)
    return last


def init_constant_(projection: nn.Module, value: float | Tensor) -> None:
    """Make the output of a `make_projection` layer constant: zero weight, bias set to `value`."""
    last = output_layer(projection)
    init.zeros_(last.weight)
    init.copy_(last.bias, torch.as_tensor(value, dtype=last.bias.dtype).expand(last.bias.shape))


def swiglu(gate: Tensor, x: Tensor) -> Tensor:
    """silu(gate) · x; one fused kernel on CUDA, with gradients for more than one token."""
    if gate.dtype == x.dtype and (kernels := inference_kernels(x, "decoder_layers")):
        out: Tensor = kernels.gated(gate, x)
        return out
    if x.shape[1] > 1 and gate.dtype == x.dtype and use_triton(x):
        from evalsuite.models.ops.swiglu import swiglu as fused_swiglu

        return fused_swiglu(gate, x)
    return reference.swiglu(gate, x)


def l2norm(x: Tensor) -> Tensor:
    """Scale the last dimension to length one; zero vectors stay zero."""
    if x.is_cuda and not torch.is_grad_enabled():
        # fla's kernel autotunes per number of tokens, which differs in every batch of an inference engine.
        width = x.shape[-1]
        if width <= 256 and (kernels := inference_kernels(x)):
            return kernels.head_norm(x, None, 1e-6 / width, width**-0.5)
        return functional.rms_norm(x, (width,), eps=1e-6 / width) * width**-0.5
    if x.shape[1] > 1 and use_triton(x):
        from fla.modules.norm.l2norm import l2norm as fla_l2norm

        fused: Tensor = fla_l2norm(x)
        return fused
    return x * torch.rsqrt(upcast_fp32(x).square().sum(-1, keepdim=True) + 1e-6).to(x.dtype)


def l2norm_together(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """`l2norm` of two tensors; in one launch where a kernel computes both."""
    width = x.shape[-1]
    if width <= 256 and y.shape[-1] == width and (kernels := inference_kernels(x)):
        first, second = kernels.head_norms([x, y], None, 1e-6 / width, width**-0.5)
        return first, second
    return l2norm(x), l2norm(y)


def apply_rotary_pos_emb(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary position embedding in Llama's half-split layout; x [B, T, H, D], cos and sin [B, T, D].

    Channels of x beyond those of cos are not rotated.
    """
    if x.shape[-1] > (width := cos.shape[-1]):
        return torch.cat([apply_rotary_pos_emb(x[..., :width], cos, sin), x[..., width:]], -1)
    if x.requires_grad and use_triton(x):
        from evalsuite.models.ops.rotary import rotary

        return rotary(x, cos, sin)
    if kernels := inference_kernels(x):
        return kernels.rotary(x, cos, sin)
    return reference.rotary(x, cos, sin)


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
    out: Tensor = _Divide.apply(values, divisor)
    return out
