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
    decay: str | None
    """Keyword that takes log_decay; None if the kernel has no decay."""


# Which kernel serves which transition: (decay, delta rule?).
KERNELS: dict[tuple[Transition, bool], Kernel] = {
    ("none", False): Kernel(name="chunk_simple_gla", module="fla.ops.simple_gla", decay=None),
    ("head", False): Kernel(name="chunk_simple_gla", module="fla.ops.simple_gla", decay="g_gamma"),
    ("scalar", False): Kernel(name="chunk_simple_gla", module="fla.ops.simple_gla", decay="g"),
    ("channel", False): Kernel(name="chunk_gla", module="fla.ops.gla", decay="g"),
    ("none", True): Kernel(name="chunk_delta_rule", module="fla.ops.delta_rule", decay=None),
    ("head", True): Kernel(name="chunk_gated_delta_rule", module="fla.ops.gated_delta_rule", decay="g"),
    ("scalar", True): Kernel(name="chunk_gated_delta_rule", module="fla.ops.gated_delta_rule", decay="g"),
    ("channel", True): Kernel(name="chunk_kda", module="fla.ops.kda", decay="g"),
}

FLOAT32_KERNELS: dict[tuple[Transition, bool], Kernel] = {("none", True): KERNELS["scalar", True]}
"""chunk_delta_rule refuses float32; the gated kernel with a log decay of zero is the same algebra."""

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


def kernel_for(transition: Transition, *, delta: bool, dtype: torch.dtype) -> Kernel:
    """The kernel for a transition with q, k and v in `dtype`."""
    if dtype == torch.float32:
        return FLOAT32_KERNELS.get((transition, delta), KERNELS[transition, delta])
    return KERNELS[transition, delta]


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
        ConfigError: q, k and v differ in dtype, or the keys are wider than the kernels allow.
    """
    if not q.dtype == k.dtype == v.dtype:
        raise ConfigError(f"fla kernels need one dtype; q is {q.dtype}, k is {k.dtype}, v is {v.dtype}")
    if k.shape[-1] > WIDEST_KEY:
        raise ConfigError(
            f"fla's {kernel.name} takes keys up to {WIDEST_KEY} wide, not {k.shape[-1]}; "
            "use a smaller feature map or set_backend('torch')"
        )
    arguments: dict[str, Tensor] = {}
    if log_decay is None and kernel.decay is not None:
        log_decay = torch.zeros(k.shape[:3], dtype=torch.float32, device=k.device)
    if log_decay is not None and kernel.decay is not None:
        if log_decay.dim() == 1 and kernel.decay == "g":
            log_decay = log_decay.expand(k.shape[:3]).contiguous()
        if kernel.decay == "g_gamma" and log_decay.requires_grad:
            raise ConfigError(
                f"fla's {kernel.name} gives a fixed decay per head no gradient; detach log_decay"
            )
        arguments[kernel.decay] = log_decay.float()
    if beta is not None:
        arguments["beta"] = beta.float()
    # A column of ones makes the width odd, which the kernels refuse; whole blocks of 16 load fastest.
    spare = -v.shape[-1] % 16
    o, state = _function(kernel)(
        q,
        k,
        functional.pad(v, [0, spare]) if spare else v,
        scale=scale,
        initial_state=None if initial_state is None else functional.pad(initial_state.float(), [0, spare]),
        output_final_state=True,
        cu_seqlens=cu_seqlens,
        **arguments,
    )
    width = v.shape[-1]
    return o[..., :width].to(v.dtype), state[..., :width].float()
