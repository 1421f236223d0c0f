"""The recurrence on flash-linear-attention's Triton kernels (CUDA only, imported lazily).

Importing fla on a machine without CUDA makes transformers' own linear-attention models call kernels that
cannot run there, so fla is imported only for CUDA tensors.

Training uses the chunked kernels. Inference sees a new shape in every batch, and fla autotunes some kernels
per number of rows, which takes seconds; rows are therefore passed as sequences of one packed row
(`run_rows`). Up to `MAX_RECURRENT_LENGTH` tokens the token-by-token kernels are as fast as the chunked ones,
need no autotuning and compute in full float32. Our `decode` takes their place where it proves right.
"""

import functools
import importlib
import os
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from evalsuite.foundation import ConfigError
from evalsuite.models.ops.recurrence.inputs import DecayShape, RecurrenceInputs


@dataclass(frozen=True, slots=True)
class Kernel:
    """A function of fla and the form in which it takes the decay."""

    name: str
    module: str
    keyword: str = ""
    """Keyword of the log decay; empty if the kernel has no decay."""
    decay_shape: DecayShape = "none"
    """Decay shape that the keyword takes; a coarser decay is broadcast, which is the same algebra."""


LINEAR = Kernel("chunk_simple_gla", "fla.ops.simple_gla")
RETENTION = Kernel("chunk_simple_gla", "fla.ops.simple_gla", "g_gamma", "head")
SIMPLE_GLA = Kernel("chunk_simple_gla", "fla.ops.simple_gla", "g", "scalar")
GLA = Kernel("chunk_gla", "fla.ops.gla", "g", "channel")
DELTA = Kernel("chunk_delta_rule", "fla.ops.delta_rule")
GATED_DELTA = Kernel("chunk_gated_delta_rule", "fla.ops.gated_delta_rule", "g", "scalar")
KDA = Kernel("chunk_kda", "fla.ops.kda", "g", "channel")
DPLR = Kernel("chunk_dplr_delta_rule", "fla.ops.generalized_delta_rule", "gk", "channel")
"""S_t = (Diag(e^gk) + b aᵀ) S_{t-1} + k vᵀ: its a is minus ours, its b what is removed along."""
DPLR_MIN_LOG_DECAY = -5.4
"""Least log decay that `DPLR` gets. For pairs of tokens in the wrong order it multiplies e^(the sum of up to
16 of them, negated) times products of keys, of at most 1, by zero, which is no number from e^88 on. A state
that decays more keeps 0.5 % of itself instead of less, about the rounding of bfloat16; float32 is for the
torch backend."""

# (decay shape, delta rule) → kernel.
KERNELS: dict[tuple[DecayShape, bool], Kernel] = {
    ("none", False): LINEAR,
    ("head", False): RETENTION,
    ("scalar", False): SIMPLE_GLA,
    ("channel", False): GLA,
    ("none", True): DELTA,
    ("head", True): GATED_DELTA,
    ("scalar", True): GATED_DELTA,
    ("channel", True): KDA,
}

PER_CHANNEL_FALLBACK: dict[Kernel, Kernel] = {SIMPLE_GLA: GLA, GATED_DELTA: KDA, DELTA: KDA}
"""Kernels with a decay per channel that replace those without a usable backward pass."""

MAX_RECURRENT_LENGTH = 128
"""Largest length that the token-by-token kernels process."""

_SIMPLE = "fused_recurrent_simple_gla", "fla.ops.simple_gla"
_DELTA = "fused_recurrent_gated_delta_rule", "fla.ops.gated_delta_rule"

RECURRENT_KERNELS: dict[tuple[DecayShape, bool], Kernel] = {
    ("none", False): Kernel(*_SIMPLE),
    ("head", False): Kernel(*_SIMPLE, "g_gamma", "head"),
    ("scalar", False): Kernel(*_SIMPLE, "g", "scalar"),
    ("channel", False): Kernel("fused_recurrent_gla", "fla.ops.gla", "gk", "channel"),
    ("none", True): Kernel(*_DELTA),
    ("head", True): Kernel(*_DELTA, "g", "scalar"),
    ("scalar", True): Kernel(*_DELTA, "g", "scalar"),
    ("channel", True): Kernel(*_DELTA, "gk", "channel"),
}

