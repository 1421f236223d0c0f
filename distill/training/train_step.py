"""One optimizer step of every student: gradients of all micro-batches, then clipping and update.

On CUDA, a micro-batch of a small model consists of thousands of short kernels, which Python launches more
slowly than the GPU runs them. If shapes are fixed, the whole micro-batch (teacher, students, losses,
gradients) is therefore captured once as a CUDA graph and replayed.
"""

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import ClassVar, cast

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from evalsuite.distill.objectives.forward import set_activation_checkpointing, set_recurrence
from evalsuite.distill.recipe.stage import Stage
from evalsuite.distill.trainable import mixer_names, set_trainable, trainable_names
from evalsuite.distill.training.distributed import ProcessGroup
from evalsuite.distill.training.optim import (
    FlatGrads,
    MasterWeights,
    components,
    layer_groups,
    load_state_tensors,
    no_weight_decay,
    set_lr,
    skip_unless_finite,
    state_tensors,
)
from evalsuite.distill.types import CausalLM, GlobalBatch, MicroBatch, RolloutLosses
from evalsuite.foundation import ConfigError
from evalsuite.models.ops.capture import capture

_log = logging.getLogger("evalsuite")

CUDA_GRAPH_WARMUP = 2
"""Eager micro-batches before capture, in which kernels are selected and compiled."""


