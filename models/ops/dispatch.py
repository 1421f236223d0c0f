"""Which implementation of an op runs: Triton kernels (fla's and ours) or plain torch.

An op is a function in plain torch, the reference, that `op` gives kernels. A call of it looks at the kernel
policy, at device and dtype of its first tensor, at whether gradients are enabled, at where the kernels apply,
and at their proof: a kernel for inference is used where it compiles and gives on samples what the reference
does. Nothing else in this package asks for a device.

The policy belongs to who runs the forward passes: the trainer enters that of its recipe (`Recipe.kernels`),
and others use `kernel_policy`; nothing sets it for the whole process.
"""

import functools
import importlib
import logging
from collections.abc import Callable, Hashable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, Generic, Literal, ParamSpec, TypeVar, get_args

import torch
from torch import Tensor

from evalsuite.foundation import ConfigError, MissingDependencyError
from evalsuite.models.ops import packages, tuning

KernelPolicy = Literal["auto", "torch", "triton"]
"""`auto`: Triton for CUDA tensors where it is installed; `triton`: an error where it cannot run."""

HALF = (torch.bfloat16, torch.float16)

P = ParamSpec("P")
R = TypeVar("R")
Draw = Callable[..., Tensor]
"""Draws normal numbers of a shape, in the dtype and on the device of a proof."""

_log = logging.getLogger("evalsuite")
_policy: ContextVar[KernelPolicy] = ContextVar("kernel_policy", default="auto")
_messages: set[str] = set()


@dataclass(frozen=True, kw_only=True)
class Kernel:
    """Triton kernels of an op: a function with its name and arguments, in a module that needs Triton."""

    module: str
    """Module in the op's package; imported when the kernel is first chosen."""
    dtypes: tuple[torch.dtype, ...] | None = None
    """Dtypes in which it applies; None: all but float64."""
    where: Callable[..., bool] | None = None
    """Whether it applies, given the op's arguments; None: always."""
    form: Callable[..., tuple[Hashable, ...]] | None = None
    """What it is compiled for besides device and dtype, given the op's arguments; each form has a proof."""
    samples: Callable[..., Iterable[tuple[Any, ...]]] | None = None
    """The op's arguments in each case of the proof, given a `Draw` and the form."""
    exact: bool = False
    """Whether it rounds as the reference does: the proof then demands equal results."""


