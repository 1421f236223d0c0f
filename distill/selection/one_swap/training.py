"""One-swap training: candidates train together, are scored at snapshots, and stop when the top K is stable.

The scores of all layers are logged at every snapshot, so that a later call with another budget extends this
training, or needs none if the earlier one went further.
"""

from collections.abc import Callable, Sequence
from contextlib import closing
from itertools import islice
from math import nan
from typing import Any

import torch

from evalsuite.distill.data.loader import StageDataLoader, prefetch
from evalsuite.distill.recipe.stage import Stage
from evalsuite.distill.selection.context import ProgressLog, SelectionContext
from evalsuite.distill.selection.layer_sets import top_layers
from evalsuite.distill.selection.one_swap.candidates import (
    AlignedCandidates,
    Candidates,
    DistilledCandidates,
)
from evalsuite.distill.selection.options import shorten_alignment_stage
from evalsuite.distill.selection.result import Snapshot
from evalsuite.distill.training.checkpoint import Checkpointer
from evalsuite.distill.training.divergence import DivergenceStop
from evalsuite.distill.training.interface import Callback, Step, TrainingClock
from evalsuite.distill.training.loop import TrainingLoop
from evalsuite.distill.training.stop_signals import StopSignals
from evalsuite.distill.training.train_state import TrainState
from evalsuite.foundation import ConfigError, progress
from evalsuite.models import StudentForCausalLM


