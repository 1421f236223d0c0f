"""Students in Hugging Face folders: intermediate ones during training, and the finished ones."""

from pathlib import Path

import torch
from torch.distributed.tensor import DTensor

from evalsuite.distill.data.mixture import distinct_tokens
from evalsuite.distill.recipe import Recipe
from evalsuite.distill.recipe.stage import Stage
from evalsuite.distill.training.builders import TrainingModels
from evalsuite.distill.training.distributed import ProcessGroup, full_tensor
from evalsuite.distill.training.loop import DivergedError
from evalsuite.distill.training.metrics import METRICS, loss_curve
from evalsuite.distill.training.model_card import model_card
from evalsuite.distill.training.provenance import build_lineage
from evalsuite.distill.training.run_folder import save_checkpoint
from evalsuite.distill.training.train_state import Progress
from evalsuite.distill.training.train_step import StudentTrainState
from evalsuite.foundation import read_jsonl


class StudentWriter:
    """Writes the students of a run, with their lineage."""

    def __init__(
        self,
        recipe: Recipe,
        out: Path,
        models: TrainingModels,
        progress: Progress,
        process_group: ProcessGroup,
    ) -> None:
        self._recipe, self._out, self._models = recipe, out, models
        self._progress, self._process_group = progress, process_group

    def write_finished(self, student: StudentTrainState) -> None:
        """Write a student to the run folder, with its loss curve; a collective call."""
        self._write(student, self._out / student.label, finished=True)

    def write_intermediate(self, student: StudentTrainState, stage: Stage) -> None:
        """Write a student as it is now; a collective call."""
        name = f"{stage.name}-{self._progress.total_tokens}"
        self._write(student, self._out / "checkpoints" / student.label / name)

    def _write(self, student: StudentTrainState, folder: Path, *, finished: bool = False) -> None:
        dtype, models, progress = self._models.dtype, self._models, self._progress
        self._check_finite(student)
        weights = {}
        if self._process_group.is_main or student.sharded:
            for name, tensor in student.weights().items():
                whole = full_tensor(tensor.detach().to(dtype))
                if self._process_group.is_main:
                    # On the CPU: a GPU that trains a shard need not have room for all weights.
                    weights[name] = whole.cpu()
        if self._process_group.is_main:
            # Intermediate checkpoints are points on the loss curve that the finished student stores.
            metrics = read_jsonl(self._out / METRICS) if finished else ()
            config = student.model.config
            is_transformer = getattr(config, "is_teacher", True)
            lineage = build_lineage(
                self._recipe,
                label=student.label,
                mixers=None if is_transformer else config.mixers,
                windows={} if is_transformer else config.windows,
                teacher_weights_id=models.teacher_weights_id,
                teacher_revision=models.teacher_revision,
                teacher_ancestors=models.teacher_ancestors,
                ancestors=models.ancestors[student.label],
                tokens=progress.tokens,
                distinct=distinct_tokens(progress.current_sources),
                sources=progress.current_sources,
                device=self._process_group.device_name,
                precision=models.precision,
            )
            save_checkpoint(
                folder,
                student.model,
                weights,
                models.tokenizer,
                lineage,
                dtype,
                loss_curve(metrics, student.label),
                model_card(lineage, self._recipe),
            )
        self._process_group.barrier()

    def _check_finite(self, student: StudentTrainState) -> None:
        """Check the weights as they would be stored; a collective call.

        Raises:
            DivergedError: one of them is not finite.
        """
        invalid = torch.zeros((), device=self._process_group.device)
        for tensor in student.weights().values():
            local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
            invalid += ~local.detach().to(self._models.dtype).isfinite().all()
        self._process_group.all_reduce(invalid)
        if invalid:
            progress, stages = self._progress, self._recipe.stages
            # The end of a stage counts as the start of the next one.
            ended = progress.step == 0
            stage = stages[progress.stage - ended]
            raise DivergedError(
                student.label,
                stage.name,
                stage.steps if ended else progress.step,
                progress.total_tokens,
                "its weights are not finite",
                f"Reduce 'stage.{stage.name}.lr' (now {stage.lr:g}), and start a new run",
            )