DTYPES = (torch.bfloat16, torch.float16, torch.float32)

MAX_KEY_DIM = 256
"""Largest key width; wider keys do not fit the kernels' shared memory."""

MIN_WIDTH = 64
"""Smallest width of keys and values in the backward pass of the chunked kernels: with narrower bfloat16 ones
`chunk_bwd_kernel_dqkwg` of fla 0.6 reads outside its tensors at some widths (H100, triton 3.7.1)."""


@functools.cache
def scalar_decay_backward_broken() -> bool:
    """Return whether this is Hopper with triton 3.4 to 3.7.0, where fla's kernels with a decay per head and
    token raise an error in the backward pass, because their gradients would be wrong
    (flash-linear-attention #640). Kernels with a decay per channel are not affected."""
    utils = importlib.import_module("fla.utils")
    return bool(utils.IS_NVIDIA_HOPPER and utils.TRITON_ABOVE_3_4_0 and not utils.TRITON_ABOVE_3_7_1)


def multiplies_in_tf32() -> bool:
    """Return whether kernels that Triton compiles from now on multiply float32 in TF32, its default."""
    return os.environ.get("TRITON_F32_DEFAULT") in (None, "", "tf32")


def kernel_for(decay_shape: DecayShape, *, delta: bool, dtype: torch.dtype) -> Kernel:
    """Return the kernel for training, with q, k and v in `dtype`."""
    kernel = KERNELS[decay_shape, delta]
    broken = kernel in (SIMPLE_GLA, GATED_DELTA) and scalar_decay_backward_broken()
    # DELTA rejects float32; GATED_DELTA without TF32 did not compile within four minutes.
    if broken or (dtype == torch.float32 and kernel in (DELTA, GATED_DELTA)):
        return PER_CHANNEL_FALLBACK[kernel]
    return kernel


def inference_kernel_for(decay_shape: DecayShape, *, delta: bool, dtype: torch.dtype, length: int) -> Kernel:
    """Return the kernel without gradients, for rows of `length` tokens with q, k and v in `dtype`."""
    if length <= MAX_RECURRENT_LENGTH:
        return RECURRENT_KERNELS[decay_shape, delta]
    # The fallbacks of training concern gradients, except that DELTA rejects float32 altogether; GATED_DELTA
    # with a log decay of zero is the same algebra.
    kernel = KERNELS[decay_shape, delta]
    return GATED_DELTA if dtype == torch.float32 and kernel == DELTA else kernel


@functools.cache
def _function(kernel: Kernel) -> Callable[..., tuple[Tensor, Tensor]]:
    return getattr(importlib.import_module(kernel.module), kernel.name)


