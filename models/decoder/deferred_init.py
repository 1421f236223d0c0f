"""Models whose large weights are drawn one at a time, with the values that they have if all are drawn.

A model of 8B parameters takes 32 GB in fp32, which a process that trains a part of it does not need. Here its
constructor runs as always, but what initializes a large tensor is recorded instead of being done; the state
of the random generator is recorded with it, and advanced as if the numbers had been drawn.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

LARGE = 1 << 16
"""Tensors of at least this many numbers get no memory."""

_READ_SHAPES = {
    torch.ops.aten.zeros_like.default,
    torch.ops.aten.ones_like.default,
    torch.ops.aten.new_empty.default,
}


@dataclass(slots=True)
class _Deferred:
    """A tensor that has not been written. `storage` is kept so that its address identifies it."""

    storage: Any
    numel: int
    dtype: torch.dtype
    operations: list[Callable[[Tensor], None]] = field(default_factory=list)
    """Operations in place on a view of a flat tensor [numel]."""

    def fill(self, flat: Tensor) -> Tensor:
        """Do the operations on `flat` [numel], and return it."""
        for operation in self.operations:
            operation(flat)
        return flat


class DeferredInit(TorchDispatchMode):
    """Within this context, large CPU tensors are allocated but not written until they are read, so that they
    take no memory.

    Args:
        draw: advance the generator as if all numbers were drawn. False: random numbers are not needed at all.
    """

    def __init__(self, *, draw: bool) -> None:
        super().__init__()
        self._draw = draw
        self._deferred: dict[int, _Deferred] = {}

    def find(self, tensor: Tensor) -> _Deferred | None:
        """The record of a tensor; None if it has been written."""
        return self._deferred.get(tensor.untyped_storage()._cdata)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        options = kwargs or {}
        if func is torch.ops.aten.empty.memory_format:
            made = func(*args, **options)
            if made.device.type == "cpu" and made.numel() >= LARGE:
                storage = made.untyped_storage()
                self._deferred[storage._cdata] = _Deferred(storage, made.numel(), made.dtype)
            return made
        tensors = [leaf for leaf in tree_leaves((args, options)) if isinstance(leaf, Tensor)]
        unwritten = [tensor for tensor in tensors if self.find(tensor) is not None]
        if not unwritten or func.is_view or func in _READ_SHAPES:
            return func(*args, **options)
        if func._schema.is_mutable and len(unwritten) == 1 and unwritten[0] is args[0]:
            self._record(func, args[0], args[1:], options)
            return args[0]
        for tensor in unwritten:
            self._write(tensor)
        return func(*args, **options)

    def _record(self, func: Any, target: Tensor, arguments: tuple[Any, ...], options: dict[str, Any]) -> None:
        is_random = torch.Tag.nondeterministic_seeded in func.tags
        state = torch.get_rng_state() if is_random else None
        size, stride, offset = target.shape, target.stride(), int(target.storage_offset())

        def operation(flat: Tensor) -> None:
            with torch.random.fork_rng(devices=[], enabled=is_random):
                if state is not None:
                    torch.set_rng_state(state)
                func(flat.as_strided(size, stride, offset), *arguments, **options)

        deferred = self.find(target)
        assert deferred is not None
        deferred.operations.append(operation)
        if is_random and self._draw:
            func(torch.empty_strided(size, stride, dtype=target.dtype), *arguments, **options)

    def value(self, tensor: Tensor) -> Tensor:
        """The tensor, initialized: a new one in memory of its own, or the tensor itself if it is small."""
        deferred = self.find(tensor)
        if deferred is None:
            return tensor.detach()
        written = deferred.fill(torch.empty(deferred.numel, dtype=deferred.dtype))
        return written.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())

    def _write(self, tensor: Tensor) -> None:
        """Initialize a tensor that is read, as a few are: factors of products, and norms."""
        deferred = self._deferred.pop(tensor.untyped_storage()._cdata, None)
        if deferred is not None:
            deferred.fill(
                torch.empty(0, dtype=deferred.dtype).set_(deferred.storage, 0, (deferred.numel,), (1,))
            )


class DrawnWeights:
    """A model without weights, on the meta device, and the initial values of each of its weights.

    Args:
        make: makes the model on the CPU.
        seed: of the generator; the global one is not affected. None: the weights are not needed.
    """

    def __init__(self, make: Callable[[], Any], *, seed: int | None) -> None:
        self._init = DeferredInit(draw=seed is not None)
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            if seed is not None:
                torch.manual_seed(seed)
            with self._init:
                self.model = make()
        self._made = dict(self.model.named_parameters())
        replace_parameters(
            self.model,
            {
                parameter: nn.Parameter(
                    torch.empty_like(parameter, device="meta"), requires_grad=parameter.requires_grad
                )
                for parameter in self._made.values()
            },
        )

    def __getitem__(self, name: str) -> Tensor:
        """Initial value of a parameter."""
        return self._init.value(self._made[name])

    def rows(self, name: str, start: int, stop: int) -> Tensor:
        """Rows of the initial value of a parameter."""
        return self[name][start:stop]


def replace_parameters(model: nn.Module, new: dict[nn.Parameter, nn.Parameter]) -> None:
    """Replace parameters wherever modules hold them, so that tied ones stay tied."""
    for module in model.modules():
        for name, parameter in module._parameters.items():
            if parameter is not None and parameter in new:
                module._parameters[name] = new[parameter]
