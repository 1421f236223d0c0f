"""One-swap training: candidates train together, are scored at snapshots, and stop when the top K is stable.

The scores of all layers are logged at every snapshot, so that a later call with another budget extends this
training, or needs none if the earlier one went further.
"""

import logging
import shutil
from abc import abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import closing
from itertools import islice
from math import inf, nan
from typing import Any

import torch
from torch import Tensor

from evalsuite.distill.data.loader import StageDataLoader, prefetch
from evalsuite.distill.recipe.stage import Stage
from evalsuite.distill.selection.context import ProgressLog, SelectionContext
from evalsuite.distill.selection.hybrids import copy_trainable, swap_layers
from evalsuite.distill.selection.layer_sets import Direction, StopRule, top_layers
from evalsuite.distill.selection.result import Snapshot
from evalsuite.distill.training.checkpoint import Checkpointer
from evalsuite.distill.training.divergence import DivergenceStop
from evalsuite.distill.training.loop import StageLoop, Step
from evalsuite.distill.training.stop_signals import StopSignals
from evalsuite.distill.training.train_state import TrainState
from evalsuite.distill.training.train_step import StudentTrainState, TrainStep
from evalsuite.distill.types import GlobalBatch
from evalsuite.foundation import progress
from evalsuite.models import StudentForCausalLM

_log = logging.getLogger("evalsuite")

STATE_BYTES = 12
"""Bytes of a trained parameter in a state: its weight and Adam's two moments, in float32."""
SECONDS_PER_GB = 3.0
"""Seconds that a process takes to copy and write a GB of its state: 128 for 48 GB (H200, which idles)."""
TRAINING_PER_SAVING = 10.0
"""Seconds of training that are worth a second of saving."""

SIGNS: dict[Direction, float] = {"add": -1.0, "remove": 1.0}
"""Importance = sign · distance to the teacher."""


