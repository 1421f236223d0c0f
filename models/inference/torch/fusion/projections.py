"""Projections of one input as one matrix product, for inference on a GPU.

Small models are bound by the number of kernels, and most of a layer's products read the same input: q, k, v,
gate and the logits of decays; an MLP's gate and up projection.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional

from evalsuite.models.ops.gates import PerHeadLinear

MULTIPLE = 16
"""Tensor cores need a number of output channels that is a multiple of this."""


class JoinedProjections:
    """Groups of linear layers, each of which one matrix product computes.

    The weights of a group become views of one tensor, so that they take no further memory and writing into
    them still changes the layers.

    Args:
        groups: layers without bias that read the same input in each forward pass, in one dtype. The bias of
            a `PerHeadLinear` is left to who calls it (see `PerHeadLinear.joined`).
    """

    def __init__(self, groups: Sequence[Sequence[nn.Linear]]) -> None:
        self._groups = [_Group(layers) for layers in groups if len(layers) > 1]

    @contextmanager
    def enabled(self) -> Iterator[None]:
        """Use the joined products within this context; a group whose weights were replaced is left alone."""
        joined = [group for group in self._groups if group.intact]
        for group in joined:
            group.join()
        try:
            yield
        finally:
            for group in joined:
                group.part()


class _Group:
    def __init__(self, layers: Sequence[nn.Linear]) -> None:
        self._layers = layers
        self._sizes = [layer.out_features for layer in layers]
        weights = [layer.weight.data for layer in layers]
        rows = sum(self._sizes)
        padding = weights[0].new_zeros(-rows % MULTIPLE, weights[0].shape[1])
        self._weight = torch.cat([*weights, padding])
        self._input: Tensor | None = None
        self._outputs: dict[int, Tensor] = {}
        for layer, view in zip(layers, self._weight[:rows].split(self._sizes), strict=True):
            layer.weight.data = view
        self._places = [layer.weight.data_ptr() for layer in layers]

    @property
    def intact(self) -> bool:
        """Whether the layers' weights are still those that were joined."""
        return self._places == [layer.weight.data_ptr() for layer in self._layers]

    def join(self) -> None:
        for number, layer in enumerate(self._layers):
            name = "joined" if isinstance(layer, PerHeadLinear) else "forward"
            layer.__dict__[name] = partial(self._output, number)

    def part(self) -> None:
        for layer in self._layers:
            del layer.__dict__["joined" if isinstance(layer, PerHeadLinear) else "forward"]
        self._input, self._outputs = None, {}

    def _output(self, number: int, x: Tensor) -> Tensor:
        """Output of one layer; the product is computed for the first one that is called with an input."""
        if self._input is not x or number not in self._outputs:
            product = functional.linear(x, self._weight)
            parts = product[..., : sum(self._sizes)].split(self._sizes, -1)
            self._input, self._outputs = x, dict(enumerate(parts))
        found = self._outputs.pop(number)
        if not self._outputs:
            self._input = None
        return found
