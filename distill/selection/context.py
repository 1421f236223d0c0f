"""Shared state of selectors: teacher, all-linear student, held-out slice, each created on first use.

    work/all-linear-<id>/              the all-linear student, distilled by the recipe (resumable)
    work/<training or selector>-<id>/  progress logs and states

One work folder serves all selectors of a teacher, so that the all-linear student is trained once.
"""

from functools import cached_property
from pathlib import Path
from typing import Any

from evalsuite.distill.data.loader import DataSources
from evalsuite.distill.data.responses import generate_responses
from evalsuite.distill.objectives.end_to_end import KnowledgeDistillation
from evalsuite.distill.objectives.forward import set_attention
from evalsuite.distill.recipe import Recipe
from evalsuite.distill.selection.options import ContextOptions
from evalsuite.distill.training.builders import TrainingModels, build_models, check_recipe
from evalsuite.distill.training.distributed import ProcessGroup
from evalsuite.distill.training.held_out import HeldOut, held_out_batches, without_held_out
from evalsuite.distill.types import softmax_layer_indices
from evalsuite.foundation import (
    CheckpointError,
    ConfigError,
    RunFolderError,
    append_jsonl,
    content_hash,
    nearest,
    read_jsonl,
    write_jsonl,
)
from evalsuite.models import StudentForCausalLM, describe_checkpoint, load_checkpoint
from evalsuite.models.decoder.families import FAMILIES

SCHEMA = 2


class ProgressLog:
    """Results of a selection so far, so that an interrupted one repeats no measurement.

    A JSON-lines file; the header identifies the teacher and the settings that determine the values.

    Args:
        path: created with the first row.
        teacher: weights_id.
        about: settings that determine the values (JSON); a file with other settings is refused.
        writes: whether this process writes the file.

    Raises:
        RunFolderError: the file belongs to another teacher or other settings.
    """

    def __init__(self, path: Path, *, teacher: str, about: dict[str, Any], writes: bool = True) -> None:
        self.path, self._writes = path, writes
        self._header = {"schema": SCHEMA, "teacher": teacher, "about": about}
        known = list(read_jsonl(path))
        header, *self.rows = known or [self._header]
        # A file without a row can be one whose writing was cut short.
        self._has_header = bool(known)
        if header.get("teacher") != teacher:
            raise RunFolderError(
                f"{path} belongs to another teacher (weights {header.get('teacher')}, not {teacher}); choose "
                "another --work folder"
            )
        if header != self._header:
            raise RunFolderError(
                f"{path} was written with other settings or by another version of evalsuite; choose another "
                "--work folder"
            )

    def append(self, row: dict[str, Any]) -> None:
        """Append a row and flush it to disk."""
        self.rows.append(row)
        if self._writes:
            append_jsonl(self.path, [row] if self._has_header else [self._header, row])
        self._has_header = True

    def truncate(self, rows: int) -> None:
        """Drop all but the first rows: those after the state that training resumes from."""
        if len(self.rows) <= rows:
            return
        self.rows = self.rows[:rows]
        if self._writes:
            write_jsonl(self.path, [self._header, *self.rows])


def _sources(options: ContextOptions) -> set[str]:
    """The sources that the options name."""
    return {options.data} if isinstance(options.data, str) else set(options.data or ())


