"""Float32 products on a CPU, summed in short pieces. Imported by vLLM only.

There vLLM adds up a whole row in one go, and what float32 drops on the way grows with the row: on rows as
long as SmolLM2's twice what torch's product drops, which was most of the distance of a served student's
log-likelihoods from float64's. In pieces the product is as exact as torch's and, for few rows, still quicker.
"""

import torch
from torch import Tensor, nn
from vllm import _custom_ops as ops
from vllm.model_executor.layers.linear import UnquantizedLinearMethod
from vllm.platforms import current_platform

PIECE = 192
"""Most terms that are added up at once. A multiple of the width of vector units."""


class PiecewiseLinear(UnquantizedLinearMethod):
    """What vLLM does with a weight in float32, with one packed product per `PIECE` columns of it."""

    def process_weights_after_loading(self, layer: nn.Module) -> None:
        """Pack the weight [out, in] and let go of it, as vLLM does."""
        pieces = layer.get_parameter("weight").detach().split(PIECE, 1)
        packed = [ops.create_onednn_mm(piece.t(), 32) for piece in pieces]

        def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
            parts = x.split(PIECE, -1)
            total: Tensor = ops.onednn_mm(packed[0], parts[0].contiguous(), bias)
            for product, part in zip(packed[1:], parts[1:], strict=True):
                total = total + ops.onednn_mm(product, part.contiguous(), None)
            return total

        vars(layer)["cpu_linear"] = linear
        layer.weight = nn.Parameter(torch.empty(0), requires_grad=False)


def sum_in_pieces(model: nn.Module, dtype: torch.dtype) -> None:
    """Let the linear layers of a model that is not loaded yet sum in pieces, where vLLM would not."""
    if dtype != torch.float32 or not current_platform.is_cpu():
        return
    if not getattr(ops, "_supports_onednn", False) or current_platform.is_zen_cpu():
        return  # Products that torch computes, or a library of its own.
    for module in model.modules():
        if type(getattr(module, "quant_method", None)) is UnquantizedLinearMethod:
            module.quant_method = PiecewiseLinear()
