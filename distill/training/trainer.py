"""The trainer: trains the students of one recipe together, in one run folder.

    for each stage:      select parameters, create optimizers, restore the data loader
      for each step:     gradients of all micro-batches, clip, update, log, validate; save at intervals

Students are trained together so that they see identical data and share every teacher forward.
"""

import gc
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from evalsuite.distill.data.exchange import join_exchange
from evalsuite.distill.data.loader import DataSources, StageDataLoader, prefetch, validated
from evalsuite.distill.data.responses import generate_responses
from evalsuite.distill.data.teacher_store import Targets, TeacherStore
from evalsuite.distill.data.workers import default_num_workers
from evalsuite.distill.objectives.end_to_end import KnowledgeDistillation, OnPolicyDistillation
from evalsuite.distill.objectives.forward import set_attention
from evalsuite.distill.recipe import Recipe
from evalsuite.distill.recipe.stage import Stage
from evalsuite.distill.training.builders import (
    TrainingModels,
    build_models,
    check_recipe,
    override_mixers,
    resolve_checkpoints,
    resolve_layer_selection,
)
from evalsuite.distill.training.calibration import calibrate_students
from evalsuite.distill.training.checkpoint import Checkpointer
from evalsuite.distill.training.distributed import ProcessGroup
from evalsuite.distill.training.divergence import (
    DivergenceStop,
    diverged_students,
    record_divergence,
)
from evalsuite.distill.training.estimate import explain_out_of_memory
from evalsuite.distill.training.fsdp import select_strategy
from evalsuite.distill.training.held_out import HeldOutBatches, Validation
from evalsuite.distill.training.kernel_compilation import KernelCompilation
from evalsuite.distill.training.loop import (
    DivergedError,
    StageLoop,
    Step,
    TrainingClock,
    TrainingError,
)
from evalsuite.distill.training.metrics import GpuUsage, MetricsLogger, truncate_metrics
from evalsuite.distill.training.rollouts import RolloutWriter
from evalsuite.distill.training.run_folder import (
    STATE,
    branch_run,
    check_run_dir,
    init_run_dir,
    state_to_branch_from,
)
from evalsuite.distill.training.stop_signals import StopSignals
from evalsuite.distill.training.student_writer import StudentWriter
from evalsuite.distill.training.teacher_stores import open_stores
from evalsuite.distill.training.train_state import Progress, TrainState
from evalsuite.distill.training.train_step import TrainStep
from evalsuite.distill.types import GlobalBatch
from evalsuite.foundation import ConfigError, locked
from evalsuite.foundation.tracking import Tracker, check_tracker, open_tracker
from evalsuite.models.ops.dispatch import kernel_policy

_log = logging.getLogger("evalsuite")


def distill(
    recipe: Recipe,
    out: Path,
    *,
    mixers: Sequence[str] | None = None,
    device: str | None = None,
    quiet: bool = False,
    kernel_configs: Path | None = None,
    autotune: Path | None = None,
    branch_from: Path | None = None,
) -> list[Path]:
    """Train the students of a recipe, or resume an interrupted run.

    Args:
        out: the run folder; the same call with the same recipe resumes.
        mixers: students to train instead of the recipe's.
        device: `cpu`, `cuda` or `cuda:1`; default: CUDA if available.
        kernel_configs: file of measured kernel configurations, preferred over those that are shipped.
        autotune: time the Triton kernels that this file does not contain, and add them to it.
        branch_from: run folder to begin with the state of, if `out` has none (see `branch_run`).

    Returns:
        One Hugging Face folder per student (for an `architecture`, of the model), with lineage.json.

    Raises:
        ConfigError, DataError, CheckpointError: before training starts.
        RunFolderError: `out` holds another run, is in use, or cannot be written; or `branch_from` has no
            state that the recipe's run can begin with.
        TrainingError: a loss became NaN or diverged. Other students of the run are finished first.
        KeyboardInterrupt: after SIGINT or SIGTERM, once the state is saved (see `StopSignals`).
    """
    recipe = resolve_layer_selection(override_mixers(recipe, mixers))
    out = Path(out)
    process_group = ProcessGroup(device)
    is_main = process_group.is_main
    quiet = quiet or not is_main
    compilation = KernelCompilation(
        process_group.device,
        recipe.kernels,
        configs=kernel_configs,
        autotune=autotune,
        is_main=is_main,
        quiet=quiet,
    )
    if is_main:
        if recipe.track is not None:
            check_tracker(recipe.track)
        # Before the lock, which would leave a file in a folder that is refused.
        check_run_dir(out, recipe)
        if branch_from is not None and not (out / STATE).exists():
            state_to_branch_from(Path(branch_from), recipe)
    if _waiting_students(recipe, out):
        # What can be refused is refused before anything is written and weights are read.
        tokenizer = check_recipe(resolve_checkpoints(recipe, out))
        _check_processes(recipe, process_group.world_size)
        stores = open_stores(recipe, tokenizer)
    with locked(out / ".lock", wait=False) if is_main else nullcontext():
        if is_main:
            init_run_dir(out, recipe)
            if branch_from is not None:
                branch_run(Path(branch_from), out, recipe)
        process_group.barrier()
        if waiting := _waiting_students(recipe, out):
            data = generate_responses(
                recipe.data, recipe.teacher, out, process_group, read=recipe.sources_read, quiet=quiet
            )
            data_recipe = recipe.model_copy(update={"data": data})
            with closing(compilation), kernel_policy(recipe.kernels):
                while waiting:
                    compilation.start(fresh_only=True)
                    error = _train(
                        recipe,
                        data_recipe,
                        out,
                        waiting,
                        tokenizer,
                        stores,
                        process_group,
                        compilation,
                        quiet,
                    )
                    if error is None:
                        break
                    if is_main:
                        record_divergence(out, error)
                        _log.warning("%s", error)
                    process_group.barrier()
                    if len(waiting) == 1:
                        raise error
                    # Nothing but the last state is left of this attempt, and the others go on from there.
                    gc.collect()
                    waiting = _waiting_students(recipe, out)
        _raise_if_diverged(recipe, out)
        return [out / label for label in recipe.labels]


