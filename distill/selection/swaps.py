"""The candidates of a one-swap pass, trained side by side on one teacher forward.

Distilled   one student per layer, each with its own copy of what trains (stage 2)
Aligned     one all-linear student for all layers (stage 1): alignment gives every layer the teacher's
            own input, so that what one layer learns does not depend on which other layer was swapped
"""

from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch
from torch import Tensor

from evalsuite.distill.batches import StepData
from evalsuite.distill.recipe import Stage
from evalsuite.distill.saving import restore_optimizers, restore_weights
from evalsuite.distill.selection.ground import Ground
from evalsuite.distill.selection.hybrids import replaced, restored, with_own_parameters
from evalsuite.distill.step import Stepper, Trainee
from evalsuite.models import StudentForCausalLM


class Alone:
    """A `Parallel` of one process: candidates are split over GPUs, their batches and gradients are not."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def sum(self, tensor: Tensor) -> None:
        """Nothing to add."""


class Candidates(Protocol):
    """What a pass trains and rates."""

    @property
    def trainees(self) -> Sequence[Trainee]:
        """Those whose weights and moments a state holds."""

    def step(self, data: StepData, number: int) -> None:
        """One optimizer step of all."""

    def scores(self) -> dict[str, dict[int, float]]:
        """Name of a score → layer → importance, for the layers of this process."""


def swapped(
    ground: Ground, direction: str, trunk: StudentForCausalLM, layers: Collection[int]
) -> AbstractContextManager[Any]:
    """The student with swapped `layers`: `add` restores those of the trunk, `remove` makes those of the
    teacher linear."""
    if direction == "add":
        return restored(trunk, ground.full, layers)
    return replaced(ground.full, trunk, layers)


class Distilled:
    """One student per layer, trained on the temperature-scaled KL (Eq. 5; Algorithm 1, line 5).

    Args:
        trunk: the all-linear student to swap in, or to take the swapped layer from.
        layers: those of this process.
        before: layers that are swapped in every candidate, decided in earlier rounds.
    """

    def __init__(
        self,
        ground: Ground,
        stage: Stage,
        direction: str,
        trunk: StudentForCausalLM,
        layers: Sequence[int],
        before: Collection[int] = (),
    ) -> None:
        self._ground, self._direction, self._layers = ground, direction, list(layers)
        self.trainees = []
        for layer in layers:
            with swapped(ground, direction, trunk, {*before, layer}) as student:
                model = with_own_parameters(student, stage.trains)
            trainee = Trainee(f"layer-{layer}", model, ground.cast.dtype)
            trainee.enter(stage)
            self.trainees.append(trainee)
        parallel: Any = Alone(ground.device)
        self._stepper = Stepper(ground.teacher, self.trainees, stage, parallel)

    def step(self, data: StepData, number: int) -> None:
        """See `Candidates`."""
        if self.trainees:  # there may be more processes than layers left
            self._stepper.step(data, number)

    def scores(self) -> dict[str, dict[int, float]]:
        """I(ℓ) = −KL on the held-out slice where ℓ was restored (Eq. 6), +KL where it was removed."""
        sign = -1.0 if self._direction == "add" else 1.0
        return {
            self._direction: {
                layer: sign * self._ground.held_out.kl(trainee.model)
                for layer, trainee in zip(self._layers, self.trainees, strict=True)
            }
        }


class Aligned:
    """The linear mixers, aligned to the teacher's layer by layer (Eq. 4; Algorithm 1, line 4).

    Args:
        layers: those that this process rates; all are trained everywhere.
        rate: whether `scores` is wanted.
    """

    def __init__(self, ground: Ground, stage: Stage, layers: Sequence[int]) -> None:
        self._ground, self._layers = ground, list(layers)
        self.model = with_own_parameters(ground.trunk, stage.trains)
        trainee = Trainee("trunk", self.model, ground.cast.dtype)
        trainee.enter(stage)
        self.trainees = [trainee]
        parallel: Any = Alone(ground.device)
        self._stepper = Stepper(ground.teacher, self.trainees, stage, parallel)

    def step(self, data: StepData, number: int) -> None:
        """See `Candidates`."""
        self._stepper.step(data, number)

    def scores(self) -> dict[str, dict[int, float]]:
        """∓ the hidden-state distance of Eq. 4 on the held-out slice, for one layer added or removed."""
        found: dict[str, dict[int, float]] = {"add": {}, "remove": {}}
        for direction, sign in (("add", -1.0), ("remove", 1.0)):
            for layer in self._layers:
                with swapped(self._ground, direction, self.model, [layer]) as student:
                    found[direction][layer] = sign * self._ground.held_out.hidden_distance(student)
        return found


def state_of(trainee: Trainee) -> dict[str, Tensor]:
    """Master weights that train, and the moments of their optimizers, by name."""
    names = {id(trainee.masters.weights[name]): name for name in trainee.parameters}
    tensors = {
        f"{trainee.label}/model/{name}": trainee.masters.weights[name].data for name in trainee.parameters
    }
    for optimizer in trainee.optimizers:
        for owner, values in optimizer.state.items():
            for key, value in values.items():
                tensors[f"{trainee.label}/optimizer/{names[id(owner)]}/{key}"] = torch.as_tensor(value)
    return tensors


def restore(trainee: Trainee, tensors: Mapping[str, Tensor]) -> None:
    """Undo `state_of`."""
    weights = {name: trainee.masters.weights[name] for name in trainee.parameters}
    restore_weights(weights, trainee.label, tensors)
    restore_optimizers(weights, trainee.label, trainee.optimizers, tensors)
    trainee.masters.publish(weights)
