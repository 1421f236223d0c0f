"""What every selector stands on: teacher, all-linear trunk, held-out slice; each made when first needed.

    work/trunk-<id>/               the all-linear student, distilled as the recipe says (resumable)
    work/<pass or selector>-<id>/  journals and states

One work folder serves all selectors of a teacher, so that the trunk is made once.
"""

import copy
from functools import cached_property
from pathlib import Path
from typing import Any

from evalsuite.distill.parallel import Parallel
from evalsuite.distill.recipe import Recipe, Stage
from evalsuite.distill.responses import with_responses
from evalsuite.distill.selection.held_out import HeldOut, held_out_batches, training_part
from evalsuite.distill.selection.journal import Journal
from evalsuite.distill.selection.options import Options, identity, kd_stage
from evalsuite.distill.setup import Cast, assemble
from evalsuite.foundation import CheckpointError, ConfigError, content_hash
from evalsuite.models import StudentForCausalLM, describe_checkpoint, load_checkpoint
from evalsuite.models.student.config import ARCHITECTURES


class Ground:
    """A teacher, and what selectors measure it with.

    Args:
        recipe: with one mixer, the probe, and a teacher.
        work: folder for what can be resumed.
        device: as for `distill`.

    Raises:
        ConfigError: no teacher, several mixers, or a teacher whose layers can neither be bypassed nor
            restored one by one.
    """

    def __init__(
        self, recipe: Recipe, options: Options, work: Path, *, device: str | None = None, quiet: bool = False
    ) -> None:
        if recipe.teacher is None:
            raise ConfigError(f"recipe '{recipe.name}' has no teacher, so there are no layers to select")
        if len(recipe.student.mixers) != 1:
            raise ConfigError(
                f"recipe '{recipe.name}' has {len(recipe.student.mixers)} mixers; choose the one that "
                f"probes, such as --mixer {recipe.student.mixers[-1]}"
            )
        self.options, self.work, self.quiet = options, Path(work), quiet
        student = recipe.student.model_copy(update={"softmax_layers": [], "checkpoints": {}})
        self.recipe = recipe.model_copy(update={"student": student})
        self.parallel = Parallel(device)
        self.device = self.parallel.device
        self.info = describe_checkpoint(recipe.teacher)
        kind = self.info.config.model_type
        if kind not in ARCHITECTURES:
            raise ConfigError(
                f"teacher '{recipe.teacher}' is of type '{kind}': its layers cannot be bypassed or restored "
                f"one by one; layers can be selected in {', '.join(ARCHITECTURES)}"
            )
        self.layers = int(self.info.config.num_hidden_layers)

    def with_options(self, **changes: Any) -> "Ground":
        """This ground, with what it has loaded, under other settings of a search (not of the trunk)."""
        made = copy.copy(self)
        made.options = self.options.model_copy(update=changes)
        return made

    @property
    def mixer(self) -> str:
        """The mixer that probes."""
        return self.recipe.student.mixers[0]

    @property
    def teacher_id(self) -> str:
        """weights_id of the teacher."""
        return self.info.weights_id

    @cached_property
    def readable(self) -> Recipe:
        """The recipe with every source ready to read, without what is held out."""
        if self.parallel.main:
            with_responses(self.recipe, self.work, self.device, quiet=self.quiet)
        self.parallel.wait()
        return training_part(with_responses(self.recipe, self.work, self.device, quiet=self.quiet))

    @cached_property
    def cast(self) -> Cast:
        """The teacher on the device, and the teacher in a student's form."""
        whole = self.recipe.student.model_copy(update={"mixers": ["softmax"], "options": {}})
        cast = assemble(self.recipe.model_copy(update={"student": whole}), self.device)
        if cast.teacher is not None:
            cast.teacher.set_attn_implementation("sdpa")
        return cast

    @property
    def teacher(self) -> Any:
        """The teacher, frozen."""
        return self.cast.teacher

    @property
    def tokenizer(self) -> Any:
        """The teacher's tokenizer."""
        return self.cast.tokenizer

    @cached_property
    def full(self) -> StudentForCausalLM:
        """The teacher in a student's form: softmax everywhere."""
        (student,) = self.cast.students.values()
        return self.prepared(student)

    def prepared(self, student: Any) -> StudentForCausalLM:
        """A student on the device with parameters (not buffers) in the dtype that runs, frozen."""
        student.to(self.device)
        for parameter in student.parameters():
            parameter.data = parameter.data.to(self.cast.dtype)
            parameter.requires_grad_(False)
        made: StudentForCausalLM = student.eval()
        return made

    @cached_property
    def trunk_recipe(self) -> Recipe:
        """What makes the trunk: the recipe's stages (or those of alignment alone), all layers linear."""
        stages = self.readable.stages
        if self.options.trunk_stages == "alignment":
            stages = [stage for stage in stages if stage.aligns]
        if not stages:
            raise ConfigError(
                f"recipe '{self.recipe.name}' has no alignment stage; choose --option trunk_stages=all"
            )
        return self.readable.model_copy(update={"stages": stages})

    @cached_property
    def trunk_path(self) -> Path:
        """The folder of the all-linear student, which is distilled if it is not there yet."""
        if self.options.trunk is not None:
            return Path(self.options.trunk)
        from evalsuite.distill.trainer import distill

        out = self.work / f"trunk-{identity(self.trunk_recipe, self.options)}"
        (folder,) = distill(self.trunk_recipe, out, device=str(self.device), quiet=self.quiet)
        return folder

    @cached_property
    def trunk(self) -> StudentForCausalLM:
        """The all-linear student.

        Raises:
            CheckpointError: the given one is no all-linear student of this teacher.
        """
        from evalsuite.distill.fused import fuse

        found = load_checkpoint(self.trunk_path, dtype="float32")
        mixers = getattr(found.model.config, "mixers", None)
        if mixers is None or "softmax" in mixers or len(mixers) != self.layers:
            raise CheckpointError(f"{found.path}: the trunk must be an all-linear student of this teacher")
        made_from = (found.lineage.get("teacher") or {}).get("weights_id")
        if made_from not in (None, self.teacher_id):
            raise CheckpointError(
                f"{found.path} is a student of another teacher (weights {made_from}, not {self.teacher_id})"
            )
        fuse(found.model)
        return self.prepared(found.model)

    @property
    def trunk_tokens(self) -> int:
        """Tokens that the trunk was trained on; 0 for a given one."""
        return 0 if self.options.trunk is not None else self.trunk_recipe.tokens

    @cached_property
    def kd(self) -> Stage:
        """The brief knowledge-distillation stage."""
        return kd_stage(self.readable, self.options)

    @cached_property
    def held_out(self) -> HeldOut:
        """The held-out slice of the knowledge distillation's data, with the tokens that count there."""
        batches = held_out_batches(self.readable, self.kd, self.tokenizer, self.options.held_out, self.device)
        return HeldOut(self.teacher, batches, self.kd.loss.temperature)

    @property
    def positions(self) -> int:
        """The most tokens that the teacher reads."""
        return int(self.info.config.max_position_embeddings)

    def journal(self, name: str, about: dict[str, Any], recipe: Recipe | None = None) -> Journal:
        """The journal `name` of this ground: values that `about` and the recipe decide.

        The folder's name depends on the recipe (which names the teacher's place), the journal's header
        holds the teacher's weights: a place whose weights were changed is noticed.
        """
        about = {"recipe": (recipe or self.recipe).hash, "precision": self.cast.precision, **about}
        return Journal(
            self.folder(name, about) / "journal.jsonl",
            teacher=self.teacher_id,
            about=about,
            writes=self.parallel.main,
        )

    def folder(self, name: str, about: dict[str, Any]) -> Path:
        """Where the journal and the states of `name` lie."""
        return self.work / f"{name}-{content_hash(about, 8)}"