def _check_processes(recipe: Recipe, world_size: int) -> None:
    """Raise ConfigError if a stage trains in one process only, or in another number of processes."""
    for stage in recipe.stages:
        if world_size % stage.sequence_parallel:
            raise ConfigError(
                f"stage '{stage.name}': sequence_parallel = {stage.sequence_parallel} needs a multiple of as "
                f"many processes, and this run has {world_size}; start it by torchrun --nproc-per-node "
                f"{stage.sequence_parallel}, or --set stage.{stage.name}.sequence_parallel=1"
            )
        if stage.num_rollouts and world_size > 1:
            raise ConfigError(
                f"stage '{stage.name}': objective {stage.objective} trains in one process, and this run has "
                f"{world_size}; start it without torchrun, or set rollout_share: 0"
            )


def _waiting_students(recipe: Recipe, out: Path) -> list[str]:
    """The students that have not diverged, unless all of them are finished."""
    diverged = diverged_students(out)
    students = [label for label in recipe.labels if label not in diverged]
    return students if any(not (out / label / "lineage.json").exists() for label in students) else []


def _raise_if_diverged(recipe: Recipe, out: Path) -> None:
    """Raise TrainingError, with the way out, if a student has diverged."""
    diverged = diverged_students(out)
    if not diverged:
        return
    found = "; ".join(
        f"{label} has diverged (stage '{each['stage']}', step {each['step']}: {each['reason']})"
        for label, each in diverged.items()
    )
    finished = [label for label in recipe.labels if label not in diverged]
    others = f"; finished: {', '.join(str(out / label) for label in finished)}" if finished else ""
    raise TrainingError(f"{found}{others}. Train it with a lower rate, in a new folder")


def _train(
    recipe: Recipe,
    data_recipe: Recipe,
    out: Path,
    labels: list[str],
    tokenizer: Any,
    stores: Mapping[str, TeacherStore],
    process_group: ProcessGroup,
    compilation: KernelCompilation,
    quiet: bool,
) -> DivergedError | None:
    """Train the students `labels` and write them; return why one of them has diverged, or None.

    Raises:
        As `distill`, but for DivergedError.
    """
    trained = override_mixers(recipe, labels) if recipe.architecture is None else recipe
    num_workers = recipe.num_workers
    if num_workers is None:
        num_workers = default_num_workers(process_group.device.type, process_group.local_world_size)
    # The processes of a run tokenize the documents together.
    share = join_exchange(process_group.rank, process_group.world_size)
    with closing(
        DataSources(data_recipe.data, tokenizer, seed=recipe.seed, num_workers=num_workers, share=share)
    ) as sources:
        with validated(sources, data_recipe.stages):
            models = build_models(
                resolve_checkpoints(trained, out),
                process_group.device,
                tokenizer=tokenizer,
                world_size=process_group.world_size,
                share_frozen=True,
            )
            compilation.import_kernels()
        calibrate_students(data_recipe, models.teacher, models.students, tokenizer, process_group.broadcast)
        with _tracker(recipe, out) if process_group.is_main else nullcontext() as tracker:
            trainer = Trainer(
                recipe, data_recipe, out, models, process_group, quiet, sources, compilation, tracker, stores
            )
            with closing(trainer.checkpointer):
                try:
                    trainer.train()
                except DivergedError as error:
                    # Without the frames, which hold the models.
                    return error.with_traceback(None)
    return None


