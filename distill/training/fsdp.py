"""Models sharded over all GPUs (FSDP2, `fully_shard`), for those that do not fit on one.

Students are sharded with gradients and optimizer states, teachers in the dtype of the forward pass. A mixer,
the rest of its block, and what is outside of blocks are gathered separately: layerwise stages run single
mixers, and frozen parts are gathered without being reduced.
"""

from collections.abc import Collection, Mapping
from types import MethodType
from typing import Any, cast

import torch
from torch import Tensor, distributed, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import (
    FSDPModule,
    MixedPrecisionPolicy,
    fully_shard,
    register_fsdp_forward_method,
)
from torch.distributed.tensor import DTensor, Shard

from evalsuite.distill.recipe.stage import Stage
from evalsuite.distill.training.distributed import ProcessGroup
from evalsuite.distill.training.train_step import StudentTrainState
from evalsuite.distill.types import CausalLM
from evalsuite.foundation import ConfigError
from evalsuite.models.checkpoints.streaming import Weights
from evalsuite.models.decoder.deferred_init import replace_parameters
from evalsuite.models.mixers import Mixer


def shard(weights: Weights, device: torch.device, dtype: torch.dtype, trained: Collection[str]) -> Any:
    """The model of `weights`, of which this process reads and holds its share.

    Args:
        dtype: of forward and backward passes, and of the weights that are not trained.
        trained: parameters that some stage trains; these are in fp32.

    Raises:
        ConfigError: a mixer that reads parameters of other layers.
    """
    model = weights.model
    _check_layers(model)
    mesh = init_device_mesh(device.type, (distributed.get_world_size(),))
    local = {}
    for name, parameter in model.named_parameters():
        kept = torch.float32 if name in trained else dtype
        rows = weights.rows(name, *_own_rows(len(parameter), mesh))
        # A copy, since rows can be a view that keeps the whole parameter alive.
        local[name] = rows.to(device, kept, copy=True)
    replace_parameters(
        model,
        {
            parameter: nn.Parameter(
                torch.empty_like(parameter, dtype=local[name].dtype), requires_grad=name in trained
            )
            for name, parameter in model.named_parameters()
        },
    )
    policy = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32, cast_forward_inputs=False)
    for layer in model.model.layers:
        for module in (layer.self_attn, layer):
            fully_shard(module, mesh=mesh, mp_policy=policy, reshard_after_forward=True)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    for module in model.modules():
        if isinstance(module, FSDPModule):
            # Sum without averaging: token weights are already normalized over all processes.
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)
    _fill(model, local)
    # For objectives on a foreign model, whose decoder runs without its head.
    model.within = MethodType(_within, model)
    register_fsdp_forward_method(model, "within")
    for buffer_name, buffer in list(model.named_buffers()):
        owner, _, leaf = buffer_name.rpartition(".")
        model.get_submodule(owner)._buffers[leaf] = buffer.to(device)
    # The first call makes the model the root of all groups, and notes which parameters are ever reduced.
    model.within(lambda: None)
    model.reshard()
    return model


def _within(self: nn.Module, function: Any, *arguments: Any) -> Any:
    return function(*arguments)


def _check_layers(model: nn.Module) -> None:
    spanning = sorted({m.name for m in model.modules() if isinstance(m, Mixer) and m.spans_layers})
    if spanning:
        raise ConfigError(
            f"{', '.join(spanning)} with learned_lower_bounds = True cannot be sharded: a layer reads "
            "parameters of others; set learned_lower_bounds: false, or train without sharding"
        )


def _own_rows(rows: int, mesh: DeviceMesh) -> tuple[int, int]:
    """This process's rows, as `torch.chunk` divides them."""
    size = -(-rows // mesh.size())
    start = min(mesh.get_local_rank() * size, rows)
    return start, min(start + size, rows)


def _fill(model: nn.Module, local: Mapping[str, Tensor]) -> None:
    """Replace sharded parameters on the meta device by ones with this process's rows."""
    new = {}
    for name, parameter in model.named_parameters():
        assert isinstance(parameter, DTensor)
        assert parameter.placements == (Shard(0),)
        sharded = DTensor.from_local(
            local[name],
            parameter.device_mesh,
            parameter.placements,
            run_check=False,
            shape=parameter.shape,
            stride=parameter.stride(),
        )
        new[parameter] = nn.Parameter(sharded, requires_grad=parameter.requires_grad)
    replace_parameters(model, cast(Any, new))


class FSDPTrainState(StudentTrainState):
    """The train state of a sharded student (see `shard`), whose fp32 shards are its master weights.

    Gradients are summed over processes and reduced in fp32, as `ProcessGroup.all_reduce` does, so that losses
    equal those of unsharded training.
    """

    sharded = True

    def _allocate_grads(self) -> None:
        """A no-op: FSDP allocates the gradients."""

    def zero_grad(self) -> None:
        """Clear all gradients."""
        for parameter in self.model.parameters():
            parameter.grad = None

    def scale_layer_grads(self, factors: Tensor) -> None:
        for group, factor in zip(self._groups, factors[self._trained_layers].unbind(), strict=True):
            if grads := _local_grads(group):
                torch._foreach_mul_(grads, factor)

    def reduce_grads(self, process_group: ProcessGroup) -> None:
        """A no-op: FSDP reduces the gradients itself."""

    def optimizer_step(self, stage: Stage, step: int) -> Tensor:
        local = [_local_grads(group) for group in self._groups]
        device = self._groups[0][0].device
        squares = torch.stack(
            [
                torch.stack([grad.square().sum() for grad in grads]).sum()
                if grads
                else torch.zeros((), device=device)
                for grads in local
            ]
        )
        distributed.all_reduce(squares)
        norms = squares.sqrt()
        if stage.max_grad_norm is not None:
            scales = (stage.max_grad_norm / (norms + 1e-6)).clamp(max=1.0)
            for grads, scale in zip(local, scales.unbind(), strict=True):
                if grads:
                    torch._foreach_mul_(grads, scale)
        total = torch.linalg.vector_norm(norms)
        self._update(stage, step, (grad for grads in local for grad in grads), total)
        return total


def _local_grads(parameters: Collection[nn.Parameter]) -> list[Tensor]:
    """This process's shards of the gradients."""
    grads = [parameter.grad for parameter in parameters]
    return [grad.to_local() for grad in grads if isinstance(grad, DTensor)]


def select_strategy(model: CausalLM) -> type[StudentTrainState]:
    """How a student is trained: replicated on every GPU or, if it was built so, sharded."""
    return FSDPTrainState if isinstance(model, FSDPModule) else StudentTrainState
