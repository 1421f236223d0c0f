"""The recurrence on flash-linear-attention's Triton kernels (CUDA only, imported only when it runs).

Importing fla on a machine without CUDA makes transformers' own linear-attention models call kernels that
cannot run there, so nothing here is imported before a CUDA tensor asks for it.
"""

import functools
import importlib
import importlib.metadata
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from evalsuite.foundation import ConfigError
from evalsuite.models.recurrence.shapes import Transition


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """One function of fla and how the decay is handed to it."""

    name: str
    module: str
    keyword: str = ""
    """Keyword that takes log_decay; empty if the kernel has no decay."""
    form: Transition = "none"
    """The decay that the keyword takes; a coarser one is repeated, which is the same algebra."""


LINEAR = Kernel(name="chunk_simple_gla", module="fla.ops.simple_gla")
RETENTION = Kernel(name="chunk_simple_gla", module="fla.ops.simple_gla", keyword="g_gamma", form="head")
SIMPLE_GLA = Kernel(name="chunk_simple_gla", module="fla.ops.simple_gla", keyword="g", form="scalar")
GLA = Kernel(name="chunk_gla", module="fla.ops.gla", keyword="g", form="channel")
DELTA = Kernel(name="chunk_delta_rule", module="fla.ops.delta_rule")
GATED_DELTA = Kernel(
    name="chunk_gated_delta_rule", module="fla.ops.gated_delta_rule", keyword="g", form="scalar"
)
KDA = Kernel(name="chunk_kda", module="fla.ops.kda", keyword="g", form="channel")

# Which kernel serves which transition: (decay, delta rule?).
KERNELS: dict[tuple[Transition, bool], Kernel] = {
    ("none", False): LINEAR,
    ("head", False): RETENTION,
    ("scalar", False): SIMPLE_GLA,
    ("channel", False): GLA,
    ("none", True): DELTA,
    ("head", True): GATED_DELTA,
    ("scalar", True): GATED_DELTA,
    ("channel", True): KDA,
}

BY_CHANNEL: dict[Kernel, Kernel] = {SIMPLE_GLA: GLA, GATED_DELTA: KDA, DELTA: KDA}
"""What computes the same with a decay per channel, and stands in where a kernel is `unfit`."""

DTYPES = (torch.bfloat16, torch.float16, torch.float32)

WIDEST_KEY = 256
"""Key widths above this do not fit the kernels' shared memory."""


@functools.cache
def why_missing() -> str:
    """Why fla cannot run here; empty if it can."""
    if not torch.cuda.is_available():
        return "no CUDA device"
    for package in ("triton", "fla"):
        if importlib.util.find_spec(package) is None:
            return f"the package {package} is not installed; pip install 'evalsuite[gpu]'"
    return ""


@functools.cache
def version() -> str:
    """Versions of fla and triton, for logs and fingerprints."""
    # A slimmed or vendored package may lack metadata, so the modules are asked first.
    found = []
    for package, distribution in (("fla", "flash-linear-attention"), ("triton", "triton")):
        number = getattr(importlib.import_module(package), "__version__", None)
        found.append(f"{distribution} {number or importlib.metadata.version(distribution)}")
    return ", ".join(found)


@functools.cache
def refuses_scalar_gradients() -> bool:
    """Whether triton is 3.4 to 3.7.0 on Hopper: there fla's kernels with a decay per head and token raise an
    error instead of computing wrong gradients (flash-linear-attention #640). Those with a decay per channel
    have gradient kernels of their own."""
    utils = importlib.import_module("fla.utils")
    return bool(utils.IS_NVIDIA_HOPPER and utils.TRITON_ABOVE_3_4_0 and not utils.TRITON_ABOVE_3_7_1)


