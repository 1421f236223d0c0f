"""Students whose weights, gradients and optimizer states are sharded over all GPUs (FSDP2, `fully_shard`).

For models that do not fit on one GPU. End-to-end stages are sharded. Layerwise stages are not, since they run
single layers, of which only the mixers have gradients and optimizer states.
"""

import copy
from collections.abc import Collection, Mapping
from typing import Any, cast

import torch
from torch import Tensor, distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from evalsuite.distill.objectives.step_losses import StudentWithLoss
from evalsuite.distill.stage import Stage
from evalsuite.distill.training.distributed import ProcessGroup, full_tensor
from evalsuite.distill.training.optimizers import build_optimizers, set_lr
from evalsuite.distill.training.parameter_groups import (
    is_mixer_parameter,
    set_trainable,
)
from evalsuite.distill.training.train_step import StudentTrainState
from evalsuite.distill.types import CausalLM, softmax_layer_indices
from evalsuite.foundation import ConfigError
from evalsuite.models.mixers import Mixer, no_weight_decay

PREFIX = "student."
"""Prefix of the student's parameter names in `StudentWithLoss`."""


class FSDPTrainState(StudentTrainState):
    """A train state that is sharded during end-to-end stages and unsharded between stages.

    Gradients are summed over processes and reduced in fp32, as `ProcessGroup.all_reduce` does, so that losses
    equal those of unsharded training.
    """

    def __init__(
        self,
        label: str,
        model: CausalLM,
        dtype: torch.dtype = torch.float32,
        trainable_sets: Collection[str] = ("all",),
    ) -> None:
        super().__init__(label, model, dtype, trainable_sets)
        self._dtype = dtype
        self._shards: dict[str, nn.Parameter] = {}

    @property
    def sharded(self) -> bool:
        """Whether the student is sharded in the current stage."""
        return bool(self._shards)

    def begin_stage(self, stage: Stage) -> None:
        """Shard the model for an end-to-end stage; layerwise stages stay unsharded."""
        if stage.is_layerwise:
            super().begin_stage(stage)
            return
        if spanning := sorted(
            {m.name for m in self.model.modules() if isinstance(m, Mixer) and m.spans_layers}
        ):
            raise ConfigError(
                f"{', '.join(spanning)} with learned_lower_bounds = True cannot be sharded: a layer reads "
                "parameters of others; set learned_lower_bounds: false, or train without sharding"
            )
        self.end_stage()
        model: Any = copy.deepcopy(self.model)
        masters = self.master_weights.params
        for name, parameter in model.named_parameters():
            # Parameters that are sharded together need one dtype.
            parameter.data = masters[name].data if name in masters else parameter.data.float()
        trainable = set_trainable(model, stage.trainable_set)
        softmax = softmax_layer_indices(model)
        student_with_loss = StudentWithLoss(model)
        mesh = init_device_mesh(next(model.parameters()).device.type, (distributed.get_world_size(),))
        policy = MixedPrecisionPolicy(
            param_dtype=self._dtype, reduce_dtype=torch.float32, cast_forward_inputs=False
        )
        for module in (*model.model.layers, student_with_loss):
            fully_shard(module, mesh=mesh, mp_policy=policy)
            # Sum without averaging: token weights are already normalized over all processes.
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)
        # The shards replace the master weights; a second, full copy on every GPU would defeat the sharding.
        self.master_weights.free()
        self._shards = {
            name.removeprefix(PREFIX): parameter for name, parameter in student_with_loss.named_parameters()
        }
        self.parameters = {name: self._shards[name] for name in trainable}
        self.optimizer_params = self.parameters
        self.student_with_loss = student_with_loss
        self.optimizers = build_optimizers(
            self.parameters,
            stage,
            lambda name: is_mixer_parameter(name, softmax),
            no_weight_decay(cast(nn.Module, self.model)),
        )

    def zero_grad(self) -> None:
        """Clear all gradients."""
        if not self.sharded:
            super().zero_grad()
        for parameter in self._shards.values():
            parameter.grad = None

    def reduce_grads(self, process_group: ProcessGroup) -> None:
        """A no-op if sharded: FSDP reduces the gradients itself."""
        if not self.sharded:
            super().reduce_grads(process_group)

    def optimizer_step(self, stage: Stage, step: int) -> tuple[Tensor, float]:
        """See `StudentTrainState.optimizer_step`."""
        if not self.sharded:
            return super().optimizer_step(stage, step)
        with_grad = [parameter for parameter in self.parameters.values() if parameter.grad is not None]
        max_norm = float("inf") if stage.max_grad_norm is None else stage.max_grad_norm
        norm = nn.utils.clip_grad_norm_(with_grad, max_norm)
        factor = set_lr(self.optimizers, stage, step)
        for optimizer in self.optimizers:
            optimizer.step()
        return full_tensor(norm), factor

    def fp32_weights(self) -> Mapping[str, Tensor]:
        """The master weights by name; shards in a sharded stage (see `distributed.full_tensor`)."""
        if not self.sharded:
            return super().fp32_weights()
        return {name: self._shards[name] for name in self.master_weights.params}

    def weights(self) -> Mapping[str, Tensor]:
        """All weights by name; shards in a sharded stage."""
        return self._shards if self.sharded else super().weights()

    def end_stage(self) -> None:
        """Gather the shards into the model."""
        if self.sharded:
            for name, tensor in self._shards.items():
                self.master_weights.set(name, full_tensor(tensor))
            self._shards = {}
            self.student_with_loss = StudentWithLoss(self.model)
        super().end_stage()
