"""Projections of one input as one matrix product, for inference on a GPU.

Small models are bound by the number of kernels, and most of a layer's products read the same input: q, k, v,
gate and the logits of decays; an MLP's gate and up projection.
"""

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional

from evalsuite.models.decoder.block import Block
from evalsuite.models.mixers import RecurrentMixer, SoftmaxMixer
from evalsuite.models.ops.dispatch import HALF
from evalsuite.models.ops.gates import PerHeadLinear
from evalsuite.models.ops.glu import glu

MULTIPLE = 16
"""Tensor cores need a number of output channels that is a multiple of this."""


def join_projections(decoder: nn.Module) -> None:
    """Join the projections of blocks, in place, where their ops have kernels without gradients; none on a
    CPU. Names and values of parameters stay."""
    for block in decoder.modules():
        if not isinstance(block, Block) or not _is_fused(block):
            continue
        for mixer in block.self_attn.modules():
            if isinstance(mixer, RecurrentMixer):
                join(mixer, mixer.joint_projections())
            elif isinstance(mixer, SoftmaxMixer):
                join(mixer, [mixer.q_proj, mixer.k_proj, mixer.v_proj])
        join(block.mlp, [block.mlp.gate_proj, block.mlp.up_proj])


@torch.no_grad()
def _is_fused(block: Block) -> bool:
    weight: Tensor = block.mlp.down_proj.weight
    return block.activation is not None and weight.dtype in HALF and glu.has_kernel(weight, block.activation)


def join(owner: nn.Module, layers: Sequence[nn.Module]) -> None:
    """Compute layers of `owner` that read the same input in each forward pass together.

    A `PerHeadLinear` remains, and is given the output without bias (see `PerHeadLinear.joined`); other layers
    with a bias are left alone.
    """
    names = {module: name for name, module in owner.named_children()}
    plain = [
        each
        for each in layers
        if isinstance(each, PerHeadLinear) or (type(each) is nn.Linear and each.bias is None)
    ]
    found = [each for each in plain if isinstance(each, nn.Linear)]
    if len(found) < 2:
        return
    product = JointProduct(found)
    for number, layer in enumerate(found):
        if isinstance(layer, PerHeadLinear):
            layer.joined = partial(product.output, number)
        else:
            setattr(owner, names[layer], JoinedLinear(layer, product, number))


class JointProduct:
    """One matrix product for linear layers without bias, whose weights become views of one tensor, so that
    they take no further memory and writing into them still changes the layers."""

    def __init__(self, layers: Sequence[nn.Linear]) -> None:
        self._weights = [layer.weight for layer in layers]
        self._sizes = [layer.out_features for layer in layers]
        rows = sum(self._sizes)
        padding = self._weights[0].data.new_zeros(-rows % MULTIPLE, layers[0].in_features)
        self._joint = torch.cat([*(weight.data for weight in self._weights), padding])
        for weight, view in zip(self._weights, self._joint[:rows].split(self._sizes), strict=True):
            weight.data = view
        self._places = [weight.data_ptr() for weight in self._weights]
        self._input: Tensor | None = None
        self._outputs: dict[int, Tensor] = {}

    def output(self, number: int, x: Tensor) -> Tensor | None:
        """Output of one layer; the product is computed for the first one that is called with an input.

        None with gradients, or if weights were replaced, as by moving the model.
        """
        if torch.is_grad_enabled() or self._places != [weight.data_ptr() for weight in self._weights]:
            return None
        if self._input is not x or number not in self._outputs:
            product = functional.linear(x, self._joint)
            parts = product[..., : sum(self._sizes)].split(self._sizes, -1)
            self._input, self._outputs = x, dict(enumerate(parts))
        found = self._outputs.pop(number)
        if not self._outputs:
            self._input = None
        return found


class JoinedLinear(nn.Linear):
    """A linear layer whose output is computed together with those of others, where that is possible."""

    def __init__(self, layer: nn.Linear, product: JointProduct, number: int) -> None:
        nn.Module.__init__(self)
        self.in_features, self.out_features = layer.in_features, layer.out_features
        self.weight = layer.weight
        self.register_parameter("bias", None)
        self._product, self._number = product, number

    def forward(self, x: Tensor) -> Tensor:
        found = self._product.output(self._number, x)
        return super().forward(x) if found is None else found
