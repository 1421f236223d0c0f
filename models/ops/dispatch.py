"""Which implementation of an operation runs: Triton kernels (fla's and ours) or plain torch.

The policy belongs to who runs the forward passes: the trainer enters that of its recipe (`Recipe.kernels`),
and others use `kernel_policy`; nothing sets it for the whole process.
"""

import importlib
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from evalsuite.foundation import ConfigError, MissingDependencyError

KernelPolicy = Literal["auto", "torch", "triton"]
"""`auto`: Triton for CUDA tensors where it is installed; `triton`: an error where it cannot run."""

_log = logging.getLogger("evalsuite")
_policy: ContextVar[KernelPolicy] = ContextVar("kernel_policy", default="auto")
_messages: set[str] = set()


@contextmanager
def kernel_policy(name: KernelPolicy) -> Iterator[None]:
    """Apply a policy to the forward passes within this context.

    Raises:
        ConfigError: unknown name.
        MissingDependencyError: `triton` where it cannot run.
    """
    if name not in get_args(KernelPolicy):
        raise ConfigError(f"kernels: '{name}' is unknown; known: {', '.join(get_args(KernelPolicy))}")
    from evalsuite.models.ops.recurrence import fla_backend

    if name == "triton" and (reason := fla_backend.unavailable_reason()):
        raise MissingDependencyError(f"kernels: triton: {reason}")
    token = _policy.set(name)
    try:
        yield
    finally:
        _policy.reset(token)


def use_triton(x: Tensor) -> bool:
    """Return whether operations on `x` run on Triton kernels; logs the choice once."""
    from evalsuite.models.ops import tuning
    from evalsuite.models.ops.recurrence import fla_backend

    policy = _policy.get()
    if policy == "torch":
        return False
    if x.device.type != "cuda":
        if policy == "triton":
            raise MissingDependencyError(f"kernels: triton needs CUDA tensors, not {x.device}")
        return False
    if policy == "auto":
        if x.dtype == torch.float64:
            warn_once("kernels: torch for float64, which Triton kernels do not support")
            return False
        if reason := fla_backend.unavailable_reason():
            warn_once(f"kernels: torch on {x.device.type} ({reason}); training is several times slower")
            return False
    if tuning.active() is None:
        warn_once(f"kernels: triton ({fla_backend.version()})")
        tuning.install()
    return True


def inference_kernels(x: Tensor, module: str = "recurrent_layers", *form: Any) -> Any:
    """Return a module of `ops.inference` if its kernels compute operations on `x` (in this form, where it
    has several): without gradients, where they prove right. None otherwise; the modules need Triton."""
    if torch.is_grad_enabled() or not use_triton(x):
        return None
    kernels = importlib.import_module(f"evalsuite.models.ops.inference.{module}")
    return kernels if kernels.applies(x, *form) else None


def backend_messages() -> list[str]:
    """Messages logged so far about the choice of kernels, for run folders and reports."""
    return sorted(_messages)


def warn_once(text: str) -> None:
    """Log a warning, once per process."""
    if text not in _messages:
        _messages.add(text)
        _log.warning(text)