class SingleProcessGroup:
    """A `ProcessGroup` of one process: candidates are split over GPUs, batches and gradients are not."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def all_reduce(self, tensor: Tensor) -> None:
        """No-op."""


class Candidates:
    """Students of one process that one-swap training trains and scores, after one teacher forward pass.

    Args:
        students: label → student, with trainable parameters of its own.
    """

    def __init__(
        self, context: SelectionContext, stage: Stage, students: Mapping[str, StudentForCausalLM]
    ) -> None:
        self.train_states = [
            StudentTrainState(label, student, context.models.dtype, [stage.trainable_set])
            for label, student in students.items()
        ]
        for train_state in self.train_states:
            train_state.begin_stage(stage)
        process_group: Any = SingleProcessGroup(context.device)
        self._train_step = TrainStep(context.teacher, self.train_states, stage, process_group)

    def step(self, data: GlobalBatch, number: int) -> dict[str, Tensor]:
        """One optimizer step of all candidates; no columns if this process has none: it may have no layer."""
        return self._train_step(data, number) if self.train_states else {}

    @abstractmethod
    def scores(self) -> dict[Direction, dict[int, float]]:
        """Direction → layer → importance, for the layers of this process."""


class DistilledCandidates(Candidates):
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
        direction: Direction,
        all_linear: StudentForCausalLM,
        layers: Sequence[int],
        before: Collection[int] = (),
    ) -> None:
        self._context, self._direction, self._layers = context, direction, layers
        students = {}
        for layer in layers:
            student = swap_layers(direction, all_linear, context.teacher, {*before, layer})
            students[f"layer-{layer}"] = copy_trainable(student, stage.trainable_set)
        super().__init__(context, stage, students)

    def scores(self) -> dict[Direction, dict[int, float]]:
        """I(ℓ) = −KL on the held-out slice where ℓ is restored (Eq. 6), +KL where it is removed."""
        held_out, states = self._context.held_out, zip(self._layers, self.train_states, strict=True)
        return {self._direction: {i: SIGNS[self._direction] * held_out.kl(each.model) for i, each in states}}


class AlignedCandidates(Candidates):
    """The linear mixers, aligned to the teacher layer by layer (Eq. 4; Algorithm 1, line 4).

    Alignment feeds every layer the teacher's input, so the result of a layer does not depend on which other
    layer is swapped, and one all-linear student serves all layers.

    Args:
        layers: layers that this process scores; every process trains all of them.
    """

    def __init__(self, context: SelectionContext, stage: Stage, layers: Sequence[int]) -> None:
        self._context, self._layers = context, layers
        self.model = copy_trainable(context.all_linear, stage.trainable_set)
        super().__init__(context, stage, {"all-linear": self.model})

    def scores(self) -> dict[Direction, dict[int, float]]:
        """∓ hidden-state distance (Eq. 4) on the held-out slice with one layer restored or removed."""
        all_softmax = self._context.teacher
        swaps = {
            (direction, layer): swap_layers(direction, self.model, all_softmax, [layer])
            for direction in SIGNS
            for layer in self._layers
        }
        distances = self._context.held_out.hidden_distances(swaps)
        return {
            direction: {layer: sign * distances[direction, layer] for layer in self._layers}
            for direction, sign in SIGNS.items()
        }


class OneSwapTraining:
    """One stage of training for all candidates.

    Args:
        build: layers → candidates; called only if training is needed.
        name: name of the progress log.
        about: settings besides the recipe that determine the scores.
        snapshot_interval: steps between snapshots.
        saves: whether states are saved, so that training can be resumed or extended: not more often than
            their size is worth, nor on a disk without room for two.
        scored: whether candidates are scored at snapshots.
        layers: layers to score; all by default.
    """

    def __init__(
        self,
        context: SelectionContext,
        stage: Stage,
        build: Callable[[Sequence[int]], Candidates],
        *,
        name: str,
        about: dict[str, Any],
        snapshot_interval: int,
        saves: bool = True,
        scored: bool = True,
        layers: Sequence[int] | None = None,
    ) -> None:
        self.context, self.stage, self._build = context, stage, build
        self._interval, self._saves, self._scored = snapshot_interval, saves, scored
        process_group = context.process_group
        self._layers = list(range(context.layers)) if layers is None else list(layers)
        self._mine = self._layers[process_group.rank :: process_group.world_size]
        self.seconds = 0.0
        """Training and scoring time up to the end of the last `run`."""
        about = {
            "stage": stage.model_dump(mode="json"),
            "snapshot_interval": snapshot_interval,
            **context.settings,
            **about,
        }
        self.progress_log: ProgressLog = context.progress_log(name, about)
        self._folder = self.progress_log.path.parent
        self.candidates: Candidates | None = None
        interval = context.recipe.checkpoint.state_interval_seconds
        self._checkpointer = Checkpointer(self._folder / "state", process_group, interval)

    def run(self, k: int, score: Direction, stop_rule: StopRule | None = None) -> list[Snapshot]:
        """Train to the end of the stage or, with a stop rule, until the top-K set by `score` is stable.

        Returns:
            The snapshots up to that point.
        """
        count = self._count_snapshots(k, score, stop_rule)
        if count is None:
            self._train(k, score, stop_rule)
            count = self._count_snapshots(k, score, stop_rule)
            assert count is not None
        self.seconds = float(self.progress_log.rows[count - 1]["seconds"])
        return self.snapshots(k, score)[:count] if self._scored else []

    def snapshots(self, k: int, score: Direction) -> list[Snapshot]:
        """Return all logged snapshots, as sets of K layers."""
        found = []
        for row in self.progress_log.rows:
            scores = tuple(nan if value is None else value for value in row["scores"][score])
            found.append(
                Snapshot(
                    step=row["step"],
                    tokens=row["tokens"] * self._num_students,
                    layers=top_layers(scores, k),
                    scores=scores,
                )
            )
        return found

    @property
    def _num_students(self) -> int:
        """Students that read every batch: one per layer, or a single one in alignment."""
        return 1 if self.stage.is_layerwise else len(self._layers)

    def _count_snapshots(self, k: int, score: Direction, stop_rule: StopRule | None) -> int | None:
        """Number of snapshots up to the end of training; None if training is incomplete."""
        if stop_rule is not None and self._scored:
            first = stop_rule.first([snapshot.layers for snapshot in self.snapshots(k, score)], k)
            if first is not None:
                return first + 1
        return len(self.progress_log.rows) if self.is_complete else None

    @property
    def is_complete(self) -> bool:
        """Whether the log reaches the end of the stage."""
        rows = self.progress_log.rows
        return bool(rows) and rows[-1]["step"] == self.stage.steps

    def _train(self, k: int, score: Direction, stop_rule: StopRule | None) -> None:
        context, stage = self.context, self.stage
        process_group = context.process_group
        candidates = self.load_candidates()
        at = self._train_state.progress
        data = StageDataLoader(context.open_sources(), stage, state=at.data)
        bar = progress(
            total=stage.steps, what=f"{self._folder.name} (one-swap)", unit="step", quiet=context.quiet
        )
        bar.update(at.step)
        worth = self._seconds_worth_a_state()
        if self._checkpointer.interval:
            self._checkpointer.interval = max(self._checkpointer.interval, worth)
        labels = [student.label for student in candidates.train_states]
        divergence = DivergenceStop(self._folder, stage, labels, None, {})

        def log(step: Step, rows: Sequence[Mapping[str, float]], seconds: float) -> None:
            divergence.check(step, rows)

        with (
            bar,
            closing(self._checkpointer),
            StopSignals(single=process_group.world_size == 1) as stop,
            StageLoop(
                stage,
                self._train_state,
                candidates.step,
                process_group,
                stop,
                self._checkpointer if worth < inf else None,
                log,
            ) as loop,
        ):
            for step in loop.steps(prefetch(islice(data, stage.steps - at.step))):
                bar.update(1)
                done = step.number + 1
                if done % self._interval == 0 or done == stage.steps:
                    # A candidate that has diverged has no score.
                    loop.settle()
                    scores = self._gather(candidates.scores()) if self._scored else {}
                    seconds = loop.clock.seconds
                    self.progress_log.append(
                        {"step": done, "tokens": step.tokens, "seconds": seconds, "scores": scores}
                    )
                    loop.is_done = self._count_snapshots(k, score, stop_rule) is not None
            if self.is_complete and not stage.is_layerwise:
                # Nothing extends it, and no other training continues from candidates, as from an alignment.
                self._checkpointer.delete()
            elif self._agreed(loop.clock.seconds >= worth):
                self._checkpointer.save(self._train_state)
                self._checkpointer.wait()

    def _seconds_worth_a_state(self) -> float:
        """Seconds of training that are worth a state; infinite if none is. Warns where its size decides."""
        if not self._saves:
            return inf
        if self.stage.is_layerwise:
            return 0.0
        process_group, students = self.context.process_group, self._train_state.students
        own = STATE_BYTES * sum(x.numel() for each in students for x in each.optimizer_params.values())
        total = torch.tensor(own, dtype=torch.float64, device=self.context.device)
        process_group.all_reduce(total)
        gigabytes = float(total) / 1e9
        warn = _log.warning if process_group.is_main else _log.debug
        what = f"{self._folder.name}: a state of its {self._num_students} students takes {gigabytes:.0f} GB"
        # The state before is deleted when the next one is complete.
        self._folder.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(self._folder).free / 1e9
        if not self._agreed(gigabytes * (1 if self._train_state.progress.step else 2) < free):
            warn("%s and is not saved: %.0f GB of the disk are free for two", what, free)
            return inf
        seconds = TRAINING_PER_SAVING * SECONDS_PER_GB * gigabytes / process_group.world_size
        if seconds > self._checkpointer.interval > 0:
            minutes = seconds / 60
            warn("%s and is saved after %.0f min of training at the earliest (save_state)", what, minutes)
        return seconds

    def _agreed(self, flag: bool) -> bool:
        """What the main process says, in all of them."""
        value = torch.tensor(float(flag), device=self.context.device)
        self.context.process_group.broadcast(value)
        return bool(value)

    def load_candidates(self) -> Candidates:
        """Build the candidates and load their last saved state, if any."""
        if self.candidates is None:
            self.candidates = self._build(self._mine)
            saved = self._checkpointer.progress()
            process_group = self.context.process_group
            self._train_state = TrainState(
                self.candidates.train_states,
                saved,
                is_replica=process_group.world_size == 1,
                has_random=process_group.is_main,
            )
            if saved is not None:
                self._checkpointer.load(self._train_state)
            step = self._train_state.progress.step
            rows = [row for row in self.progress_log.rows if row["step"] <= step]
            self.progress_log.truncate(len(rows))
        return self.candidates

    def drop_state(self) -> None:
        """Delete the saved candidates; the logged scores remain."""
        self._checkpointer.delete()

    def _gather(self, scores: dict[Direction, dict[int, float]]) -> dict[str, list[float | None]]:
        """Scores of every layer from all processes; None for layers that are not scored."""
        scored = set(self._layers)
        gathered: dict[str, list[float | None]] = {}
        for name, mine in scores.items():
            values = torch.zeros(self.context.layers, dtype=torch.float64, device=self.context.device)
            for layer, value in mine.items():
                values[layer] = value
            self.context.process_group.all_reduce(values)
            gathered[name] = [v if i in scored else None for i, v in enumerate(values.tolist())]
        return gathered
