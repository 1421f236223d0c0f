"""The trainer: one recipe, one folder, one or more students that share every batch and teacher forward.

    for each stage:      choose parameters, make optimizers, open the data where it stands
      for each step:     gradients of all micro-batches, clip, update, log; save the state now and then

Students are trained together so that they see identical data and the teacher runs once for all of them.
"""

import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from itertools import islice
from pathlib import Path
from types import FrameType

import torch
from torch import Tensor

from evalsuite.distill.batches import StageData, check_data, read_ahead
from evalsuite.distill.language_model import LanguageModel
from evalsuite.distill.lineage import lineage
from evalsuite.distill.parallel import Parallel, whole
from evalsuite.distill.readers import Reader
from evalsuite.distill.recipe import Recipe, Stage
from evalsuite.distill.responses import with_responses
from evalsuite.distill.saving import (
    Progress,
    claim,
    load_state,
    restore_optimizers,
    restore_weights,
    save_checkpoint,
    save_state,
)
from evalsuite.distill.setup import Cast, assemble, with_mixers, with_selection, with_starts
from evalsuite.distill.step import Stepper, Trainee
from evalsuite.distill.watch import Watch, cut_metrics, training_rows
from evalsuite.foundation import ConfigError, locked, read_jsonl


def distill(
    recipe: Recipe,
    out: Path,
    *,
    mixers: Sequence[str] | None = None,
    device: str | None = None,
    quiet: bool = False,
) -> list[Path]:
    """Make the students of a recipe, or go on making them where an earlier call was stopped.

    Args:
        out: the run's folder; the same call with the same recipe resumes.
        mixers: students to make instead of the recipe's.
        device: `cpu`, `cuda`, `cuda:1`; default: CUDA if there is one.

    Returns:
        One Hugging Face folder per student (for an `architecture`, of the model), with lineage.json.

    Raises:
        ConfigError, DataError, CheckpointError: before anything is trained.
        RunFolderError: `out` holds another run, is in use, or cannot be written.
        TrainingError: a loss became NaN or diverged.
        KeyboardInterrupt: after SIGINT or SIGTERM, once the state is saved.
    """
    recipe = with_selection(with_mixers(recipe, mixers))
    out = Path(out)
    parallel = Parallel(device)
    if parallel.main:
        claim(out, recipe)
    with locked(out / ".lock", wait=False) if parallel.main else nullcontext():
        parallel.wait()
        folders = [out / label for label in recipe.labels]
        if all((folder / "lineage.json").exists() for folder in folders):
            return folders
        if parallel.main:
            with_responses(recipe, out, parallel.device, quiet=quiet)
        parallel.wait()
        readable = with_responses(recipe, out, parallel.device, quiet=quiet)
        cast = assemble(with_starts(recipe, out), parallel.device)
        readers = check_data(readable, cast.tokenizer)
        Run(recipe, readable, out, cast, parallel, quiet, readers).go()
        return folders