class SelectionContext:
    """A teacher, and the models and data that selectors measure it with.

    Args:
        recipe: has a teacher and one mixer, which replaces softmax during the search.
        options: of the all-linear student and the held-out slice, such as a selector.
        work: folder for resumable state.
        device: as for `distill`.

    Raises:
        ConfigError: no teacher, several mixers, or an architecture whose layers cannot be replaced
            one by one.
    """

    def __init__(
        self,
        recipe: Recipe,
        options: ContextOptions,
        work: Path,
        *,
        device: str | None = None,
        quiet: bool = False,
    ) -> None:
        if recipe.teacher is None:
            raise ConfigError(f"recipe '{recipe.name}' has no teacher, so there are no layers to select")
        if len(recipe.student.mixers) != 1:
            raise ConfigError(
                f"recipe '{recipe.name}' has {len(recipe.student.mixers)} mixers; choose one for the "
                f"search, such as --mixer {recipe.student.mixers[-1]}"
            )
        if unknown := [name for name in _sources(options) if name not in recipe.data]:
            raise ConfigError(
                f"--option data: recipe '{recipe.name}' has no source '{unknown[0]}'"
                f"{nearest(unknown[0], recipe.data)}"
            )
        self.options, self.work, self.quiet = options, Path(work), quiet
        student = recipe.student.of(recipe.student.mixers[0]).model_copy(
            update={"softmax_layers": [], "softmax_heads": {}, "layers": {}, "initial_checkpoints": {}}
        )
        self.recipe = recipe.model_copy(update={"student": student})
        self.process_group = ProcessGroup(device)
        self.device = self.process_group.device
        self.info = describe_checkpoint(recipe.teacher, with_tokenizer=False)
        kind = self.info.config.model_type
        if kind not in FAMILIES:
            raise ConfigError(
                f"teacher '{recipe.teacher}' is of type '{kind}': its layers cannot be replaced one by "
                f"one; supported types: {', '.join(FAMILIES)}"
            )
        self.layers = int(self.info.config.num_hidden_layers)
        self.heads = int(self.info.config.num_attention_heads)
        """Query heads of each layer."""

    @property
    def settings(self) -> dict[str, Any]:
        """Its options, which determine what is measured with it."""
        return self.options.model_dump(mode="json", include=set(ContextOptions.model_fields))

    @property
    def mixer(self) -> str:
        """Mixer of the linear layers during the search."""
        return self.recipe.student.mixers[0]

    @cached_property
    def training_recipe(self) -> Recipe:
        """The recipe with all sources readable and the held-out documents excluded."""
        recipe = self.recipe
        data = generate_responses(
            recipe.data,
            recipe.teacher,
            self.work,
            self.process_group,
            read=recipe.sources_read | _sources(self.options),
            quiet=self.quiet,
        )
        # Its own data and budgets fit no store, and processes share candidates instead of sequences.
        stages = [
            stage.model_copy(
                update={"sequence_parallel": 1, **({} if stage.store is None else {"teacher_store": None})}
            )
            for stage in recipe.stages
        ]
        return without_held_out(recipe.model_copy(update={"data": data, "stages": stages}))

    def open_sources(self) -> DataSources:
        """The sources of `training_recipe`, from their start."""
        recipe = self.training_recipe
        return DataSources(recipe.data, self.tokenizer, seed=recipe.seed)

    @cached_property
    def models(self) -> TrainingModels:
        """The teacher on the device, without students."""
        student = self.recipe.student.model_copy(update={"mixers": []})
        recipe = self.recipe.model_copy(update={"student": student})
        models = build_models(recipe, self.device, tokenizer=check_recipe(recipe))
        if models.teacher is not None:
            set_attention(models.teacher, "sdpa")
        return models

    @property
    def teacher(self) -> Any:
        """The teacher, frozen: a student whose mixers are all softmax."""
        return self.models.teacher

    @property
    def tokenizer(self) -> Any:
        """The teacher's tokenizer."""
        return self.models.tokenizer

    def prepare(self, student: Any) -> StudentForCausalLM:
        """Move a student to the device, cast its parameters (not buffers) to the run dtype, and freeze it."""
        student.to(self.device)
        for parameter in student.parameters():
            parameter.data = parameter.data.to(self.models.dtype)
            parameter.requires_grad_(False)
        frozen: StudentForCausalLM = student.eval()
        return frozen

    @cached_property
    def all_linear_recipe(self) -> Recipe:
        """Recipe of the all-linear student: all stages, or the alignment stages only."""
        stages = self.training_recipe.stages
        if self.options.all_linear_stages == "alignment":
            stages = [stage for stage in stages if stage.is_layerwise]
        if not stages:
            raise ConfigError(
                f"recipe '{self.recipe.name}' has no alignment stage; choose --option all_linear_stages=all"
            )
        return self.training_recipe.model_copy(update={"stages": stages})

    @cached_property
    def all_linear_path(self) -> Path:
        """Folder of the all-linear student, which is distilled if missing."""
        if self.options.all_linear is not None:
            return Path(self.options.all_linear)
        from evalsuite.distill.training.trainer import distill

        out = self.folder("all-linear", self.all_linear_recipe.hash)
        (folder,) = distill(self.all_linear_recipe, out, device=str(self.device), quiet=self.quiet)
        return folder

    @cached_property
    def all_linear(self) -> StudentForCausalLM:
        """The all-linear student.

        Raises:
            CheckpointError: the given checkpoint is not an all-linear student of this teacher.
        """
        found = load_checkpoint(self.all_linear_path, dtype="float32")
        if softmax_layer_indices(found.model) or len(found.model.model.layers) != self.layers:
            raise CheckpointError(
                f"{found.path}: option all_linear needs an all-linear student of this teacher"
            )
        made_from = (found.lineage.get("teacher") or {}).get("weights_id")
        if made_from not in (None, self.info.weights_id):
            raise CheckpointError(
                f"{found.path} is a student of another teacher (weights {made_from}, not "
                f"{self.info.weights_id})"
            )
        return self.prepare(found.model)

    @property
    def all_linear_tokens(self) -> int:
        """Training tokens of the all-linear student; 0 if it was given."""
        return 0 if self.options.all_linear is not None else self.all_linear_recipe.tokens

    @cached_property
    def kd_stage(self) -> KnowledgeDistillation:
        """The recipe's first stage of knowledge distillation from the teacher.

        Raises:
            ConfigError: there is none.
        """
        stages = self.training_recipe.stages
        found = next((stage for stage in stages if isinstance(stage, KnowledgeDistillation)), None)
        if found is None or not found.runs_teacher:
            raise ConfigError(
                f"recipe '{self.recipe.name}' has no stage with objective kd, which this selector needs"
            )
        return found if self.options.data is None else found.model_copy(update={"data": self.options.data})

    @cached_property
    def held_out(self) -> HeldOut:
        """Held-out slice of the knowledge-distillation data."""
        batches = held_out_batches(
            self.training_recipe, self.kd_stage, self.tokenizer, self.options.held_out, self.device
        )
        return HeldOut(self.teacher, batches, self.kd_stage.loss.temperature)

    @property
    def max_length(self) -> int:
        """Context length of the teacher, in tokens."""
        return int(self.info.config.max_position_embeddings)

    def progress_log(self, name: str, about: dict[str, Any]) -> ProgressLog:
        """Open the progress log `name` of values that `about` and the recipe determine.

        The folder name depends on the recipe, which has the teacher's path; the header has the teacher's
        weights_id, so that changed weights at the same path are detected.
        """
        about = {"recipe": self.recipe.hash, "precision": self.models.precision, **about}
        return ProgressLog(
            self.folder(name, about) / "progress.jsonl",
            teacher=self.info.weights_id,
            about=about,
            writes=self.process_group.is_main,
        )

    def folder(self, name: str, about: Any) -> Path:
        """Folder below `work` of what `about` (JSON) determines."""
        return self.work / f"{name}-{content_hash(about, 8)}"
