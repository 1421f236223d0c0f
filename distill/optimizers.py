"""fp32 master weights, the optimizers that update them, and their gradients in one flat buffer."""

from collections.abc import Callable, Iterable, Mapping, Sequence

import torch
from torch import Tensor, nn

from evalsuite.distill.language_model import LanguageModel
from evalsuite.distill.recipe import Stage
from evalsuite.distill.schedules import lr_factor


def build_optimizers(
    parameters: Mapping[str, nn.Parameter], stage: Stage, is_mixer: Callable[[str], bool]
) -> list[torch.optim.Optimizer]:
    """The optimizer of a stage, or two where Muon leaves vectors and embeddings to AdamW.

    Each group carries `peak`, its learning rate before the schedule. Weight decay acts on matrices only,
    not on embeddings, norms, biases or convolutions.
    """
    settings = stage.optimizer
    groups: dict[tuple[float, float, bool], list[nn.Parameter]] = {}
    for name, parameter in parameters.items():
        peak = stage.lr if is_mixer(name) or stage.lr_rest is None else stage.lr_rest
        matrix = parameter.ndim == 2 and not any(part in name for part in ("embed_tokens", "lm_head", "conv"))
        decay = settings.weight_decay if matrix else 0.0
        groups.setdefault((peak, decay, matrix and settings.kind == "muon"), []).append(parameter)
    device = next(iter(parameters.values())).device
    optimizers: list[torch.optim.Optimizer] = []
    adamw = [_group(key, members) for key, members in groups.items() if not key[2]]
    if adamw:
        optimizers.append(
            torch.optim.AdamW(
                adamw,
                betas=(settings.beta1, settings.beta2),
                eps=settings.epsilon,
                fused=device.type in ("cuda", "cpu"),
            )
        )
    muon = [_group(key, members) for key, members in groups.items() if key[2]]
    if muon:
        # Updates are scaled to AdamW's root mean square, so that one learning rate serves both.
        optimizers.append(torch.optim.Muon(muon, momentum=settings.momentum, adjust_lr_fn="match_rms_adamw"))
    return optimizers


def _group(key: tuple[float, float, bool], members: list[nn.Parameter]) -> dict[str, object]:
    peak, decay, _ = key
    return {"params": members, "lr": peak, "peak": peak, "weight_decay": decay}


def set_learning_rate(optimizers: Iterable[torch.optim.Optimizer], stage: Stage, step: int) -> float:
    """Set every group's rate for `step`; return the schedule's factor."""
    factor = lr_factor(stage.schedule, step, stage.steps)
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = group["peak"] * factor
    return factor


class Masters:
    """The fp32 weights of a student whose forward and backward passes run on a copy in `dtype`.

    The copy is what the checkpoint will hold, so that a student is trained as it is going to be used, and
    nothing is cast twice in a step. In fp32 the model is its own master. Buffers (the rotary frequencies)
    are left alone: their angles would be wrong by radians in bf16.
    """

    def __init__(self, model: LanguageModel, dtype: torch.dtype) -> None:
        self.weights = dict(model.named_parameters())
        self._dtype = dtype
        self._copies: dict[str, nn.Parameter] = {}
        if dtype != torch.float32:
            self._copies = self.weights
            self.weights = {
                name: nn.Parameter(parameter.detach().float().clone())
                for name, parameter in self._copies.items()
            }
            for parameter in self._copies.values():
                parameter.data = parameter.data.to(dtype)

    @property
    def separate(self) -> bool:
        """Whether the model is a copy of the masters."""
        return bool(self._copies)

    @torch.no_grad()
    def publish(self, names: Iterable[str]) -> None:
        """Round the masters `names` into the model."""
        if self.separate:
            chosen = list(names)
            torch._foreach_copy_(
                [self._copies[name] for name in chosen], [self.weights[name] for name in chosen]
            )

    def put(self, name: str, tensor: Tensor) -> None:
        """Make `tensor` (fp32) the master `name`, and round it into the model."""
        self.weights[name].data = tensor
        if self.separate:
            self._copies[name].data = tensor.to(self._dtype)

    def drop(self) -> None:
        """Free the memory of masters and model, until every one is `put` back."""
        for parameter in (*self.weights.values(), *self._copies.values()):
            parameter.data = torch.empty(0, dtype=parameter.dtype)


class FlatGradients:
    """All gradients of a student as views of one buffer: one operation to clear, sum over GPUs or measure.

    Args:
        parameters: the parameters that train.
        parts: consecutive groups of `parameters` (layers, say) that are clipped each on its own.
    """

    def __init__(self, parts: Sequence[Sequence[nn.Parameter]]) -> None:
        parameters = [parameter for part in parts for parameter in part]
        first = parameters[0]
        self.buffer = torch.zeros(
            sum(parameter.numel() for parameter in parameters), dtype=torch.float32, device=first.device
        )
        self._parts: list[Tensor] = []
        at = 0
        for part in parts:
            start = at
            for parameter in part:
                parameter.grad = self.buffer[at : at + parameter.numel()].view_as(parameter)
                at += parameter.numel()
            self._parts.append(self.buffer[start:at])

    def clear(self) -> None:
        """Set all gradients to zero."""
        self.buffer.zero_()

    @torch.no_grad()
    def collect(self, copies: Sequence[nn.Parameter]) -> None:
        """Add the gradients that a backward pass left at the masters' `copies`, and remove them there."""
        given = [torch.zeros_like(copy) if copy.grad is None else copy.grad for copy in copies]
        self.buffer.add_(torch.cat([gradient.reshape(-1) for gradient in given]))
        for copy in copies:
            copy.grad = None

    def clip(self, largest: float | None) -> Tensor:
        """Scale each part down to the norm `largest`; return the norm of all parts together before that."""
        norms = torch.stack([torch.linalg.vector_norm(part) for part in self._parts])
        if largest is not None:
            scales = (largest / (norms + 1e-6)).clamp(max=1.0)
            if len(self._parts) == 1:
                self.buffer.mul_(scales[0])
            else:
                torch._foreach_mul_(self._parts, list(scales.unbind()))
        return torch.linalg.vector_norm(norms)