class OneSwapTraining:
    """One stage of training for all candidates.

    Args:
        build: layers → candidates; called only if training is needed.
        name: name of the progress log.
        about: settings besides the recipe that determine the scores.
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
        scored: bool = True,
        layers: Sequence[int] | None = None,
    ) -> None:
        self.context, self.stage, self._build, self._scored = context, stage, build, scored
        process_group = context.process_group
        self._layers = list(range(context.layers)) if layers is None else list(layers)
        self._mine = self._layers[process_group.rank :: process_group.world_size]
        self.seconds = 0.0
        """Training and scoring time up to the end of the last `run`."""
        about = {
            "stage": stage.model_dump(mode="json"),
            "snapshot_interval": context.options.snapshot_interval,
            "held_out": context.options.held_out,
            "all_linear": context.options.all_linear,
            "all_linear_stages": context.options.all_linear_stages,
            **about,
        }
        self.progress_log: ProgressLog = context.progress_log(name, about)
        self._folder = self.progress_log.path.parent
        self.candidates: Candidates | None = None
        self._checkpointer = Checkpointer(self._folder / "state", process_group)

    def run(self, k: int, score: str = "", *, early_stop: bool = False) -> list[Snapshot]:
        """Train to the end of the stage or, with `early_stop`, until the top-K set by `score` is stable.

        Returns:
            The snapshots up to that point.
        """
        count = self._count_snapshots(k, score, early_stop)
        if count is None:
            self._train(k, score, early_stop)
            count = self._count_snapshots(k, score, early_stop)
            assert count is not None
        self.seconds = float(self.progress_log.rows[count - 1]["seconds"])
        return self.snapshots(k, score)[:count] if self._scored else []

    def snapshots(self, k: int, score: str) -> list[Snapshot]:
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

    def _count_snapshots(self, k: int, score: str, early_stop: bool) -> int | None:
        """Number of snapshots up to the end of training; None if training is incomplete."""
        rows = self.progress_log.rows
        if early_stop and self._scored:
            sets = [snapshot.layers for snapshot in self.snapshots(k, score)]
            first = self.context.options.rule.first(sets, k)
            if first is not None:
                return first + 1
        return len(rows) if rows and rows[-1]["step"] == self.stage.steps else None

    def _train(self, k: int, score: str, early_stop: bool) -> None:
        context, stage = self.context, self.stage
        process_group = context.process_group
        candidates = self.load_candidates()
        at = self._train_state.progress
        data = StageDataLoader(context.open_sources(), stage, state=at.data)
        # Aligned states are small, and later trainings start from them.
        saves = context.options.save_state or stage.is_layerwise
        clock = TrainingClock(at.seconds)
        bar = progress(
            total=stage.steps, what=f"{self._folder.name} (one-swap)", unit="step", quiet=context.quiet
        )
        bar.update(at.step)
        labels = [student.label for student in candidates.train_states]

        def snapshot(step: int, tokens: int) -> bool:
            """Score the candidates; return whether training is complete."""
            scores = self._gather(candidates.scores()) if self._scored else {}
            self.progress_log.append(
                {"step": step, "tokens": tokens, "seconds": clock.seconds, "scores": scores}
            )
            return self._count_snapshots(k, score, early_stop) is not None

        with (
            bar,
            closing(self._checkpointer),
            StopSignals(single=process_group.world_size == 1) as stop,
        ):
            TrainingLoop(
                stage,
                self._train_state,
                candidates.step,
                process_group,
                self._checkpointer if saves else None,
                [
                    DivergenceStop(self._folder, stage, labels, None, {}),
                    _Snapshots(snapshot, bar.update, context.options.snapshot_interval, stage.steps),
                ],
                clock,
                stop,
                save_interval=context.recipe.checkpoint.state_interval_seconds,
            ).run(prefetch(islice(data, stage.steps - at.step)))
            if saves:
                self._checkpointer.save(self._train_state)
                self._checkpointer.wait()

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

    def _gather(self, scores: dict[str, dict[int, float]]) -> dict[str, list[float | None]]:
        """Scores of every layer from all processes; None for layers that are not scored."""
        scored = set(self._layers)
        gathered = {}
        for name, mine in scores.items():
            values = torch.zeros(self.context.layers, dtype=torch.float64, device=self.context.device)
            for layer, value in mine.items():
                values[layer] = value
            self.context.process_group.all_reduce(values)
            gathered[name] = [v if i in scored else None for i, v in enumerate(values.tolist())]
        return gathered


class _Snapshots(Callback):
    """Calls `snapshot` at intervals and after the last step, with the numbers of steps and tokens, until it
    returns True."""

    def __init__(
        self,
        snapshot: Callable[[int, int], bool],
        advance: Callable[[int], object],
        interval: int,
        last: int,
    ) -> None:
        self._snapshot, self._advance, self._interval, self._last = snapshot, advance, interval, last

    def after_step(self, step: Step) -> None:
        """Advance the progress bar."""
        self._advance(1)

    def waits_for(self, step: Step) -> bool:
        """A candidate that has diverged has no score."""
        return (step.number + 1) % self._interval == 0 or step.number + 1 == self._last

    def settled(self, step: Step) -> None:
        self.is_done = self._snapshot(step.number + 1, step.tokens)


ADD, REMOVE = "add", "remove"


def alignment_stage(context: SelectionContext) -> Stage:
    """Return the shortened alignment stage. Raises ConfigError if there is none."""
    stage = shorten_alignment_stage(context.training_recipe, context.options)
    if stage is None:
        raise ConfigError(
            "stage-1 selectors score layers after alignment: the recipe needs an alignment stage, and "
            "--option align_tokens must be above 0"
        )
    return stage


def alignment_training(context: SelectionContext, stage: Stage, *, scored: bool) -> OneSwapTraining:
    """Stage 1 of all candidates, scored at snapshots for the stage-1 selectors."""

    def build(layers: Sequence[int]) -> Candidates:
        return AlignedCandidates(context, stage, layers)

    return OneSwapTraining(context, stage, build, name="align", about={"scored": scored}, scored=scored)


def distillation_training(
    context: SelectionContext, direction: str, before: Sequence[int] = ()
) -> OneSwapTraining:
    """Stage 2 of one student per layer; layers `before` are swapped in all of them."""
    stage, align = context.kd_stage, shorten_alignment_stage(context.training_recipe, context.options)

    def build(layers: Sequence[int]) -> Candidates:
        return DistilledCandidates(
            context, stage, direction, aligned_all_linear(context, align), layers, before
        )

    about: dict[str, Any] = {"align": None if align is None else align.model_dump(mode="json")}
    if before:
        about["before"] = sorted(before)
    candidates = [layer for layer in range(context.layers) if layer not in before]
    return OneSwapTraining(context, stage, build, name=f"kd-{direction}", about=about, layers=candidates)


def aligned_all_linear(context: SelectionContext, stage: Stage | None) -> StudentForCausalLM:
    """Return the all-linear student after shortened alignment."""
    if stage is None:
        return context.all_linear
    training = _alignment_run(context, stage)
    training.run(1, ADD)
    candidates: Any = training.load_candidates()
    return context.prepare(candidates.model)


def alignment_seconds(context: SelectionContext, stage: Stage | None) -> float:
    """Time of the alignment that stage 2 started from."""
    if stage is None:
        return 0.0
    rows = _alignment_run(context, stage).progress_log.rows
    return float(rows[-1]["seconds"]) if rows else 0.0


def _alignment_run(context: SelectionContext, stage: Stage) -> OneSwapTraining:
    """Return the completed alignment, scored or not; the unscored one if neither is complete."""
    runs = [alignment_training(context, stage, scored=scored) for scored in (True, False)]
    logs = [run.progress_log.rows for run in runs]
    done = (run for run, rows in zip(runs, logs, strict=True) if rows and rows[-1]["step"] == stage.steps)
    return next(done, runs[1])