def unfit(kernel: Kernel, transition: Transition, *, dtype: torch.dtype, width: int) -> bool:
    """Whether `kernel` cannot be trained with, or not to a relative error of 1e-2 in bfloat16."""
    if kernel in (SIMPLE_GLA, GATED_DELTA) and refuses_scalar_gradients():
        return True
    if dtype == torch.float32:
        # The first refuses float32; without TF32 the second had not compiled after four minutes.
        return kernel in (DELTA, GATED_DELTA)
    # Measured at keys of 128: its gradient of the log decay is off by 1.04e-2, by .40e-2 through KDA.
    return kernel == GATED_DELTA and transition == "scalar" and width > 64


def kernel_for(transition: Transition, *, delta: bool, dtype: torch.dtype, width: int) -> Kernel:
    """The kernel to train a transition with, q, k and v being in `dtype` and keys `width` wide."""
    kernel = KERNELS[transition, delta]
    return BY_CHANNEL[kernel] if unfit(kernel, transition, dtype=dtype, width=width) else kernel


@functools.cache
def _function(kernel: Kernel) -> Callable[..., tuple[Tensor, Tensor]]:
    module = importlib.import_module(kernel.module)
    function: Callable[..., tuple[Tensor, Tensor]] = getattr(module, kernel.name)
    return function


def run(
    kernel: Kernel,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    log_decay: Tensor | None,
    beta: Tensor | None,
    scale: float,
    initial_state: Tensor | None,
    cu_seqlens: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Call `kernel`; arguments and results as `evalsuite.models.recurrence.recurrence`.

    Raises:
        ConfigError: q, k and v differ in dtype or are of one that the kernels lack, the keys are too wide, or
            a decay per head wants a gradient.
    """
    if not q.dtype == k.dtype == v.dtype:
        raise ConfigError(f"fla kernels need one dtype; q is {q.dtype}, k is {k.dtype}, v is {v.dtype}")
    if q.dtype not in DTYPES:
        raise ConfigError(
            f"fla's {kernel.name} computes in bfloat16, float16 or float32, not {q.dtype}; "
            "use set_backend('torch')"
        )
    if k.shape[-1] > WIDEST_KEY:
        raise ConfigError(
            f"fla's {kernel.name} takes keys up to {WIDEST_KEY} wide, not {k.shape[-1]}; "
            "use a smaller feature map or set_backend('torch')"
        )
    arguments: dict[str, Tensor] = {}
    if kernel.keyword:
        if kernel.form == "head" and log_decay is not None and log_decay.requires_grad:
            raise ConfigError(
                f"fla's {kernel.name} gives a fixed decay per head no gradient; detach log_decay"
            )
        arguments[kernel.keyword] = _spread(log_decay, kernel.form, k)
    if beta is not None:
        arguments["beta"] = beta.float()
    # A column of ones makes the width odd, which the kernels refuse; whole blocks of 16 load fastest.
    spare = -v.shape[-1] % 16
    start = None if initial_state is None else initial_state.float()
    if spare:  # Padding by nothing would still copy.
        v, start = functional.pad(v, [0, spare]), None if start is None else functional.pad(start, [0, spare])
    o, state = _function(kernel)(
        q,
        k,
        v,
        scale=scale,
        initial_state=start,
        output_final_state=True,
        cu_seqlens=cu_seqlens,
        **arguments,
    )
    if spare:  # A slice of everything would still be copied in the backward pass.
        o, state = o[..., :-spare], state[..., :-spare]
    return o.to(v.dtype), state.float()


def _spread(log_decay: Tensor | None, form: Transition, k: Tensor) -> Tensor:
    """Repeat a decay to the shape that a kernel takes, in float32."""
    if log_decay is None:
        log_decay = torch.zeros((), dtype=torch.float32, device=k.device)
    shape = {"head": k.shape[2:3], "scalar": k.shape[:3], "channel": k.shape}[form]
    if form == "channel" and log_decay.dim() in (1, 3):
        log_decay = log_decay.unsqueeze(-1)
    return log_decay.float().expand(shape).contiguous()