class StudentTrainState:
    """A student in training: its master weights, and the trainable parameters and optimizers of the stage.

    Args:
        dtype: dtype of forward and backward passes; master weights are fp32.
        trainable_sets: sets of the stages to come (see `TRAINABLE_SETS`), whose parameters have masters.
    """

    sharded: ClassVar[bool] = False
    """Whether this process holds a shard of the student only."""

    def __init__(
        self,
        label: str,
        model: CausalLM,
        dtype: torch.dtype = torch.float32,
        trainable_sets: Collection[str] = ("all",),
    ) -> None:
        self.label, self.model = label, model
        trained = {name for which in trainable_sets for name in trainable_names(model, which)}
        # FSDP casts what it gathers to `dtype`; its fp32 shards are the master weights.
        self.master_weights = MasterWeights(model, torch.float32 if self.sharded else dtype, trained)
        self._changed = trained & mixer_names(model)
        self.parameters: dict[str, nn.Parameter] = {}
        self.optimizer_params: dict[str, nn.Parameter] = {}
        self.optimizers: list[torch.optim.Optimizer] = []
        self._groups: list[list[nn.Parameter]] = []
        self.flat_grads: FlatGrads | None = None
        self._trained_layers = torch.empty(0, dtype=torch.int64)

    def begin_stage(self, stage: Stage) -> None:
        """Select the trainable parameters and create optimizers and gradient buffers."""
        self.end_stage()
        self.parameters = set_trainable(self.model, stage.trainable_set)
        set_activation_checkpointing(self.model, enabled=stage.recomputes_blocks)
        set_recurrence(self.model, stage.recurrence)
        masters = self.optimizer_params = {name: self.master_weights.params[name] for name in self.parameters}
        mixers = mixer_names(self.model)
        self.optimizers = stage.optimizer.build(
            masters,
            lambda name: stage.lr_of(in_mixer=name in mixers),
            no_weight_decay(cast(nn.Module, self.model)),
        )
        # Layerwise objectives train, and clip, every layer separately.
        groups = layer_groups(masters, layerwise=stage.is_layerwise)
        self._groups = [[masters[name] for name in names] for names in groups.values()]
        if stage.is_layerwise:
            self._trained_layers = torch.tensor(list(groups), device=self._groups[0][0].device)
        self._allocate_grads()

    def _allocate_grads(self) -> None:
        self.flat_grads = FlatGrads(self._groups)
        if self.master_weights.has_model_copy:
            masters = self.optimizer_params
            self.flat_grads.receive({self.parameters[name]: master for name, master in masters.items()})

    def zero_grad(self) -> None:
        """Set all gradients to zero."""
        assert self.flat_grads is not None
        self.flat_grads.zero()

    def discard_grads(self) -> None:
        """Drop the gradients that an aborted backward pass has left on the model's copies."""
        if self.master_weights.has_model_copy:
            for parameter in self.parameters.values():
                parameter.grad = None

    def scale_layer_grads(self, factors: Tensor) -> None:
        """Multiply the gradients of each layer by its entry of `factors` [layers], in a layerwise stage."""
        assert self.flat_grads is not None
        self.flat_grads.scale(factors[self._trained_layers])

    def reduce_grads(self, process_group: ProcessGroup) -> None:
        """Sum the gradients over all processes."""
        assert self.flat_grads is not None
        process_group.all_reduce(self.flat_grads.buffer)

    @torch.no_grad()
    def component_norms(self, process_group: ProcessGroup) -> dict[str, Tensor]:
        """Norms of the reduced gradients of the trained `components`; collective for sharded students."""
        squares = {}
        for component, names in components(self.optimizer_params).items():
            grads = [grad for name in names if (grad := self.optimizer_params[name].grad) is not None]
            local = [grad.to_local() if isinstance(grad, DTensor) else grad for grad in grads]
            norms = torch._foreach_norm(local) if local else [torch.zeros((), device=process_group.device)]
            squares[component] = torch.stack(norms).square().sum()
        total = torch.stack(list(squares.values()))
        if self.sharded:
            process_group.all_reduce(total)
        return dict(zip(squares, total.sqrt().unbind(), strict=True))

    def optimizer_step(self, stage: Stage, step: int) -> Tensor:
        """Clip and update; return the gradient norm before clipping."""
        assert self.flat_grads is not None
        norm = self.flat_grads.clip(stage.max_grad_norm)
        self._update(stage, step, [self.flat_grads.buffer], norm)
        self.master_weights.copy_to_model(self.parameters)
        return norm

    def _update(self, stage: Stage, step: int, grads: Iterable[Tensor], norm: Tensor) -> None:
        skip_unless_finite(self.optimizers, grads, norm)
        set_lr(self.optimizers, stage.schedule.factor(step, stage.steps))
        for optimizer in self.optimizers:
            optimizer.step()

    def weights(self) -> Mapping[str, Tensor]:
        """All weights by name: master weights, and frozen ones in the dtype of the forward pass."""
        return {**dict(self.model.named_parameters()), **self.master_weights.params}

    def changed_weights(self, *, stage_has_begun: bool = True) -> Mapping[str, Tensor]:
        """The master weights of mixers and of all that was trained so far; others equal the teacher's.

        Args:
            stage_has_begun: whether a step has changed what the current stage trains.
        """
        changed = self._changed | (self.parameters.keys() if stage_has_begun else set())
        return {name: tensor for name, tensor in self.master_weights.params.items() if name in changed}

    def load_weights(self, names: Collection[str]) -> None:
        """Take over the master weights `names`, whose values were changed in place."""
        self._changed |= set(names)
        self.master_weights.copy_to_model(names)

    def load_optimizer_state(self, states: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Load states of the optimizers, by parameter and name; tensors are placed as the parameters are."""
        names = {id(parameter): name for name, parameter in self.optimizer_params.items()}
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    if state := states.get(names[id(parameter)]):
                        load_state_tensors(optimizer, parameter, state)

    def optimizer_state(self) -> dict[str, Tensor]:
        """State tensors of the optimizers, by `<parameter>/<name>`."""
        names = {id(parameter): name for name, parameter in self.optimizer_params.items()}
        return {
            f"{names[id(parameter)]}/{key}": value
            for optimizer in self.optimizers
            for parameter in optimizer.state
            for key, value in state_tensors(optimizer, parameter).items()
        }

    def end_stage(self) -> None:
        """Free gradients and optimizers."""
        self._changed |= self.parameters.keys()
        if self.flat_grads is not None:
            self.flat_grads.close()
        for parameter in (*self.model.parameters(), *self.master_weights.params.values()):
            parameter.grad = None
        self.optimizer_params, self.optimizers, self._groups, self.flat_grads = {}, [], [], None


class TrainStep:
    """The optimizer step of one stage, for all students.

    Args:
        teacher: None in stages without one.
        log_grad_norms: measure the gradient norms of the models' components.
        cuda_graphs: capture micro-batches of fixed shape on CUDA; False runs all of them eagerly.
    """

    def __init__(
        self,
        teacher: CausalLM | None,
        train_states: Sequence[StudentTrainState],
        stage: Stage,
        process_group: ProcessGroup,
        *,
        log_grad_norms: bool = False,
        cuda_graphs: bool = True,
    ) -> None:
        self._log_grad_norms = log_grad_norms
        self._train_states, self._stage, self._process_group = train_states, stage, process_group
        students = [train_state.model for train_state in train_states]
        self._losses = stage.start(teacher, students, process_group.device)
        self._parallel = None
        if stage.sequence_parallel > 1:
            self._parallel = process_group.sequence_parallel(stage.sequence_parallel)
        # FSDP allocates unsharded weights anew in every step, which a graph cannot replay, and the processes
        # of a sequence wait for one another.
        eager = self._parallel is not None or any(train_state.sharded for train_state in train_states)
        self._cuda_graphs = cuda_graphs and process_group.device.type == "cuda" and not eager
        self._captured: dict[tuple[int, ...], tuple[torch.cuda.CUDAGraph, MicroBatch]] = {}
        self._num_eager: dict[tuple[int, ...], int] = {}

    def __call__(self, batch: GlobalBatch, step: int) -> dict[str, Tensor]:
        """Train on one global batch; the host does not wait for the device.

        Returns:
            Column → values [students]: the losses (see `Stage.columns`), and norms of the gradients before
            clipping.
        """
        self._losses.zero()
        for train_state in self._train_states:
            train_state.zero_grad()
        # A masked batch can contain no loss tokens; clamp the denominator so that the gradient is zero, not
        # NaN.
        num_loss_tokens = max(1, batch.num_loss_tokens)
        if self._stage.num_rollouts and not batch.rollouts:
            raise ConfigError(
                f"stage '{self._stage.name}': objective {self._stage.objective} trains on what students "
                "write, which only `evalsuite distill` does; use objective kd here"
            )
        for micro_batch in batch.micro_batches:
            self._run(self._own(micro_batch), num_loss_tokens)
        if batch.rollouts:
            assert isinstance(self._losses, RolloutLosses)
            self._losses.backward_rollouts(batch.rollouts)
        losses, factors = self._losses.reduce(self._process_group.all_reduce)
        if factors is not None:
            for train_state in self._train_states:
                train_state.scale_layer_grads(factors)
        self._process_group.all_reduce(losses)
        # All collectives come before the first update: if another process has ended, no student is changed.
        for train_state in self._train_states:
            train_state.reduce_grads(self._process_group)
        by_component = self._component_norms() if self._log_grad_norms else {}
        norms = [train_state.optimizer_step(self._stage, step) for train_state in self._train_states]
        columns = dict(zip(self._stage.columns, losses.unbind(1), strict=True))
        return {**columns, "grad_norm": torch.stack(norms), **by_component}

    def _component_norms(self) -> dict[str, Tensor]:
        """Column → norms [students]."""
        found = [state.component_norms(self._process_group) for state in self._train_states]
        zero = torch.zeros((), device=self._process_group.device)
        names = dict.fromkeys(name for norms in found for name in norms)
        return {
            f"grad_norm_{name}": torch.stack([norms.get(name, zero) for norms in found]) for name in names
        }

    def trial(self, batch: GlobalBatch) -> None:
        """Run forward and backward of the first micro-batch eagerly, for what they launch; the next step
        discards losses and gradients."""
        for micro_batch in batch.micro_batches[:1]:
            self._losses.backward(self._own(micro_batch), max(1, batch.num_loss_tokens))

    def _own(self, batch: MicroBatch) -> MicroBatch:
        """What this process reads of a micro-batch, on its device."""
        own = batch if self._parallel is None else batch.part(self._parallel)
        return own.to(self._process_group.device)

    def _run(self, batch: MicroBatch, num_loss_tokens: int) -> None:
        """Run one micro-batch: eagerly, or by capturing and replaying a CUDA graph."""
        key = (*batch.input_ids.shape, num_loss_tokens, batch.loss_weights is not None)
        if not self._cuda_graphs or not batch.is_dense:
            self._losses.backward(batch, num_loss_tokens)
            return
        if key not in self._captured and self._num_eager.get(key, 0) >= CUDA_GRAPH_WARMUP:
            self._capture(key, batch, num_loss_tokens)
        if key in self._captured:
            graph, static = self._captured[key]
            static.copy_(batch)
            graph.replay()
            return
        self._num_eager[key] = self._num_eager.get(key, 0) + 1
        self._losses.backward(batch, num_loss_tokens)

    def _capture(self, key: tuple[int, ...], batch: MicroBatch, num_loss_tokens: int) -> None:
        """Capture a micro-batch as a CUDA graph, without running it."""
        static = batch.clone()
        try:
            graph = capture(lambda: self._losses.backward(static, num_loss_tokens))
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            reason = str(error).split("\n")[0]
            _log.warning(
                "CUDA graph capture failed; training continues in eager mode, which is slower: %s", reason
            )
            self._cuda_graphs = False
            for train_state in self._train_states:
                train_state.discard_grads()
            return
        self._captured[key] = (graph, static)
