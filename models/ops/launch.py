"""Kernels that are launched without Triton's bookkeeping, which is half of a launch's time on the host.

At each launch Triton binds the arguments by name, specializes on them, writes the options as text, looks up
the compiled kernel by all of that, and calls hooks. Here the compiled kernel is looked up by a tuple.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import triton
from torch import Tensor
from triton import knobs
from triton.compiler import CompiledKernel
from triton.runtime.driver import driver
from triton.runtime.jit import JITFunction

KNOWN_VERSIONS = ("3.6.", "3.7.", "3.8.")
"""Releases of Triton whose launches do what `Launcher` relies on."""


def keep_compiled(function: Any) -> Any:
    """Decorator above `triton.jit`; the kernel is launched as before, by `kernel[grid](…)`, by a `Launcher`.

    Returns the function itself under Triton's interpreter, in other releases of Triton, and if a parameter
    that is not a constant follows one that is.
    """
    if not isinstance(function, JITFunction) or not triton.__version__.startswith(KNOWN_VERSIONS):
        return function
    constants = [each.is_constexpr for each in function.params]
    return Launcher(function) if constants == sorted(constants) else function


class Launcher:
    """Launches a kernel directly once Triton has compiled and launched it for arguments of the same form.

    Triton launches it as usual if launches have hooks or there is a debug mode, if it reads global variables
    (their values are checked at each launch), if the grid is not a tuple, if constants are not all passed by
    keyword, or if other arguments are.

    Args:
        fn: the kernel.
    """

    def __init__(self, fn: Any) -> None:
        self.fn = fn
        self._constants = [each.name for each in fn.params if each.is_constexpr]
        self._num_arguments = len(fn.params) - len(self._constants)
        self._kept: dict[tuple[Any, ...], tuple[Any, ...]] = {}

    def __getitem__(self, grid: Any) -> Callable[..., Any]:
        return partial(self._launch, grid) if isinstance(grid, tuple) else self.fn[grid]

    def _launch(self, grid: tuple[int, ...], *args: Any, **constants: Any) -> None:
        form = None if self.fn.pre_run_hooks or _hooked() else form_of(args)
        if form is None:
            self.fn[grid](*args, **constants)
            return
        device = driver.active.get_current_device()
        # Constants that are equal, as 1 and True, share a compiled kernel, as they do in Triton.
        key = device, form, tuple(constants), tuple(constants.values())
        if kept := self._kept.get(key):
            run, function, metadata, values = kept
            x, y, z = (*grid, 1, 1)[:3]
            stream = driver.active.get_current_stream(device)
            run(x, y, z, stream, function, metadata, None, None, None, *args, *values)
            return
        kernel = self.fn[grid](*args, **constants)
        if self._can_keep(kernel, args, constants):
            values = tuple(constants[name] for name in self._constants)
            self._kept[key] = kernel.run, kernel.function, kernel.packed_metadata, values

    def _can_keep(self, kernel: Any, args: tuple[Any, ...], constants: dict[str, Any]) -> bool:
        """Whether launches of this form can be direct; not if Triton compiles the kernel later or never."""
        return (
            isinstance(kernel, CompiledKernel)
            # Kernels for AMD are also specialized on the sizes of tensors.
            and kernel.metadata.target.backend == "cuda"
            and not self.fn.used_global_vals
            and len(args) == self._num_arguments
            and all(name in constants for name in self._constants)
        )


def form_of(args: tuple[Any, ...]) -> tuple[Any, ...] | None:
    """What Triton may compile a kernel for: arguments of one form never need different kernels.

    Finer than needed where a parameter is not specialized on, which costs only a few more forms.

    Args:
        args: tensors, integers, floats, bools and None.

    Returns:
        Dtype of each tensor and whether it is aligned to 16 bytes; type of each number, and of an integer its
        range, whether 16 divides it, and whether it is 1. None if there is another argument.
    """
    form: list[Any] = []
    for arg in args:
        kind = type(arg)
        if isinstance(arg, Tensor):
            form.append(arg.dtype)
            if arg.data_ptr() % 16:
                form.append("unaligned")
        elif kind is int:
            if arg == 1:
                form.append("1")
            elif -(2**31) <= arg < 2**31:
                form.append("i32 / 16" if arg % 16 == 0 else "i32")
            else:
                form.append(("i64" if arg < 2**63 else "u64", arg % 16 == 0))
        elif kind is float or kind is bool or arg is None:
            form.append(kind)
        else:
            return None
    return tuple(form)


def _hooked() -> bool:
    """Whether something observes or changes launches: hooks, as a profiler's, instrumentation, debug mode.

    Not `jit_cache_hook`, which is called before a compilation: what is kept is compiled.
    """
    runtime = knobs.runtime
    return bool(
        runtime.debug
        or knobs.compilation.instrumentation_mode
        or runtime.add_stages_inspection_hook is not None
        or _is_set(runtime.launch_enter_hook)
        or _is_set(runtime.launch_exit_hook)
    )


def _is_set(hook: Any) -> bool:
    """Whether a hook is called: Triton's own is a chain, without calls if nobody adds any."""
    return hook is not None and (type(hook) is not knobs.HookChain or bool(hook.calls))
