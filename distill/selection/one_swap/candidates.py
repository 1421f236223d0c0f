"""Candidates of one-swap training, which share every teacher forward pass.

DistilledCandidates: one student per layer with its own copy of the trainable parameters (stage 2).
AlignedCandidates: one all-linear student for all layers (stage 1). Alignment feeds every layer the teacher's
input, so the result of a layer does not depend on which other layer is swapped.
"""

import copy
from collections.abc import Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from evalsuite.distill.recipe.stage import Stage
from evalsuite.distill.selection.context import SelectionContext
from evalsuite.distill.trainable import set_trainable
from evalsuite.distill.training.train_step import StepOutput, StudentTrainState, TrainStep
from evalsuite.distill.types import GlobalBatch
from evalsuite.models import StudentForCausalLM


@contextmanager
def hybrid_from_linear(
    all_linear: StudentForCausalLM, all_softmax: StudentForCausalLM, softmax: Collection[int]
) -> Iterator[StudentForCausalLM]:
    """The all-linear student with the teacher's blocks at layers `softmax` (Algorithm 1, line 3).

    Modifies the student in place and reverts it on exit; copies nothing.
    """
    with _with_blocks(all_linear, {layer: all_softmax.model.layers[layer] for layer in softmax}, "softmax"):
        yield all_linear


@contextmanager
def swap_mixers(
    student: StudentForCausalLM, donor: StudentForCausalLM, layers: Collection[int]
) -> Iterator[StudentForCausalLM]:
    """`student` with the mixers of `donor` at `layers`; MLPs, norms and embeddings stay its own.

    Modifies the student in place and reverts it on exit; copies nothing.
    """
    before = {layer: student.model.layers[layer].self_attn for layer in layers}
    mixers = student.config.mixers
    names = list(mixers)
    try:
        for layer in layers:
            student.model.layers[layer].self_attn = donor.model.layers[layer].self_attn
            names[layer] = donor.config.mixers[layer]
        student.config.mixers = names
        yield student
    finally:
        student.config.mixers = mixers
        for layer, mixer in before.items():
            student.model.layers[layer].self_attn = mixer


@contextmanager
def _with_blocks(student: StudentForCausalLM, blocks: dict[int, nn.Module], mixer: str) -> Iterator[None]:
    before = {layer: student.model.layers[layer] for layer in blocks}
    mixers = student.config.mixers
    names = list(mixers)
    try:
        for layer, block in blocks.items():
            student.model.layers[layer] = block
            names[layer] = mixer
        student.config.mixers = names
        yield
    finally:
        student.config.mixers = mixers
        for layer, block in before.items():
            student.model.layers[layer] = block


def copy_trainable(student: StudentForCausalLM, train: str) -> StudentForCausalLM:
    """Copy a student with its own trainable parameters, sharing all others.

    Args:
        train: a set of `set_trainable`, which also sets `requires_grad`.
    """
    trainable = set_trainable(student, train)
    own = {id(parameter) for parameter in trainable.values()}
    shared: dict[int, Any] = {
        id(parameter): parameter for parameter in student.parameters() if id(parameter) not in own
    }
    copied = copy.deepcopy(student, shared)
    for parameter in trainable.values():
        parameter.requires_grad_(False)
    return copied


class SingleProcessGroup:
    """A `ProcessGroup` of one process: candidates are split over GPUs, batches and gradients are not."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def all_reduce(self, tensor: Tensor) -> None:
        """No-op."""


class Candidates(Protocol):
    """Students that one-swap training trains and scores."""

    @property
    def train_states(self) -> Sequence[StudentTrainState]:
        """Train states that a saved state contains."""

    def step(self, data: GlobalBatch, number: int) -> StepOutput | None:
        """One optimizer step of all candidates; None if this process has none."""

    def scores(self) -> dict[str, dict[int, float]]:
        """Score name → layer → importance, for the layers of this process."""


def swap_layers(
    context: SelectionContext, direction: str, all_linear: StudentForCausalLM, layers: Collection[int]
) -> AbstractContextManager[Any]:
    """Swap `layers`: `add` restores them in the all-linear student, `remove` makes the teacher's linear."""
    if direction == "add":
        return hybrid_from_linear(all_linear, context.all_softmax, layers)
    return swap_mixers(context.all_softmax, all_linear, layers)


class DistilledCandidates:
    """One student per layer, trained on the temperature-scaled KL (Eq. 5; Algorithm 1, line 5).

    Args:
        all_linear: the all-linear student to swap in, or to take the swapped layers from.
        layers: layers of this process.
        before: layers that are swapped in every candidate, decided in earlier rounds.
    """

    def __init__(
        self,
        context: SelectionContext,
        stage: Stage,
        direction: str,
        all_linear: StudentForCausalLM,
        layers: Sequence[int],
        before: Collection[int] = (),
    ) -> None:
        self._context, self._direction, self._layers = context, direction, list(layers)
        self.train_states = []
        for layer in layers:
            with swap_layers(context, direction, all_linear, {*before, layer}) as student:
                model = copy_trainable(student, stage.trainable_set)
            train_state = StudentTrainState(
                f"layer-{layer}", model, context.models.dtype, [stage.trainable_set]
            )
            train_state.begin_stage(stage)
            self.train_states.append(train_state)
        process_group: Any = SingleProcessGroup(context.device)
        self._train_step = TrainStep(context.teacher, self.train_states, stage, process_group)

    def step(self, data: GlobalBatch, number: int) -> StepOutput | None:
        # There may be more processes than layers.
        return self._train_step(data, number) if self.train_states else None

    def scores(self) -> dict[str, dict[int, float]]:
        """I(ℓ) = −KL on the held-out slice where ℓ is restored (Eq. 6), +KL where it is removed."""
        sign = -1.0 if self._direction == "add" else 1.0
        return {
            self._direction: {
                layer: sign * self._context.held_out.kl(train_state.model)
                for layer, train_state in zip(self._layers, self.train_states, strict=True)
            }
        }


class AlignedCandidates:
    """The linear mixers, aligned to the teacher layer by layer (Eq. 4; Algorithm 1, line 4).

    Args:
        layers: layers that this process scores; every process trains all of them.
    """

    def __init__(self, context: SelectionContext, stage: Stage, layers: Sequence[int]) -> None:
        self._context, self._layers = context, list(layers)
        self.model = copy_trainable(context.all_linear, stage.trainable_set)
        train_state = StudentTrainState("all-linear", self.model, context.models.dtype, [stage.trainable_set])
        train_state.begin_stage(stage)
        self.train_states = [train_state]
        process_group: Any = SingleProcessGroup(context.device)
        self._train_step = TrainStep(context.teacher, self.train_states, stage, process_group)

    def step(self, data: GlobalBatch, number: int) -> StepOutput:
        return self._train_step(data, number)

    def scores(self) -> dict[str, dict[int, float]]:
        """∓ hidden-state distance (Eq. 4) on the held-out slice with one layer restored or removed."""
        signs = {"add": -1.0, "remove": 1.0}
        swaps = {
            (direction, layer): partial(swap_layers, self._context, direction, self.model, [layer])
            for direction in signs
            for layer in self._layers
        }
        distances = self._context.held_out.hidden_distances(swaps)
        return {
            direction: {layer: sign * distances[direction, layer] for layer in self._layers}
            for direction, sign in signs.items()
        }
