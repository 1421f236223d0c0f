"""Communication of processes that share sequences, each of which has one contiguous part, in order.

States travel from process to process, and their gradients back (LASP, arXiv 2404.02882). Keys and values are
gathered, and their gradients summed where they come from (Llama 3, arXiv 2407.21783, section 3.3.2). All
processes have to run the same layers in the same order; autograd then runs them backwards in the same order,
by the sequence numbers of its nodes.
"""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, distributed


@dataclass(frozen=True, slots=True, eq=False)
class SequenceParallel:
    """The place of this process among those that share sequences.

    Args:
        group: their process group.
        rank: number of this process' part of each sequence.
        size: parts of a sequence.
    """

    group: distributed.ProcessGroup
    rank: int
    size: int
    _sent: list[tuple[distributed.Work, Tensor]] = field(default_factory=list)

    @property
    def is_last(self) -> bool:
        """Whether no part comes after this one."""
        return self.rank == self.size - 1

    def sum(self, tensor: Tensor) -> Tensor:
        """The sum over the group; not differentiable."""
        total = tensor.detach().clone()
        distributed.all_reduce(total, group=self.group)
        return total

    def gather(self, x: Tensor) -> Tensor:
        """x of all processes, stacked in order: [size, …]; differentiable."""
        gathered: Tensor = _Gather.apply(x, self)
        return gathered

    def receive(self, count: int, like: Tensor) -> Tensor:
        """What the previous process hands over: [count], of the dtype and device of `like`; differentiable.

        The gradient is sent back, and awaited by the previous process, whenever gradients are enabled.
        """
        received: Tensor = _Receive.apply(_anchor(like), self, count)
        return received

    def hand_over(self, state: Tensor, output: Tensor) -> Tensor:
        """Send `state` [count] to the next process.

        Returns:
            The `output` of the same layer, in whose backward pass the gradient of `state` is awaited.
        """
        passed: Tensor = _HandOver.apply(output, state, _anchor(output), self)
        return passed

    def _send(self, x: Tensor, step: int) -> None:
        """Start to send; at most one message waits for its receiver, which may have an earlier layer."""
        while self._sent:
            self._sent.pop()[0].wait()
        work = distributed.isend(x, self._neighbour(step), self.group)
        assert work is not None
        self._sent.append((work, x))

    def _recv(self, x: Tensor, step: int) -> Tensor:
        distributed.recv(x, self._neighbour(step), self.group)
        return x

    def _neighbour(self, step: int) -> int:
        return distributed.get_global_rank(self.group, self.rank + step)


def _anchor(like: Tensor) -> Tensor:
    """An input that makes every process take part in the backward pass, whatever it trains."""
    return torch.empty(0, dtype=like.dtype, device=like.device, requires_grad=torch.is_grad_enabled())


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, parallel: SequenceParallel) -> Tensor:
        ctx.parallel = parallel
        gathered = x.new_empty(parallel.size, *x.shape)
        distributed.all_gather(list(gathered), x.contiguous(), parallel.group)
        return gathered

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        own = gradient.new_empty(gradient.shape[1:])
        distributed.reduce_scatter(own, list(gradient.contiguous()), group=ctx.parallel.group)
        return own, None


class _Receive(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, anchor: Tensor, parallel: SequenceParallel, count: int) -> Tensor:
        ctx.parallel = parallel
        return parallel._recv(anchor.new_empty(count), -1)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        ctx.parallel._send(gradient.contiguous(), -1)
        return None, None, None


class _HandOver(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, output: Tensor, state: Tensor, anchor: Tensor, parallel: SequenceParallel
    ) -> Tensor:
        ctx.parallel, ctx.shape, ctx.dtype = parallel, state.shape, state.dtype
        parallel._send(state.detach(), 1)
        return output.view_as(output)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        received = ctx.parallel._recv(gradient.new_empty(ctx.shape, dtype=ctx.dtype), 1)
        return gradient, received, None, None
