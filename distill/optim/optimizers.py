"""Optimizers of a stage, and their registry.

An optimizer is one subclass of `Optimizer`: its settings, how it is built, and the memory of its states. Its
module imports torch inside functions only, since recipes are also listed and checked without torch.
"""

import importlib
from abc import abstractmethod
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field

from evalsuite.foundation.registry import Registry, subclass_of
from evalsuite.foundation.strict import StrictUnion

if TYPE_CHECKING:
    import torch
    from torch import nn

Fraction = Annotated[float, Field(ge=0, le=1)]


class Optimizer(StrictUnion):
    """What updates the fp32 master weights: AdamW, or another optimizer with AdamW for what it leaves out."""

    tag: ClassVar[str] = "kind"
    supports_sharding: ClassVar[bool] = True
    """False if parameters that are sharded over GPUs cannot be updated."""

    kind: str = "adamw"
    """adamw, or muon for matrices."""
    beta1: Fraction = 0.9
    beta2: Fraction = 0.95
    eps: float = Field(default=1e-8, gt=0)
    weight_decay: float = Field(default=0.1, ge=0)
    """Applied to the weights of linear layers and feature maps, except the head."""

    @property
    def state_bytes(self) -> int:
        """Bytes of the states of a trained parameter, at most."""
        return 8

    def check_installed(self) -> None:
        """Raise ModuleNotFoundError if a package that `build` needs is missing."""

    @abstractmethod
    def build(
        self,
        parameters: "Mapping[str, nn.Parameter]",
        lr_of: Callable[[str], float],
        undecayed: Collection[str],
    ) -> "list[torch.optim.Optimizer]":
        """The optimizers of a stage's parameters. Their groups hold `initial_lr`, the peak rate.

        Args:
            lr_of: name of a parameter → its peak learning rate.
            undecayed: names of parameters without weight decay.
        """

    def groups(
        self,
        parameters: "Mapping[str, nn.Parameter]",
        lr_of: Callable[[str], float],
        undecayed: Collection[str],
    ) -> list[dict[str, Any]]:
        """Parameter groups of torch's optimizers, one for each learning rate and weight decay."""
        groups: dict[tuple[float, float], list[nn.Parameter]] = {}
        for name, parameter in parameters.items():
            decay = 0.0 if name in undecayed else self.weight_decay
            groups.setdefault((lr_of(name), decay), []).append(parameter)
        return [
            {"params": members, "lr": lr, "initial_lr": lr, "weight_decay": decay}
            for (lr, decay), members in groups.items()
        ]

    def adamw(self, groups: list[dict[str, Any]]) -> "torch.optim.Optimizer":
        """AdamW with these settings."""
        import torch

        betas, device = (self.beta1, self.beta2), groups[0]["params"][0].device
        return torch.optim.AdamW(groups, betas=betas, eps=self.eps, fused=device.type in ("cuda", "cpu"))

    @classmethod
    def registry(cls) -> Registry[Any]:
        """The optimizers."""
        return OPTIMIZERS


OPTIMIZERS: Registry[type[Optimizer]] = Registry(
    "optimizer", group="evalsuite.optimizers", validate=subclass_of(Optimizer)
)
"""Name → the class of its settings."""


@OPTIMIZERS.register("adamw")
class AdamW(Optimizer):
    """AdamW (arXiv 1711.05101)."""

    kind: Literal["adamw"] = "adamw"
    state_bits: Literal[8, 32] = 32
    """Bits of each of AdamW's two states; 8 (torchao, extra `lowbit`) takes 2 instead of 8 bytes a trained
    parameter. Vectors and matrices whose rows are no multiple of 256 keep 32."""

    @property
    def state_bytes(self) -> int:
        return 2 if self.state_bits == 8 else 8

    def check_installed(self) -> None:
        if self.state_bits == 8:
            importlib.import_module("torchao")

    def build(
        self,
        parameters: "Mapping[str, nn.Parameter]",
        lr_of: Callable[[str], float],
        undecayed: Collection[str],
    ) -> "list[torch.optim.Optimizer]":
        groups = self.groups(parameters, lr_of, undecayed)
        if self.state_bits == 8:
            from evalsuite.distill.optim.low_bit import RowwiseAdamW8bit

            return [RowwiseAdamW8bit(groups, betas=(self.beta1, self.beta2), eps=self.eps)]
        return [self.adamw(groups)]


@OPTIMIZERS.register("muon")
class Muon(Optimizer):
    """Muon for matrices with weight decay, and AdamW for all other parameters."""

    supports_sharding: ClassVar[bool] = False

    kind: Literal["muon"]
    momentum: Fraction = 0.95
    """Momentum of the matrix update."""

    def build(
        self,
        parameters: "Mapping[str, nn.Parameter]",
        lr_of: Callable[[str], float],
        undecayed: Collection[str],
    ) -> "list[torch.optim.Optimizer]":
        import torch

        matrices = {
            name: parameter
            for name, parameter in parameters.items()
            if parameter.ndim == 2 and name not in undecayed
        }
        others = {name: parameter for name, parameter in parameters.items() if name not in matrices}
        optimizers = []
        if others:
            optimizers.append(self.adamw(self.groups(others, lr_of, undecayed)))
        if matrices:
            groups = self.groups(matrices, lr_of, undecayed)
            # Updates are scaled to AdamW's RMS, so that one learning rate fits both.
            muon = torch.optim.Muon(groups, momentum=self.momentum, adjust_lr_fn="match_rms_adamw")
            optimizers.append(muon)
        return optimizers