class Run:
    """One recipe on its way through its stages.

    `readable` is the same recipe with every source ready to read (see `responses.with_responses`).
    """

    def __init__(
        self,
        recipe: Recipe,
        readable: Recipe,
        out: Path,
        cast: Cast,
        parallel: Parallel,
        quiet: bool,
        readers: dict[str, Reader],
    ) -> None:
        self.recipe, self.readable, self.out = recipe, readable, out
        self.cast, self.parallel, self.quiet, self.readers = cast, parallel, quiet, readers
        self.trainees = [
            trainee_class(recipe, model, parallel)(label, model, cast.dtype)
            for label, model in cast.students.items()
        ]
        self.at = Progress()
        self.saved: dict[str, Tensor] = {}
        found = load_state(out)
        if found is not None:
            self.at, self.saved = found
            for trainee in self.trainees:
                restore_weights(trainee.masters.weights, trainee.label, self.saved)
                trainee.masters.publish(trainee.masters.weights)
            torch.set_rng_state(self.saved["random"])
        if parallel.main:
            cut_metrics(out, self.at.total)

    def go(self) -> None:
        """Run the stages that are left, then write the students."""
        with _stop_requests() as stop:
            for number, stage in enumerate(self.recipe.stages):
                if number >= self.at.stage:
                    self._stage(stage, number, stop)
        for trainee in self.trainees:
            self._checkpoint(trainee, self.out / trainee.label, finished=True)

    def _stage(self, stage: Stage, number: int, stop: list[int]) -> None:
        recipe, at, parallel = self.recipe, self.at, self.parallel
        for trainee in self.trainees:
            trainee.enter(stage)
            restore_optimizers(trainee.optimized, trainee.label, trainee.optimizers, self.saved)
        self.saved = {}
        self._prepare_teacher(stage)
        steps = StageData(
            self.readable,
            stage,
            self.cast.tokenizer,
            state=at.data,
            rank=parallel.rank,
            world=parallel.world,
            pin=parallel.device.type == "cuda",
            readers=self.readers,
        )
        stepper = Stepper(self.cast.teacher, self.trainees, stage, parallel)
        watch = Watch(
            self.out,
            stage,
            [trainee.label for trainee in self.trainees],
            ("loss",) if stage.aligns else ("loss", "ce", "kl"),
            start=at.step,
            seconds=at.seconds,
            what=f"{stage.name} ({number + 1}/{len(recipe.stages)})",
            quiet=self.quiet,
            main=parallel.main,
            writer=self.cast.writer(self.out) if recipe.saving.tensorboard and parallel.main else None,
        )
        last_save = time.monotonic()
        with watch:
            for data in read_ahead(islice(steps, stage.steps - at.step)):
                losses, norms, factor = stepper.step(data, at.step)
                at.step += 1
                at.data = data.state
                at.tokens[stage.name] = at.tokens.get(stage.name, 0) + data.tokens
                watch.record(at.step - 1, at.total, factor, losses, norms, data.micro_batches[0])
                self._checkpoint_on_the_way(stage, watch)
                stopping = parallel.any(bool(stop))
                if stopping or parallel.any(time.monotonic() - last_save >= recipe.saving.state_seconds):
                    self._save(watch)
                    last_save = time.monotonic()
                if stopping:
                    raise KeyboardInterrupt
            watch.settle()
            watch.pause()
            at.stage, at.step, at.data, at.seconds = number + 1, 0, None, watch.seconds
        for trainee in self.trainees:
            trainee.leave()
        if recipe.saving.stage_checkpoints and number + 1 < len(recipe.stages):
            for trainee in self.trainees:
                self._checkpoint(trainee, self._way(trainee, stage))
        self._save_state()

    def _prepare_teacher(self, stage: Stage) -> None:
        """Attention matrices exist only in the eager form; everything else takes the fast one."""
        if self.cast.teacher is not None:
            eager = stage.objective == "matrix_mixing"
            self.cast.teacher.set_attn_implementation("eager" if eager else "sdpa")

    def _save(self, watch: Watch) -> None:
        """Save the state in the middle of a stage, unless the losses say that it is not worth keeping."""
        watch.settle()
        watch.pause()
        self.at.seconds = watch.seconds
        self._save_state()
        watch.go()

    def _save_state(self) -> None:
        if self.parallel.main or any(trainee.sharded for trainee in self.trainees):
            save_state(
                self.out,
                self.at,
                {trainee.label: trainee.weights() for trainee in self.trainees},
                {trainee.label: trainee.moments() for trainee in self.trainees},
                main=self.parallel.main,
            )
        self.parallel.wait()

    def _checkpoint_on_the_way(self, stage: Stage, watch: Watch) -> None:
        if self.at.step == stage.steps:
            return
        if self.recipe.saving.due(self.at.total - stage.batch * stage.length, self.at.total):
            watch.pause()
            for trainee in self.trainees:
                self._checkpoint(trainee, self._way(trainee, stage))
            watch.go()

    def _way(self, trainee: Trainee, stage: Stage) -> Path:
        return self.out / "checkpoints" / trainee.label / f"{stage.name}-{self.at.total}"

    def _checkpoint(self, trainee: Trainee, folder: Path, *, finished: bool = False) -> None:
        if self.parallel.main or trainee.sharded:
            dtype = self.cast.dtype
            weights = {name: whole(tensor).to(dtype) for name, tensor in trainee.weights().items()}
        if self.parallel.main:
            mixers = getattr(trainee.model.config, "mixers", None)
            # Checkpoints on the way are points of the curve that the finished student brings along.
            metrics = read_jsonl(self.out / "metrics.jsonl") if finished else ()
            save_checkpoint(
                folder,
                trainee.model,
                weights,
                self.cast.tokenizer,
                lineage(
                    self.recipe,
                    label=trainee.label,
                    mixers=mixers,
                    teacher_weights=self.cast.teacher_weights,
                    tokens=self.at.tokens,
                    device=self.parallel.device_name,
                    precision=self.cast.precision,
                ),
                dtype,
                training_rows(metrics, trainee.label),
            )
        self.parallel.wait()


SHARDED_FROM = 3_000_000_000
"""Parameters from which students are sharded over several GPUs unless the recipe says otherwise."""


def trainee_class(recipe: Recipe, model: LanguageModel, parallel: Parallel) -> type[Trainee]:
    """Whether a student is trained whole on every GPU, or in shards.

    Raises:
        ConfigError: sharding with Muon, whose update needs whole matrices.
    """
    size = sum(parameter.numel() for parameter in model.parameters())
    wanted = recipe.sharding == "full" or (recipe.sharding == "auto" and size >= SHARDED_FROM)
    if parallel.world == 1 or not wanted:
        return Trainee
    if any(stage.optimizer.kind == "muon" and not stage.aligns for stage in recipe.stages):
        raise ConfigError("sharding: Muon updates whole matrices; use adamw, or --set sharding=none")
    from evalsuite.distill.sharding import ShardedTrainee

    return ShardedTrainee


@contextmanager
def _stop_requests() -> Iterator[list[int]]:
    """Yield a list that SIGTERM and SIGINT fill; a second SIGINT interrupts at once."""
    requests: list[int] = []

    def request(number: int, frame: FrameType | None) -> None:
        if requests and number == signal.SIGINT:
            raise KeyboardInterrupt
        requests.append(number)

    try:
        before = {number: signal.signal(number, request) for number in (signal.SIGTERM, signal.SIGINT)}
    except ValueError:
        # Not in the main thread, where signals cannot be caught: a stop then loses what is unsaved.
        yield requests
        return
    try:
        yield requests
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
