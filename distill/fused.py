"""One pass instead of several for what lies between a model's matrix products, on CUDA.

transformers writes RMSNorm and the MLP's gate as chains of small operations, each of which reads and
writes all activations and keeps them for the backward pass. fla's kernels do the same arithmetic at once;
the modules, their parameters and their names stay as they are.
"""

from types import MethodType
from typing import Any

from torch import Tensor

from evalsuite.distill.language_model import LanguageModel
from evalsuite.models.recurrence import using_fla


def fuse(model: LanguageModel) -> None:
    """Give a Llama-style decoder's norms and MLPs their fused form; off CUDA nothing changes."""
    norms = [model.model.norm]
    for layer in model.model.layers:
        norms += [layer.input_layernorm, layer.post_attention_layernorm]
        if layer.mlp.config.hidden_act == "silu":
            layer.mlp.forward = MethodType(_mlp, layer.mlp)
    for norm in norms:
        norm.forward = MethodType(_rms_norm, norm)


def _rms_norm(self: Any, hidden_states: Tensor) -> Tensor:
    if not using_fla(hidden_states):
        plain: Tensor = type(self).forward(self, hidden_states)
        return plain
    from fla.modules.norm.layernorm import rms_norm

    normed: Tensor = rms_norm(hidden_states, self.weight, None, eps=self.variance_epsilon)
    return normed


def _mlp(self: Any, x: Tensor) -> Tensor:
    if not using_fla(x):
        plain: Tensor = type(self).forward(self, x)
        return plain
    from fla.modules.activations import swiglu_linear

    # The product of gate and up is made again in the backward pass instead of being kept.
    out: Tensor = swiglu_linear(
        self.gate_proj(x), self.up_proj(x), self.down_proj.weight, self.down_proj.bias
    )
    return out
