"""Everything that a run resumes from: progress, random numbers, weights and optimizer states."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
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
    stores: dict[str, str] = field(default_factory=dict)
    """Stage → `TeacherStore.id` of what it is trained with."""

    rollouts: dict[str, Any] = field(default_factory=dict)
    """Student → what it wrote for several steps (see `RolloutWriter`)."""

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
        self.stage, self.step, self.data, self.rollouts = self.stage + 1, 0, None, {}


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

    def empty_state_dict(self, saved: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Tensors to load a saved state into: the weights, and new ones for the optimizers of the stage.

        Args:
            saved: key → tensor of the same shape and dtype.

        Raises:
            CheckpointError: weights of the stage are missing, or belong to another model.
        """
        tensors = {"random": torch.get_rng_state()} if "random" in saved else {}
        for student in self.students:
            weights, parameters = student.master_weights.params, student.optimizer_params
            for name in sorted(student.changed_weights(stage_has_begun=self.progress.step > 0)):
                if f"{student.label}/model/{name}" not in saved:
                    raise CheckpointError(f"the training state has no '{name}' of {student.label}")
            for key, tensor in saved.items():
                label, kind, name, _ = _parts(key)
                if label == student.label and kind == "model":
                    if name not in weights or weights[name].shape != tensor.shape:
                        raise CheckpointError(
                            f"the training state is that of another model: it has '{name}' "
                            f"{list(tensor.shape)} of {label}"
                        )
                    tensors[key] = weights[name].detach()
                # A state that was saved at the end of a stage has none, and the next stage starts with new
                # ones.
                elif label == student.label and name in parameters:
                    tensors[key] = _zeros(tensor, parameters[name])
        return tensors

    def load_state_dict(self, tensors: Mapping[str, Tensor]) -> None:
        """Take over the tensors of `empty_state_dict`, once they are filled."""
        for student in self.students:
            weights, states = [], defaultdict[str, dict[str, Tensor]](dict)
            for key, tensor in tensors.items():
                label, kind, name, entry = _parts(key)
                if label == student.label and kind == "model":
                    weights.append(name)
                elif label == student.label:
                    states[name][entry] = tensor
            student.load_weights(weights)
            student.load_optimizer_state(states)
        if "random" in tensors:
            torch.set_rng_state(tensors["random"])


def _parts(key: str) -> tuple[str, str, str, str]:
    """Student, kind, parameter and name of a tensor; those that its key does not have are empty."""
    label, kind, name, entry, *_ = (*key.split("/"), "", "", "")
    return label, kind, name, entry


def _zeros(saved: Tensor, parameter: Tensor) -> Tensor:
    """A new tensor on the device of a parameter; sharded by rows like it if it has as many rows."""
    if isinstance(parameter, DTensor) and saved.shape[:1] == parameter.shape[:1]:
        mesh, placements = parameter.device_mesh, parameter.placements
        return zeros(saved.shape, dtype=saved.dtype, device_mesh=mesh, placements=placements)
    return torch.zeros(saved.shape, dtype=saved.dtype, device=parameter.device)
