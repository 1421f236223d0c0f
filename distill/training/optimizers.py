"""Optimizers and their schedules, fp32 master weights, and gradients in one flat buffer."""

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from evalsuite.distill.recipe.config import OptimizerConfig, ScheduleConfig
from evalsuite.distill.recipe.stage import Stage
from evalsuite.distill.types import CausalLM


def build_optimizers(
    parameters: Mapping[str, nn.Parameter],
    stage: Stage,
    is_mixer: Callable[[str], bool],
    undecayed: Collection[str],
) -> list[torch.optim.Optimizer]:
    """The optimizer of a stage; two with Muon, which leaves all but single matrices to AdamW.

    Each parameter group holds `initial_lr`, its rate before the schedule.

    Args:
        undecayed: names of parameters without weight decay, which Muon leaves to AdamW as well; see
            `evalsuite.models.mixers.no_weight_decay`.
    """
    config = stage.optimizer
    groups: dict[tuple[float, float, bool], list[nn.Parameter]] = {}
    for name, parameter in parameters.items():
        lr = stage.lr_of(in_mixer=is_mixer(name))
        decay = 0.0 if name in undecayed else config.weight_decay
        muon_fits = config.kind == "muon" and name not in undecayed and parameter.ndim == 2
        groups.setdefault((lr, decay, muon_fits), []).append(parameter)
    device = next(iter(parameters.values())).device
    optimizers: list[torch.optim.Optimizer] = []
    adamw = [_group(key, members) for key, members in groups.items() if not key[2]]
    if adamw:
        optimizers.append(_adamw(adamw, config, fused=device.type in ("cuda", "cpu")))
    muon = [_group(key, members) for key, members in groups.items() if key[2]]
    if muon:
        # Updates are scaled to AdamW's RMS, so that one learning rate fits both.
        optimizers.append(torch.optim.Muon(muon, momentum=config.momentum, adjust_lr_fn="match_rms_adamw"))
    return optimizers


class RoundingAdamW(torch.optim.AdamW):
    """AdamW on weights and states that are rounded to bf16 after every step, as if stored so.

    It reproduces a defect of published code; see `OptimizerConfig.master_weights`.
    """

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """Update, then round. PyTorch computes a step on bf16 parameters in fp32, too."""
        loss = super().step(closure)
        for parameter, state in self.state.items():
            for tensor in (parameter, state["exp_avg"], state["exp_avg_sq"]):
                tensor.copy_(tensor.bfloat16())
        return loss


def _adamw(groups: Any, config: OptimizerConfig, *, fused: bool) -> torch.optim.Optimizer:
    betas = (config.beta1, config.beta2)
    if config.master_weights == "bf16":
        return RoundingAdamW(groups, betas=betas, eps=config.eps, fused=fused)
    if config.state_bits == 32:
        return torch.optim.AdamW(groups, betas=betas, eps=config.eps, fused=fused)
    from evalsuite.distill.training.low_bit import RowwiseAdamW8bit

    return RowwiseAdamW8bit(groups, betas=betas, eps=config.eps)


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


def _group(key: tuple[float, float, bool], members: list[nn.Parameter]) -> dict[str, object]:
    lr, decay, _ = key
    return {"params": members, "lr": lr, "initial_lr": lr, "weight_decay": decay}


def lr_factor(schedule: ScheduleConfig, step: int, steps: int) -> float:
    """Learning rate of `step` (from 0) out of `steps`, in units of the peak rate.

    Some step has the peak rate: the last one of the warmup, or the first one without it. The last one has
    exactly `min_lr_ratio`, unless there is no decay or a single step.
    """
    warmup = round(schedule.warmup_ratio * steps)
    decay = round(schedule.effective_decay_ratio * steps) if schedule.kind == "wsd" else steps - warmup
    if schedule.kind == "constant":
        decay = 0
    # The step of the peak is none of the decay, in short stages either.
    decay = min(decay, steps - max(warmup, 1))
    if step < warmup:
        return (step + 1) / warmup
    remaining = steps - 1 - step
    if decay == 0 or remaining >= decay:
        return 1.0
    # 1 at the last step, so that the schedule ends at its minimum exactly.
    progress = 1 - remaining / decay
    shape = (1 + math.cos(math.pi * progress)) / 2 if schedule.kind == "cosine" else 1 - progress
    return schedule.min_lr_ratio + (1 - schedule.min_lr_ratio) * shape


def set_lr(optimizers: Iterable[torch.optim.Optimizer], stage: Stage, step: int) -> float:
    """Set the learning rate of every parameter group for `step`; return the schedule's factor."""
    factor = lr_factor(stage.schedule, step, stage.steps)
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            lr = group["initial_lr"] * factor
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(lr)  # torchao compiles its step for a tensor
            else:
                group["lr"] = lr
    return factor


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
        """Clip the gradient norm of each group to `max_norm`; return the total norm before clipping.

        Gradients of a total norm that is not finite become 0.
        """
        norms = torch.stack([torch.linalg.vector_norm(group) for group in self._groups])
        if max_norm is not None:
            scales = (max_norm / (norms + 1e-6)).clamp(max=1.0)
            if len(self._groups) == 1:
                self.buffer.mul_(scales[0])
            else:
                torch._foreach_mul_(self._groups, list(scales.unbind()))
        total = torch.linalg.vector_norm(norms)
        zero_unless_finite([self.buffer], total)
        return total


def zero_unless_finite(grads: Iterable[Tensor], norm: Tensor) -> None:
    """Set gradients to 0, in place, if their norm is not finite, so that weights and states stay finite.

    The host does not wait for the norm: it learns of it, and stops the run, while later steps run.
    """
    invalid = ~norm.isfinite()
    for grad in grads:
        grad.masked_fill_(invalid, 0)


@torch.no_grad()
def _move_grad(total: Tensor, parameter: Tensor) -> None:
    """Add a parameter's gradient to `total` and clear it."""
    assert parameter.grad is not None
    total.add_(parameter.grad)
    parameter.grad = None
