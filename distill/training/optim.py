"""fp32 master weights, gradients in one flat buffer, and what all optimizers share."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from evalsuite.distill.trainable import layer_of
from evalsuite.distill.types import CausalLM
from evalsuite.models.mixers import Mixer


def no_weight_decay(model: nn.Module) -> frozenset[str]:
    """Names of the parameters that weight decay and Muon leave alone: all but matrices between activations.

    Weights of linear layers decay, except the language-model head, and what a mixer names as its
    `matrix_parameters`. Embeddings, norms, biases, decay rates and convolutions do not: zero means nothing to
    them, or ruins an initial value such as a gate's memory length.
    """
    matrices = set()
    for prefix, module in model.named_modules():
        path = f"{prefix}." if prefix else ""
        if isinstance(module, Mixer):
            matrices |= {f"{path}{name}" for name in module.matrix_parameters}
        elif isinstance(module, nn.Linear) and not path.endswith("lm_head."):
            matrices.add(f"{path}weight")
    return frozenset(name for name, _ in model.named_parameters() if name not in matrices)


def state_tensors(optimizer: torch.optim.Optimizer, parameter: Tensor) -> dict[str, Tensor]:
    """The state of one parameter as tensors that can be saved, by name."""
    if hasattr(optimizer, "state_tensors"):
        found: dict[str, Tensor] = optimizer.state_tensors(parameter)
        return found
    return {name: torch.as_tensor(value) for name, value in optimizer.state[parameter].items()}


def load_state_tensors(
    optimizer: torch.optim.Optimizer, parameter: Tensor, tensors: Mapping[str, Tensor]
) -> None:
    """The inverse of `state_tensors`; tensors are on the parameter's device, and sharded as it is."""
    if hasattr(optimizer, "load_state_tensors"):
        optimizer.load_state_tensors(parameter, tensors)
    else:
        optimizer.state[parameter] = dict(tensors)


def set_lr(optimizers: Iterable[torch.optim.Optimizer], factor: float) -> None:
    """Set the learning rate of every parameter group to `factor` times its peak."""
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            lr = group["initial_lr"] * factor
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(lr)  # torchao compiles its step for a tensor
            else:
                group["lr"] = lr


def layer_groups(names: Iterable[str], *, layerwise: bool) -> dict[int, list[str]]:
    """Parameters that are optimized and clipped together: those of each layer, by its number, or all (−1)."""
    groups: dict[int, list[str]] = {}
    for name in names:
        layer = layer_of(name) if layerwise else None
        groups.setdefault(-1 if layer is None else layer, []).append(name)
    return groups


def components(names: Iterable[str]) -> dict[str, list[str]]:
    """Parameters by the part of the model that they belong to.

    Norms within mixers belong to these, and a head that is tied to the embedding belongs to that.
    """
    found: dict[str, list[str]] = {}
    for name in names:
        parts = name.split(".")
        known = {"embed_tokens": "embedding", "lm_head": "head", "self_attn": "mixers", "mlp": "mlps"}
        component = next((known[part] for part in parts if part in known), "norms")
        found.setdefault(component, []).append(name)
    return found


class MasterWeights:
    """fp32 master weights of a student whose forward and backward passes run on a copy in `dtype`.

    The checkpoint stores the copy, so a student is trained as it will be used, and no weight is cast twice in
    a step. In fp32, the model's own parameters are the master weights. Buffers (rotary frequencies) stay in
    fp32; in bf16 their angles would be off by radians.

    Args:
        names: parameters that some stage trains; all others exist in `dtype` only.
    """

    def __init__(self, model: CausalLM, dtype: torch.dtype, names: Collection[str]) -> None:
        parameters = dict(model.named_parameters())
        self.params = {name: parameter for name, parameter in parameters.items() if name in names}
        self._model_params: dict[str, nn.Parameter] = {}
        if dtype != torch.float32:
            self._model_params = parameters
            for name, parameter in parameters.items():
                if name in self.params:
                    # The model's fp32 tensor becomes the master weight, so that no second one exists.
                    self.params[name] = nn.Parameter(parameter.data.float())
                parameter.data = parameter.data.to(dtype)

    @property
    def has_model_copy(self) -> bool:
        """Whether the model's parameters are separate from the master weights."""
        return bool(self._model_params)

    @torch.no_grad()
    def copy_to_model(self, names: Iterable[str]) -> None:
        """Round the master weights `names` into the model."""
        if self.has_model_copy:
            chosen = list(names)
            torch._foreach_copy_(
                [self._model_params[name] for name in chosen], [self.params[name] for name in chosen]
            )


class FlatGrads:
    """All gradients of a student as views of one buffer, which is zeroed, all-reduced and clipped at once.

    Args:
        groups: the trainable parameters in groups (such as layers) that are clipped separately.
    """

    def __init__(self, groups: Sequence[Sequence[nn.Parameter]]) -> None:
        parameters = [parameter for group in groups for parameter in group]
        first = parameters[0]
        self.buffer = torch.zeros(
            sum(parameter.numel() for parameter in parameters), dtype=torch.float32, device=first.device
        )
        self._groups: list[Tensor] = []
        self._hooks: list[RemovableHandle] = []
        offset = 0
        for group in groups:
            start = offset
            for parameter in group:
                parameter.grad = self.buffer[offset : offset + parameter.numel()].view_as(parameter)
                offset += parameter.numel()
            self._groups.append(self.buffer[start:offset])

    def zero(self) -> None:
        """Set all gradients to zero."""
        self.buffer.zero_()

    def receive(self, copies: Mapping[nn.Parameter, nn.Parameter]) -> None:
        """From now on, add each gradient of a copy to the buffer as soon as it is complete, and free it.

        Args:
            copies: parameter of the model → its master weight, which is one of this buffer's.
        """
        for copy, master in copies.items():
            assert master.grad is not None
            self._hooks.append(copy.register_post_accumulate_grad_hook(partial(_move_grad, master.grad)))

    def close(self) -> None:
        """Receive no more gradients."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []

    def scale(self, factors: Tensor) -> None:
        """Multiply the gradients of each group by its entry of `factors` [groups]."""
        torch._foreach_mul_(self._groups, list(factors.unbind()))

    def clip(self, max_norm: float | None) -> Tensor:
        """Clip the gradient norm of each group to `max_norm`; return the total norm before clipping."""
        norms = torch.stack([torch.linalg.vector_norm(group) for group in self._groups])
        if max_norm is not None:
            scales = (max_norm / (norms + 1e-6)).clamp(max=1.0)
            if len(self._groups) == 1:
                self.buffer.mul_(scales[0])
            else:
                torch._foreach_mul_(self._groups, list(scales.unbind()))
        return torch.linalg.vector_norm(norms)


def skip_unless_finite(
    optimizers: Iterable[torch.optim.Optimizer], grads: Iterable[Tensor], norm: Tensor
) -> None:
    """Let the next step change no weights if the norm of the gradients is not finite.

    The host does not wait for the norm: it learns of it, and stops the run, while later steps run. Optimizers
    that cannot skip a step on the device get gradients of 0, so that their weights and states stay finite.
    """
    invalid = ~norm.isfinite()
    for grad in grads:
        grad.masked_fill_(invalid, 0)
    for optimizer in optimizers:
        if optimizer.defaults.get("fused"):
            optimizer.found_inf = invalid.float()  # type: ignore[attr-defined]


@torch.no_grad()
def _move_grad(total: Tensor, parameter: Tensor) -> None:
    """Add a parameter's gradient to `total` and clear it."""
    assert parameter.grad is not None
    total.add_(parameter.grad)
    parameter.grad = None