def _tracker(recipe: Recipe, out: Path) -> AbstractContextManager[Tracker | None]:
    if recipe.track is None:
        return nullcontext()
    name = f"{recipe.name}-{recipe.hash}"
    config = recipe.model_dump(mode="json", exclude={"notes", "variants"})
    return open_tracker(recipe.track, out, project="evalsuite-distill", run=name, config=config)


@dataclass
class Trainer:
    """Runs the stages of one recipe."""

    recipe: Recipe
    data_recipe: Recipe
    """The same, with generated responses as local files (see `generate_responses`)."""
    out: Path
    models: TrainingModels
    process_group: ProcessGroup
    quiet: bool
    sources: DataSources
    compilation: KernelCompilation
    tracker: Tracker | None = None
    stores: Mapping[str, TeacherStore] = field(default_factory=dict)
    """Stage → the teacher store that it reads."""

    def __post_init__(self) -> None:
        recipe, models, process_group = self.recipe, self.models, self.process_group
        trainable_sets = {stage.trainable_set for stage in recipe.stages}
        self.students = [
            select_strategy(model)(label, model, models.dtype, trainable_sets)
            for label, model in models.students.items()
        ]
        interval = recipe.checkpoint.state_interval_seconds
        self.checkpointer = Checkpointer(self.out / STATE, process_group, interval)
        progress = self.checkpointer.progress()
        self._resumes = progress is not None
        # A state that is resumed brings its own.
        torch.manual_seed(recipe.seed)
        self.train_state = TrainState(self.students, progress, has_random=process_group.is_main)
        self.writer = StudentWriter(recipe, self.out, models, self.progress, process_group)
        if process_group.is_main:
            truncate_metrics(self.out, self.progress.total_tokens)

    @property
    def progress(self) -> Progress:
        """How far the run is."""
        return self.train_state.progress

    @cached_property
    def _held_out_batches(self) -> HeldOutBatches:
        """Of the remaining stages."""
        assert self.recipe.validation is not None
        return HeldOutBatches(
            self.data_recipe,
            self.recipe.stages[self.progress.stage :],
            self.models.tokenizer,
            self.recipe.validation.tokens,
            num_workers=self.sources.num_workers,
        )

    def train(self) -> None:
        """Run the remaining stages, then write the students."""
        with StopSignals(single=self.process_group.world_size == 1) as stop:
            for number, stage in enumerate(self.recipe.stages):
                if number >= self.progress.stage:
                    with explain_out_of_memory(
                        self.recipe, stage, self.models, self.process_group.world_size
                    ):
                        self.train_stage(stage, number, stop)
        self._resume()
        self.checkpointer.wait()
        for student in self.students:
            self.writer.write_finished(student)

    def _resume(self) -> None:
        """Load the saved state, if there is one and it has not been loaded."""
        if self._resumes:
            self.checkpointer.load(self.train_state)
            self._resumes = False

    def train_stage(self, stage: Stage, number: int, stop: StopSignals) -> None:
        """Train the students on stage `number`, from the saved state on, and save the state at its end."""
        recipe, students, process_group = self.recipe, self.students, self.process_group
        self.compilation.start(fresh_only=True)
        for student in students:
            student.begin_stage(stage)
        self._resume()
        if not any(each.loads_teacher for each in recipe.stages[number:]):
            self.models.teacher = None
        if self.models.teacher is not None:
            set_attention(self.models.teacher, stage.teacher_attention)
        train_step = TrainStep(
            self.models.teacher, students, stage, process_group, log_grad_norms=recipe.log_grad_norms
        )
        labels = [student.label for student in students]
        divergence = DivergenceStop(self.out, stage, labels, recipe.divergence, self.progress.divergence)
        usage, validation = None, None
        if process_group.device.type == "cuda":
            flops = stage.flops_per_token(*self.models.costs)
            usage = GpuUsage(flops, process_group.world_size, process_group.device_name)
        metrics = MetricsLogger(
            folder=self.out,
            stage=stage,
            labels=labels,
            start=self.progress.step,
            title=f"{stage.name} ({number + 1}/{len(recipe.stages)})",
            quiet=self.quiet,
            is_main=process_group.is_main,
            tracker=self.tracker,
            usage=usage,
        )
        if recipe.validation is not None:
            every, device = recipe.validation.every_steps, process_group.device
            validation = Validation(every, stage, self.models, students, device, self._held_out_batches)

        def log(step: Step, rows: Sequence[Mapping[str, float]], seconds: float) -> None:
            divergence.check(step, rows)
            metrics.log(step, rows, seconds)

        loop = StageLoop(
            stage, self.train_state, train_step, process_group, stop, self.checkpointer, log, metrics.flush
        )
        with metrics, loop:
            for step in loop.steps(self._batches(stage, train_step, loop.clock)):
                metrics.advance()
                if validation is not None:
                    with loop.clock.paused():
                        step.measured = validation.measure(step.number + 1)
                if self._is_checkpoint_due(stage, step):
                    loop.settle()
                    with loop.clock.paused():
                        self._write_intermediate(stage)
        self.progress.end_stage()
        self.compilation.save_timings()
        for student in students:
            student.end_stage()
        if recipe.checkpoint.save_each_stage and number + 1 < len(recipe.stages):
            self._write_intermediate(stage)
        self.checkpointer.save(self.train_state)

    def _batches(self, stage: Stage, train_step: TrainStep, clock: TrainingClock) -> Iterator[GlobalBatch]:
        """The remaining batches of a stage, whose kernels are compiled before the first one."""
        progress, process_group = self.progress, self.process_group
        targets = self._targets(stage)
        loader = StageDataLoader(
            self.sources,
            stage,
            state=progress.data,
            previous=progress.sources,
            rank=process_group.rank // stage.sequence_parallel,
            world_size=process_group.world_size // stage.sequence_parallel,
            pin_memory=process_group.device.type == "cuda",
            targets=targets,
            with_prompts=True,
        )
        rollouts = self._rollouts(stage)
        remaining = islice(loader, stage.steps - progress.step)
        for index, batch in enumerate(prefetch(remaining, collective=process_group.world_size > 1)):
            if rollouts is not None:
                batch = rollouts.add(batch, progress.step)
            if index == 0:
                with clock.paused():
                    self.compilation.compile(partial(train_step.trial, batch), process_group.barrier)
            yield batch
            if index == 0:
                self.compilation.save_timings()

    def _rollouts(self, stage: Stage) -> RolloutWriter | None:
        """What lets students write sequences of a stage; None if they do not.

        Raises:
            ConfigError: a student cannot generate.
        """
        if not stage.num_rollouts:
            return None
        assert isinstance(stage, OnPolicyDistillation)
        students = {student.label: student.model for student in self.students}
        saved = {} if stage.rollout_every == 1 else self.progress.rollouts
        return RolloutWriter(stage, students, self.models.tokenizer, self.recipe.seed, saved)

    def _targets(self, stage: Stage) -> Targets | None:
        """What reads the teacher's output on a stage's sequences from its store; None without one.

        Raises:
            ConfigError: the stage was begun with another store.
        """
        if stage.name not in self.stores:
            return None
        assert isinstance(stage, KnowledgeDistillation)
        store = self.stores[stage.name]
        found = store.id(stage.steps * stage.batch_size)
        begun_with = self.progress.stores.setdefault(stage.name, found)
        if found != begun_with:
            raise ConfigError(
                f"stage '{stage.name}', teacher_store {store.folder}: is another store ({found}) than the "
                f"one that this run has begun with ({begun_with}); name that one, or start in a new folder"
            )
        return partial(store.targets, k=stage.stored_k)

    def _is_checkpoint_due(self, stage: Stage, step: Step) -> bool:
        """Whether to write the students after a step; the end of a stage may have its own checkpoint."""
        config = self.recipe.checkpoint
        if step.number + 1 == stage.steps and (config.save_each_stage or stage is self.recipe.stages[-1]):
            return False
        return config.is_due(step.tokens - stage.tokens_per_step, step.tokens)

    def _write_intermediate(self, stage: Stage) -> None:
        for student in self.students:
            self.writer.write_intermediate(student, stage)
