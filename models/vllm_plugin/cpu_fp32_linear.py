"""Float32 matrix products on a CPU, accumulated in blocks. Imported only inside vLLM.

On CPUs vLLM accumulates a full row at once, and the float32 rounding error grows with the row: for rows as
long as SmolLM2's it is twice that of torch's product, and it dominated the deviation of a served student's
log-likelihoods from float64. Accumulated in blocks, the product is as exact as torch's and, for few rows,
still faster.
"""

import torch
from torch import Tensor, nn
from vllm import _custom_ops as ops
from vllm.model_executor.layers.linear import UnquantizedLinearMethod
from vllm.platforms import current_platform

BLOCK_SIZE = 192
"""Terms per accumulated block; a multiple of the vector width."""


class BlockedFp32LinearMethod(UnquantizedLinearMethod):
    """vLLM's linear method for float32 weights, with one packed product per `BLOCK_SIZE` input channels."""

    def process_weights_after_loading(self, layer: nn.Module) -> None:
        """Pack the weight [out, in] and release it, as vLLM does."""
        blocks = layer.get_parameter("weight").detach().split(BLOCK_SIZE, 1)
        packed = [ops.create_onednn_mm(block.t(), 32) for block in blocks]

        def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
            parts = x.split(BLOCK_SIZE, -1)
            total: Tensor = ops.onednn_mm(packed[0], parts[0].contiguous(), bias)
            for product, part in zip(packed[1:], parts[1:], strict=True):
                total = total + ops.onednn_mm(product, part.contiguous(), None)
            return total

        vars(layer)["cpu_linear"] = linear
        layer.weight = nn.Parameter(torch.empty(0), requires_grad=False)


def use_blocked_fp32_linear(model: nn.Module, dtype: torch.dtype) -> None:
    """Switch the linear layers of a model to blocked products, before its weights load; a no-op except for
    float32 on CPUs where vLLM would use oneDNN."""
    if dtype != torch.float32 or not current_platform.is_cpu():
        return
    if not getattr(ops, "_supports_onednn", False) or current_platform.is_zen_cpu():
        return  # The products come from torch or from another library.
    for module in model.modules():
        if type(getattr(module, "quant_method", None)) is UnquantizedLinearMethod:
            module.quant_method = BlockedFp32LinearMethod()
