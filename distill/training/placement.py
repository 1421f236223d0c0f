"""How models come onto the GPUs of a run: replicated on each of them, or sharded over all."""

from collections.abc import Callable, Mapping
from typing import Any

import torch

from evalsuite.distill.recipe import Recipe
from evalsuite.distill.trainable import trainable_names
from evalsuite.distill.types import CausalLM
from evalsuite.foundation import CheckpointError, ConfigError

FSDP_MIN_PARAMETERS = 3_000_000_000
"""With `sharding: auto`, models with at least this many parameters are sharded on several GPUs."""


def is_sharded(recipe: Recipe, num_params: int, world_size: int) -> bool:
    """Whether teacher and students are sharded over the GPUs, instead of replicated.

    Args:
        num_params: parameters of the teacher, or of the first student without one.

    Raises:
        ConfigError: a recipe that needs unsharded models.
    """
    sharded = recipe.sharding == "full" or (recipe.sharding == "auto" and num_params >= FSDP_MIN_PARAMETERS)
    if world_size == 1 or not sharded:
        return False
    for stage in recipe.stages:
        if stage.sequence_parallel > 1:
            raise ConfigError(
                f"sharding: stage '{stage.name}' shares sequences, which needs unsharded models; set its "
                "sequence_parallel to 1, or --set sharding=none"
            )
        if not stage.optimizer.supports_sharding:
            raise ConfigError(
                f"sharding: optimizer {stage.optimizer.kind} needs unsharded parameters; use adamw, or --set "
                "sharding=none"
            )
    if recipe.student.calibration is not None:
        raise ConfigError(
            "sharding: student.calibration needs unsharded models; remove it, or --set sharding=none"
        )
    return True


class Placement:
    """Opens checkpoints and makes models, whole on every GPU.

    Args:
        share_frozen: parameters of students that no stage of the recipe trains, and that equal the teacher's,
            share its memory.
    """

    def __init__(
        self, recipe: Recipe, device: torch.device, dtype: torch.dtype, *, share_frozen: bool = False
    ) -> None:
        self._recipe, self._device, self._dtype = recipe, device, dtype
        self._share_frozen = share_frozen

    def open(self, path: str) -> Any:
        """A checkpoint, with its lineage and weights_id."""
        from evalsuite.models import load_checkpoint

        return load_checkpoint(path, dtype="float32", with_tokenizer=False)

    def stored(self, checkpoint: Any) -> Any:
        """The model of a checkpoint."""
        return checkpoint.model

    def random(self, make: Callable[[], Any], seed: int) -> Any:
        """The model that `make` draws after `torch.manual_seed(seed)`."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return make()

    def new_student(self, teacher: Any, mixers: list[str], **settings: Any) -> Any:
        """A new student, to be placed with `student`; see `build_student`."""
        from evalsuite.models import build_student

        # On its way to another device it is copied anyway.
        return build_student(teacher, mixers, share=self._device.type != teacher.device.type, **settings)

    def config(self, model: Any) -> Any:
        """Its config."""
        return model.config

    def student(self, model: Any) -> CausalLM:
        """The model on the device, ready to be trained."""
        student: CausalLM = model.to(self._device).train()
        return student

    def teacher(self, model: Any, students: Mapping[str, CausalLM]) -> CausalLM:
        """The model on the device, frozen and in the dtype of the forward pass."""
        model.to(self._device).eval().requires_grad_(False)
        shared = [
            pair
            for student in students.values()
            if self._share_frozen
            for pair in self._equal_frozen(student, model)
        ]
        # Parameters only: with rotary frequencies in bf16, distant positions would be off by radians.
        for parameter in model.parameters():
            parameter.data = parameter.data.to(self._dtype)
        for mine, theirs in shared:
            mine.data = theirs.data
        return check_head(model)

    def _equal_frozen(
        self, student: CausalLM, teacher: CausalLM
    ) -> list[tuple[torch.nn.Parameter, torch.nn.Parameter]]:
        trained = names_to_train(self._recipe, student)
        theirs = dict(teacher.named_parameters())
        return [
            (mine, theirs[name])
            for name, mine in student.named_parameters()
            if name not in trained and name in theirs and torch.equal(mine, theirs[name])
        ]


class Sharded(Placement):
    """A share of every weight on each GPU (FSDP2); each process reads its share only.

    What the methods exchange are `Weights`, which are not read before their model is placed.
    """

    def open(self, path: str) -> Any:
        from evalsuite.models import describe_checkpoint

        return describe_checkpoint(path, with_tokenizer=False)

    def stored(self, checkpoint: Any) -> Any:
        from evalsuite.models.checkpoints.streaming import StoredWeights

        return StoredWeights(checkpoint)

    def random(self, make: Callable[[], Any], seed: int) -> Any:
        from evalsuite.models.decoder.deferred_init import DrawnWeights

        return DrawnWeights(make, seed=seed)

    def new_student(self, teacher: Any, mixers: list[str], **settings: Any) -> Any:
        from evalsuite.models.checkpoints.streaming import NewStudentWeights

        return NewStudentWeights(teacher, mixers, **settings)

    def config(self, model: Any) -> Any:
        return model.model.config

    def student(self, model: Any) -> CausalLM:
        from evalsuite.distill.training.fsdp import shard

        trained = names_to_train(self._recipe, model.model)
        found: CausalLM = shard(model, self._device, self._dtype, trained).train()
        return found

    def teacher(self, model: Any, students: Mapping[str, CausalLM]) -> CausalLM:
        """Students have read their weights from it by now."""
        from evalsuite.distill.training.fsdp import shard

        return check_head(shard(model, self._device, self._dtype, ()).eval())


def names_to_train(recipe: Recipe, student: CausalLM) -> set[str]:
    """Names of the parameters that some stage trains."""
    sets = {stage.trainable_set for stage in recipe.stages}
    return {name for each in sets for name in trainable_names(student, each)}


def check_head(teacher: Any) -> CausalLM:
    """Return the teacher.

    Raises:
        CheckpointError: its head has a bias, which the fused loss does not support.
    """
    if getattr(teacher.get_output_embeddings(), "bias", None) is not None:
        raise CheckpointError("the teacher's head has a bias, which is not supported")
    found: CausalLM = teacher
    return found