class Op(Generic[P, R]):
    """An operation with several implementations; see `op`."""

    __name__: str

    def __init__(self, reference: Callable[P, R], training: Kernel | None, inference: Kernel | None) -> None:
        functools.update_wrapper(self, reference)
        self.reference: Callable[..., R] = reference
        self.training, self.inference = training, inference
        self._proofs: dict[tuple[Hashable, ...], bool] = {}
        self._modules: dict[str, Any] = {}

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self._choose(args, kwargs)(*args, **kwargs)

    def _choose(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Callable[..., R]:
        """The function that computes a call with these arguments.

        Short passes are bound by the host: this runs several times a layer.
        """
        x = args[0]
        if type(x) in (list, tuple):
            x = x[0]
        if not use_triton(x):
            return self.reference
        kernel = self.inference
        if (
            kernel is not None
            and not torch.is_grad_enabled()
            and (kernel.where is None or kernel.where(*args, **kwargs))
            and self.proven(x.device, x.dtype, *(kernel.form(*args, **kwargs) if kernel.form else ()))
        ):
            return self.load("inference")
        kernel = self.training
        if kernel is not None and (kernel.where is None or kernel.where(*args, **kwargs)):
            return self.load("training")
        return self.reference

    def applies(self, *args: Any, **kwargs: Any) -> bool:
        """Whether a kernel computes a call with these arguments; only those that decide are needed."""
        return self._choose(args, kwargs) is not self.reference

    def load(self, kind: Literal["training", "inference"]) -> Callable[..., R]:
        """The function of one of this op's kernels."""
        if (module := self._modules.get(kind)) is None:
            module = self._modules[kind] = importlib.import_module(
                f".{getattr(self, kind).module}", self.reference.__globals__["__package__"]
            )
        return getattr(module, self.__name__)

    def has_kernel(self, x: Tensor, *form: Hashable) -> bool:
        """Whether calls on tensors like `x`, in this form, run on the kernel for passes without gradients."""
        return not torch.is_grad_enabled() and use_triton(x) and self.proven(x.device, x.dtype, *form)

    def proven(self, device: torch.device, dtype: torch.dtype, *form: Hashable) -> bool:
        """Whether the kernel for inference proves right; logs why not. Computed once.

        While launches are recorded, and none is executed, it is taken to be right.
        """
        key = device, dtype, form
        if (found := self._proofs.get(key)) is None:
            kernel = self.inference
            if kernel is None or (kernel.dtypes is not None and dtype not in kernel.dtypes):
                found = False
            elif tuning.postpone((self, key), lambda: self.proven(device, dtype, *form)):
                return True
            else:
                found = self._prove(kernel, device, dtype, form)
            self._proofs[key] = found
        return found

    def _prove(
        self, kernel: Kernel, device: torch.device, dtype: torch.dtype, form: tuple[Hashable, ...]
    ) -> bool:
        try:
            with torch.inference_mode():
                off = max(self.deviations(device, dtype, *form))
        except Exception as error:  # What a compiler raises can be anything.
            warn_once(f"kernels: {self.__name__} in torch: {str(error).splitlines()[0]}")
            return False
        close = off == 0 if kernel.exact else off < (1e-4 if dtype == torch.float32 else 2e-2)
        if not close:
            warn_once(f"kernels: {self.__name__} in torch: the kernel is off by {off:.2g}")
        return close

    def deviations(self, device: torch.device, dtype: torch.dtype, *form: Hashable) -> list[float]:
        """Compare the kernel for inference with the reference.

        Returns:
            Of each output of each sample, the norm of the difference from the reference in float32 over that
            of the reference; for an exact kernel the largest difference from the reference in `dtype`.
        """
        kernel = self.inference
        assert kernel is not None
        assert kernel.samples is not None
        generator = torch.Generator().manual_seed(0)

        def draw(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=generator).to(device, dtype)

        found = []
        for arguments in kernel.samples(draw, *form):
            # Copied first: some ops write into their arguments.
            copies = _copied(arguments, None if kernel.exact else torch.float32)
            mine = self.load("inference")(*arguments)
            with kernel_policy("torch"):
                exact = self.reference(*copies)
            for pair in zip(_tensors(mine), _tensors(exact), strict=True):
                a, b = (each.float() for each in pair)
                found.append(float((a - b).abs().max() if kernel.exact else (a - b).norm() / b.norm()))
        # Comparisons with NaN are false.
        return [float("inf") if off != off else off for off in found]


def op(
    *, training: Kernel | None = None, inference: Kernel | None = None
) -> Callable[[Callable[P, R]], Op[P, R]]:
    """Decorator of an op's reference, in plain torch and differentiable anywhere: adds kernels to it.

    Args:
        training: kernels that are differentiable.
        inference: kernels for passes without gradients, which see another shape in every batch: none is
            autotuned or compiled for single sizes of a batch. They are used where they prove right, before
            those of training.
    """
    return lambda reference: Op(reference, training, inference)


@contextmanager
def kernel_policy(name: KernelPolicy) -> Iterator[None]:
    """Apply a policy to the forward passes within this context.

    Raises:
        ConfigError: unknown name.
        MissingDependencyError: `triton` where it cannot run.
    """
    if name not in get_args(KernelPolicy):
        raise ConfigError(f"kernels: '{name}' is unknown; known: {', '.join(get_args(KernelPolicy))}")
    if name == "triton" and (reason := packages.unavailable_reason()):
        raise MissingDependencyError(f"kernels: triton: {reason}")
    token = _policy.set(name)
    try:
        yield
    finally:
        _policy.reset(token)


def use_triton(x: Tensor) -> bool:
    """Return whether operations on `x` run on Triton kernels; logs the choice once."""
    policy = _policy.get()
    if x.is_cuda:
        return policy != "torch" and _runs_on_cuda(policy, x.dtype)
    if policy == "triton":
        raise MissingDependencyError(f"kernels: triton needs CUDA tensors, not {x.device}")
    return False


@functools.cache
def _runs_on_cuda(policy: KernelPolicy, dtype: torch.dtype) -> bool:
    """Whether Triton kernels compute CUDA tensors in a dtype under a policy other than `torch`."""
    if policy == "auto":
        if dtype == torch.float64:
            warn_once("kernels: torch for float64, which Triton kernels do not support")
            return False
        if reason := packages.unavailable_reason():
            warn_once(f"kernels: torch on cuda ({reason}); training is several times slower")
            return False
    if tuning.active() is None:
        warn_once(f"kernels: triton ({packages.version()})")
        tuning.install()
    return True


def kernel_versions(device: torch.device, dtype: torch.dtype = torch.float32) -> str:
    """Versions of fla and triton if their kernels compute tensors like these; empty if torch does."""
    return packages.version() if use_triton(torch.empty(0, dtype=dtype, device=device)) else ""


def backend_messages() -> list[str]:
    """Messages logged so far about the choice of kernels, for run folders and reports."""
    return sorted(_messages)


def warn_once(text: str) -> None:
    """Log a warning, once per process."""
    if text not in _messages:
        _messages.add(text)
        _log.warning(text)


def _copied(value: Any, dtype: torch.dtype | None) -> Any:
    """A copy of tensors, those of real numbers in a dtype if one is given."""
    if isinstance(value, Tensor):
        return value.to(dtype=dtype if value.is_floating_point() else None, copy=True)
    if is_dataclass(value) and not isinstance(value, type):
        return replace(
            value, **{each.name: _copied(getattr(value, each.name), dtype) for each in fields(value)}
        )
    return tuple(_copied(each, dtype) for each in value) if isinstance(value, list | tuple) else value


def _tensors(value: Any) -> Iterator[Tensor]:
    """The tensors of an op's result, in order."""
    if isinstance(value, Tensor):
        yield value
    else:
        for each in value:
            yield from _tensors(each)
