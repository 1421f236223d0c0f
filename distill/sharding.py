"""A student whose weights, gradients and moments are cut over all GPUs (FSDP2, `fully_shard`).

For models that do not fit otherwise. Stages that end in logits are sharded; alignment stages never are,
since they run single layers, of which only the mixers have gradients and moments.
"""

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from evalsuite.distill.end_to_end import Objective
from evalsuite.distill.language_model import LanguageModel
from evalsuite.distill.optimizers import build_optimizers, set_learning_rate
from evalsuite.distill.parallel import Parallel, whole
from evalsuite.distill.recipe import Stage
from evalsuite.distill.stages import is_mixer, softmax_layers, trained_parameters
from evalsuite.distill.step import Trainee

PREFIX = "student."
"""What `Objective` puts before the names of a student's parameters."""


class ShardedTrainee(Trainee):
    """A trainee that enters end-to-end stages in shards, and leaves them as a whole model again.

    The gradients of all processes are added, as `Parallel.sum` does, and reduced in fp32, so that the
    losses are those of unsharded training.
    """

    def __init__(self, label: str, model: LanguageModel, dtype: torch.dtype = torch.float32) -> None:
        super().__init__(label, model, dtype)
        self._dtype = dtype
        self._shards: dict[str, nn.Parameter] = {}

    @property
    def sharded(self) -> bool:
        """Whether the current stage is."""
        return bool(self._shards)

    def enter(self, stage: Stage) -> None:
        """Shard the model for an end-to-end stage, or prepare for an alignment stage as usual."""
        if stage.aligns:
            super().enter(stage)
            return
        self.leave()
        model: Any = copy.deepcopy(self.model)
        for name, parameter in model.named_parameters():
            parameter.data = self.masters.weights[name].data
        chosen = trained_parameters(model, stage.trains)
        softmax = softmax_layers(model)
        objective = Objective(model)
        mesh = init_device_mesh(next(model.parameters()).device.type, (distributed.get_world_size(),))
        policy = MixedPrecisionPolicy(
            param_dtype=self._dtype, reduce_dtype=torch.float32, cast_forward_inputs=False
        )
        for module in (*model.model.layers, objective):
            fully_shard(module, mesh=mesh, mp_policy=policy)
            # A plain sum: every token already weighs one over the tokens of all processes.
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)
        # From here on the shards hold the weights; a second, whole set on every GPU would defeat them.
        self.masters.drop()
        self._shards = {
            name.removeprefix(PREFIX): parameter for name, parameter in objective.named_parameters()
        }
        self.parameters = {name: self._shards[name] for name in chosen}
        self.optimized = self.parameters
        self.objective = objective
        self.optimizers = build_optimizers(self.parameters, stage, lambda name: is_mixer(name, softmax))

    def clear(self) -> None:
        """Forget all gradients."""
        if not self.sharded:
            super().clear()
        for parameter in self._shards.values():
            parameter.grad = None

    def collect(self) -> None:
        """Nothing to do in shards: FSDP reduces and keeps the gradients itself."""
        if not self.sharded:
            super().collect()

    def reduce(self, parallel: Parallel) -> None:
        """Nothing to do in shards, as for `collect`."""
        if not self.sharded:
            super().reduce(parallel)

    def update(self, stage: Stage, step: int) -> tuple[Tensor, float]:
        """See `Trainee.update`."""
        if not self.sharded:
            return super().update(stage, step)
        given = [parameter for parameter in self.parameters.values() if parameter.grad is not None]
        largest = float("inf") if stage.clip is None else stage.clip
        norm = nn.utils.clip_grad_norm_(given, largest)
        factor = set_learning_rate(self.optimizers, stage, step)
        for optimizer in self.optimizers:
            optimizer.step()
        return whole(norm), factor

    def weights(self) -> Mapping[str, Tensor]:
        """The fp32 weights by name; shards in a sharded stage (see `parallel.whole`)."""
        return self._shards if self.sharded else super().weights()

    def leave(self) -> None:
        """Put the shards together again."""
        if self.sharded:
            for name, tensor in self.weights().items():
                self.masters.put(name, whole(tensor))
            self._shards = {}
            self.objective = Objective(self.model)
        super().leave()
