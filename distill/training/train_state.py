"""Everything that a run resumes from: progress, random numbers, weights and optimizer states."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, zeros

from evalsuite.distill.training.train_step import StudentTrainState
from evalsuite.distill.types import GlobalBatch
from evalsuite.foundation import CheckpointError


@dataclass
class Progress:
    """How far a run is. `tokens` counts per stage; `data` is the state of the stage's data loader.

    `sources`: data source → its state at the end of the last finished stage that read it.
    """

    stage: int = 0
    step: int = 0
    tokens: dict[str, int] = field(default_factory=dict)
    data: dict[str, Any] | None = None
    seconds: float = 0.0
    sources: dict[str, dict[str, Any]] = field(default_factory=dict)
    divergence: dict[str, Any] = field(default_factory=dict)
    """What `DivergenceStop` remembers."""

    @property
    def total_tokens(self) -> int:
        """Tokens trained on so far, over all stages."""
        return sum(self.tokens.values())

    @property
    def current_sources(self) -> dict[str, dict[str, Any]]:
        """Data source → its state after the last step."""
        return {**self.sources, **({} if self.data is None else self.data["sources"])}

    def add_step(self, stage: str, batch: GlobalBatch) -> None:
        """Count a step of `stage` on `batch`."""
        self.step += 1
        self.data = batch.state
        self.tokens[stage] = self.tokens.get(stage, 0) + batch.tokens

    def end_stage(self) -> None:
        """Go on to the next stage."""
        self.sources = self.current_sources
        self.stage, self.step, self.data = self.stage + 1, 0, None


@dataclass(frozen=True, slots=True)
class SavedTensor:
    """Shape and dtype of a tensor of a saved state."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    def zeros(self, pattern: Tensor) -> Tensor:
        """A new tensor on the device of `pattern`; sharded by rows like it if it has as many rows."""
        if isinstance(pattern, DTensor) and self.shape[:1] == pattern.shape[:1]:
            return zeros(
                self.shape,
                dtype=self.dtype,
                device_mesh=pattern.device_mesh,
                placements=pattern.placements,
            )
        return torch.zeros(self.shape, dtype=self.dtype, device=pattern.device)


class TrainState:
    """The state of a run, whose tensors are those of the models and optimizers themselves.

    Keys: `<student>/model/<parameter>` (fp32 master weights), `<student>/optimizer/<parameter>/<name>` and
    `random`. Weights that no stage has changed are left out: a resumed run has them from the teacher.

    Args:
        students: those of this process; every student has a label of its own.
        is_replica: whether all processes have the same students; otherwise, each has some of the run's.
        has_random: whether this process' random numbers are those of the run.
    """

    def __init__(
        self,
        students: Sequence[StudentTrainState],
        progress: Progress | None = None,
        *,
        is_replica: bool = True,
        has_random: bool = True,
    ) -> None:
        self.students, self.progress = list(students), progress or Progress()
        self._is_replica, self._has_random = is_replica, has_random

    @property
    def is_complete(self) -> bool:
        """Whether this process has the whole state of the run."""
        return self._is_replica and not any(student.sharded for student in self.students)

    def state_dict(self) -> dict[str, Tensor]:
        """All tensors, of which other processes may have the same ones or other shards."""
        tensors = {"random": torch.get_rng_state()} if self._has_random else {}
        for student in self.students:
            for name, weight in student.changed_weights().items():
                tensors[f"{student.label}/model/{name}"] = weight.detach()
            for name, value in student.optimizer_state().items():
                tensors[f"{student.label}/optimizer/{name}"] = value.detach()
        return tensors

    def empty_state_dict(self, saved: Mapping[str, SavedTensor]) -> dict[str, Tensor]:
        """Tensors to load a saved state into: the weights, and new ones for the optimizers of the stage.

        Raises:
            CheckpointError: weights of the stage are missing, or belong to another model.
        """
        tensors = {"random": saved["random"].zeros(torch.get_rng_state())} if "random" in saved else {}
        for student in self.students:
            expected = student.changed_weights(stage_has_begun=self.progress.step > 0)
            tensors |= _weights_to_load(student, expected, saved)
            tensors |= _optimizer_state_to_load(student, saved)
        return tensors

    def load_state_dict(self, tensors: Mapping[str, Tensor]) -> None:
        """Take over the tensors of `empty_state_dict`, once they are filled."""
        for student in self.students:
            student.load_weights(_below(f"{student.label}/model/", tensors))
            states: dict[str, dict[str, Tensor]] = {}
            for key, tensor in _below(f"{student.label}/optimizer/", tensors).items():
                name, _, entry = key.rpartition("/")
                states.setdefault(name, {})[entry] = tensor
            student.load_optimizer_state(states)
        if "random" in tensors:
            torch.set_rng_state(tensors["random"])


def _below(prefix: str, tensors: Mapping[str, Any]) -> dict[str, Any]:
    return {key.removeprefix(prefix): value for key, value in tensors.items() if key.startswith(prefix)}


def _weights_to_load(
    student: StudentTrainState, expected: Collection[str], saved: Mapping[str, SavedTensor]
) -> dict[str, Tensor]:
    prefix = f"{student.label}/model/"
    shapes, weights = _below(prefix, saved), student.fp32_weights()
    if missing := sorted(set(expected) - shapes.keys()):
        raise CheckpointError(f"the training state has no '{missing[0]}' of {student.label}")
    for name, tensor in shapes.items():
        if name not in weights or weights[name].shape != tensor.shape:
            raise CheckpointError(
                f"the training state is that of another model: it has '{name}' {list(tensor.shape)} of "
                f"{student.label}"
            )
    return {prefix + name: weights[name].detach() for name in shapes}


def _optimizer_state_to_load(
    student: StudentTrainState, saved: Mapping[str, SavedTensor]
) -> dict[str, Tensor]:
    prefix = f"{student.label}/optimizer/"
    found = {}
    for key, tensor in _below(prefix, saved).items():
        name = key.rpartition("/")[0]
        # A state that was saved at the end of a stage has none, and the next stage starts with new ones.
        if name in student.optimizer_params:
            found[prefix + key] = tensor.zeros(student.optimizer_params[name])
    return found