def run(kernel: Kernel, inputs: RecurrenceInputs) -> tuple[Tensor, Tensor]:
    """Call `kernel`.

    Raises:
        ConfigError: q, k and v differ in dtype or have an unsupported one, the keys are too wide, or a fixed
            decay per head requires a gradient.
    """
    q, k, v, log_decay = inputs.q, inputs.k, inputs.v, inputs.log_decay
    if torch.is_autocast_enabled(v.device.type):
        # It runs the softmax and exp of feature maps in float32.
        q, k = q.to(v.dtype), k.to(v.dtype)
    if not q.dtype == k.dtype == v.dtype:
        raise ConfigError(f"fla kernels need one dtype; q is {q.dtype}, k is {k.dtype}, v is {v.dtype}")
    if q.dtype not in DTYPES:
        raise ConfigError(
            f"fla's {kernel.name} supports bfloat16, float16 and float32, not {q.dtype}; "
            "use kernel_policy('torch')"
        )
    if k.shape[-1] > MAX_KEY_DIM:
        raise ConfigError(
            f"fla's {kernel.name} takes keys up to {MAX_KEY_DIM} wide, not {k.shape[-1]}; "
            "use a smaller feature map or kernel_policy('torch')"
        )
    arguments: dict[str, Tensor] = {}
    if kernel.keyword:
        if kernel.decay_shape == "head" and log_decay is not None and log_decay.requires_grad:
            raise ConfigError(
                f"fla's {kernel.name} computes no gradient for a fixed decay per head; detach log_decay"
            )
        arguments[kernel.keyword] = broadcast_decay(log_decay, kernel.decay_shape, k)
    if inputs.beta is not None:
        arguments["beta"] = inputs.beta.float()
    if inputs.erase is not None:
        along = k if inputs.erase.along is None else inputs.erase.along.to(k.dtype)
        arguments |= {"a": -inputs.erase.read.to(k.dtype), "b": along}
        arguments[kernel.keyword] = arguments[kernel.keyword].clamp(min=DPLR_MIN_LOG_DECAY)
    start = None if inputs.initial_state is None else inputs.initial_state.float()
    width, least = k.shape[-1], 1
    if kernel.name.startswith("chunk_") and torch.is_grad_enabled():
        least = MIN_WIDTH
    if narrow := max(0, least - width):
        q, k = functional.pad(q, [0, narrow]), functional.pad(k, [0, narrow])
        start = None if start is None else functional.pad(start, [0, 0, 0, narrow])
        per_channel = {"a", "b"} | ({kernel.keyword} if kernel.decay_shape == "channel" else set())
        for name in per_channel & arguments.keys():
            arguments[name] = functional.pad(arguments[name], [0, narrow])
    # The normaliser's column of ones makes the width odd, which the kernels reject; multiples of 16 are best.
    padding = max(-v.shape[-1] % 16, least - v.shape[-1])
    if padding:  # Padding by zero columns would still copy.
        v = functional.pad(v, [0, padding])
        start = None if start is None else functional.pad(start, [0, padding])
    o, state = _function(kernel)(
        q=q,
        k=k,
        v=v,
        scale=inputs.scale,
        initial_state=start,
        output_final_state=True,
        cu_seqlens=inputs.cu_seqlens,
        **arguments,
    )
    if padding:  # A full slice would still be copied in the backward pass.
        o, state = o[..., :-padding], state[..., :-padding]
    if narrow:
        state = state[..., :width, :]
    return o.to(v.dtype), state.float()


def run_rows(kernel: Kernel, inputs: RecurrenceInputs) -> tuple[Tensor, Tensor]:
    """Call `kernel` without gradients: any number of rows, of any length."""
    rows, length = inputs.q.shape[:2]
    if rows == 1 or inputs.cu_seqlens is not None or length <= MAX_RECURRENT_LENGTH:
        return run(kernel, inputs)
    o, state = run(kernel, in_one_row(inputs))
    return o.unflatten(1, (rows, length)).squeeze(0), state


def in_one_row(inputs: RecurrenceInputs) -> RecurrenceInputs:
    """Rows as sequences of one packed row."""
    bounds = _row_cu_seqlens(*inputs.q.shape[:2], inputs.q.device)
    return inputs.with_tokens(lambda x: x.flatten(0, 1).unsqueeze(0), cu_seqlens=bounds)


@functools.lru_cache(maxsize=4)
def _row_cu_seqlens(rows: int, length: int, device: torch.device) -> Tensor:
    """Bounds of `rows` sequences of `length` tokens; cached, as fla caches derived tensors by identity."""
    return torch.arange(0, rows * length + 1, length, device=device)


def broadcast_decay(log_decay: Tensor | None, decay_shape: DecayShape, k: Tensor) -> Tensor:
    """Broadcast a decay to the shape that a kernel takes, in float32."""
    if log_decay is None:
        log_decay = torch.zeros((), dtype=torch.float32, device=k.device)
    shape = {"head": k.shape[2:3], "scalar": k.shape[:3], "channel": k.shape}[decay_shape]
    if decay_shape == "channel" and log_decay.dim() in (1, 3):
        log_decay = log_decay.unsqueeze(-1)
    return log_decay.float().expand(shape).contiguous()
