"""Students in Hugging Face folders: intermediate ones during training, and the finished ones."""

import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor
from torch.distributed.tensor import DTensor

from evalsuite.distill.recipe import Recipe
from evalsuite.distill.recipe.stage import Stage
from evalsuite.distill.training.builders import TrainingModels
from evalsuite.distill.training.distributed import ProcessGroup, full_tensor
from evalsuite.distill.training.loop import DivergedError
from evalsuite.distill.training.metrics import METRICS, loss_curve
from evalsuite.distill.training.model_card import FILE as CARD
from evalsuite.distill.training.model_card import model_card
from evalsuite.distill.training.provenance import build_lineage
from evalsuite.distill.training.train_state import Progress
from evalsuite.distill.training.train_step import StudentTrainState
from evalsuite.distill.types import CausalLM
from evalsuite.foundation import RunFolderError, read_jsonl, write_json, write_jsonl, write_text
from evalsuite.models.checkpoints.load import without_progress_bars
from evalsuite.models.checkpoints.location import TRAINING


@dataclass(frozen=True)
class StudentWriter:
    """Writes the students of a run, with their lineage."""

    recipe: Recipe
    out: Path
    models: TrainingModels
    progress: Progress
    process_group: ProcessGroup

    def write_finished(self, student: StudentTrainState) -> None:
        """Write a student to the run folder, with its loss curve; a collective call."""
        self._write(student, self.out / student.label, read_jsonl(self.out / METRICS))

    def write_intermediate(self, student: StudentTrainState, stage: Stage) -> None:
        """Write a student as it is now: a point on the loss curve that the finished one stores."""
        name = f"{stage.name}-{self.progress.total_tokens}"
        self._write(student, self.out / "checkpoints" / student.label / name)

    def _write(
        self, student: StudentTrainState, folder: Path, metrics: Iterable[Mapping[str, Any]] = ()
    ) -> None:
        self._check_finite(student)
        is_main, weights = self.process_group.is_main, {}
        if is_main or student.sharded:
            for name, tensor in student.weights().items():
                whole = full_tensor(tensor.detach().to(self.models.dtype))
                if is_main:
                    # On the CPU: a GPU that trains a shard need not have room for all weights.
                    weights[name] = whole.cpu()
        if is_main:
            device = self.process_group.device_name
            lineage = build_lineage(self.recipe, student.label, self.models, self.progress, device)
            curve, card = loss_curve(metrics, student.label), model_card(lineage, self.recipe)
            save_checkpoint(folder, student.model, weights, self.models.tokenizer, lineage, curve, card)
        self.process_group.barrier()

    def _check_finite(self, student: StudentTrainState) -> None:
        """Check the weights as they would be stored; a collective call.

        Raises:
            DivergedError: one of them is not finite.
        """
        invalid = torch.zeros((), device=self.process_group.device)
        for tensor in student.weights().values():
            local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
            invalid += ~local.detach().to(self.models.dtype).isfinite().all()
        self.process_group.all_reduce(invalid)
        if invalid:
            progress = self.progress
            # The end of a stage counts as the start of the next one.
            ended = progress.step == 0
            stage = self.recipe.stages[progress.stage - ended]
            raise DivergedError(
                student.label,
                stage.name,
                stage.steps if ended else progress.step,
                progress.total_tokens,
                "its weights are not finite",
                f"Reduce 'stage.{stage.name}.lr' (now {stage.lr:g}), and start a new run",
            )


def save_checkpoint(
    folder: Path,
    model: CausalLM,
    weights: Mapping[str, Tensor],
    tokenizer: Any,
    lineage: dict[str, Any],
    loss_curve: Sequence[Mapping[str, Any]] = (),
    card: str = "",
) -> None:
    """Write a Hugging Face folder atomically.

    Args:
        weights: the model's parameters by name, all of one dtype.
        loss_curve: rows of training.jsonl; empty: no such file.
        card: text of README.md; empty: no such file.

    Raises:
        RunFolderError: the disk is full or the folder cannot be written.
    """
    partial = folder.with_name(f".{folder.name}.partial")
    try:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        stored = model.state_dict()
        buffers = {name: tensor for name, tensor in model.named_buffers() if name in stored}
        config_dtype, model.config.dtype = model.config.dtype, next(iter(weights.values())).dtype
        with without_progress_bars():
            model.save_pretrained(str(partial), state_dict={**buffers, **weights})
        model.config.dtype = config_dtype
        tokenizer.save_pretrained(partial)
        for path in partial.rglob("*.safetensors"):
            with open(path, "rb") as file:
                os.fsync(file.fileno())
        write_json(partial / "lineage.json", lineage)
        if card:
            write_text(partial / CARD, card)
        if loss_curve:
            write_jsonl(partial / TRAINING, loss_curve)
        shutil.rmtree(folder, ignore_errors=True)
        os.replace(partial, folder)
    except Exception as error:
        shutil.rmtree(partial, ignore_errors=True)
        # safetensors and tokenizers report a full disk by exceptions of their own, the latter by a bare
        # Exception; both quote the number of the operating system's error.
        if not isinstance(error, (OSError, SafetensorError)) and "(os error " not in str(error):
            raise
        raise RunFolderError(f"{folder}: the checkpoint cannot be written ({error})") from error
