"""Builds teacher, students and tokenizer from a recipe."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from evalsuite.distill.recipe import Recipe
from evalsuite.distill.recipe.config import ArchitectureConfig, SelectionProvenance
from evalsuite.distill.recipe.recipe import SoftmaxHeads
from evalsuite.distill.recipe.stage import Stage
from evalsuite.distill.training.placement import Placement, Sharded, is_sharded
from evalsuite.distill.types import CausalLM
from evalsuite.foundation import CheckpointError, ConfigError, nearest, parse_json
from evalsuite.foundation.strict import Strict, parse
from evalsuite.models.checkpoints.tokenizers import whole_texts
from evalsuite.models.decoder.cost import ModelCost
from evalsuite.models.mixers import MIXERS


@dataclass
class TrainingModels:
    """The frozen teacher, the students by label, and the tokenizer."""

    teacher: CausalLM | None
    """None once no stage that remains runs it."""
    teacher_lineage: dict[str, Any] | None
    """The teacher's path, weights_id, commit on the hub and, if it was distilled itself, its `chain`."""
    students: dict[str, CausalLM]
    tokenizer: Any
    ancestors: dict[str, list[dict[str, Any]]]
    """Student → the checkpoints it continues from (see `chain`)."""
    precision: str
    """`bf16` (a bf16 copy of fp32 master weights runs) or `fp32`."""

    @property
    def dtype(self) -> torch.dtype:
        """dtype of the forward and backward passes."""
        return torch.bfloat16 if self.precision == "bf16" else torch.float32

    @property
    def costs(self) -> tuple[ModelCost | None, list[ModelCost]]:
        """Those of the teacher and of every student."""
        teacher = None if self.teacher is None else ModelCost.of(self.teacher.config)
        return teacher, [ModelCost.of(student.config) for student in self.students.values()]


ANCESTOR_FIELDS = (
    "label", "mixers", "softmax_heads", "teacher", "recipe", "seed", "selection", "stages", "tokens",
    "distinct_tokens", "complete",
)  # fmt: skip
"""Fields of an ancestor's lineage that its descendants repeat."""


def chain(checkpoint: Any) -> list[dict[str, Any]]:
    """The checkpoints that a checkpoint comes from, oldest first, and itself as the last one."""
    lineage = checkpoint.lineage
    summary = {key: lineage[key] for key in ANCESTOR_FIELDS if key in lineage}
    own = {"path": checkpoint.path, "weights_id": checkpoint.weights_id, **summary}
    return [*lineage.get("ancestors", []), own]


def override_mixers(recipe: Recipe, mixers: Sequence[str] | None) -> Recipe:
    """The recipe with other mixers or named students, if any are given.

    Raises:
        ConfigError: a name that no student has, or a mixer and a named student; mixers for an `architecture`,
            or that its calibration does not fit.
    """
    if not mixers:
        _check_labels(recipe)
        return recipe
    if recipe.architecture is not None:
        raise ConfigError(
            f"recipe '{recipe.name}' trains a Transformer from random weights and has no mixers"
        )
    changed = recipe.model_copy(
        update={"student": recipe.student.model_copy(update={"mixers": list(mixers)})}
    )
    _check_labels(changed)
    if problem := changed.calibration_problem:
        raise ConfigError(problem)
    return changed


def _check_labels(recipe: Recipe) -> None:
    named = recipe.student.named
    for label in recipe.student.mixers:
        if label in named and label in MIXERS:
            raise ConfigError(f"student.named.{label}: is the name of a mixer; choose another one")
        if label not in named and label not in MIXERS:
            known = nearest(label, [*named, *MIXERS.names()])
            raise ConfigError(f"unknown mixer or named student '{label}'{known}")


def resolve_checkpoints(recipe: Recipe, out: Path) -> Recipe:
    """Replace `:NAME` in `initial_checkpoints` by the folder of that variant's student.

    Args:
        out: the run folder; runs of other variants are siblings of it, as `distill --variants` places them.

    Raises:
        ConfigError: that variant has not been trained.
    """
    paths = dict(recipe.student.initial_checkpoints)
    for mixer, path in paths.items():
        if path.startswith(":"):
            variant = path[1:]
            folder = out.parent / variant / mixer
            if not (folder / "lineage.json").is_file():
                raise ConfigError(
                    f"student.initial_checkpoints.{mixer}: recipe '{recipe.name}' continues from its variant "
                    f"'{variant}', which is not in {folder}; train that variant first (--variants {variant} "
                    f"…), or give a student with --set student.initial_checkpoints.{mixer}=FOLDER"
                )
            paths[mixer] = str(folder)
    student = recipe.student.model_copy(update={"initial_checkpoints": paths})
    return recipe.model_copy(update={"student": student})


def resolve_precision(recipe: Recipe, device: torch.device) -> str:
    """`bf16` or `fp32`.

    Raises:
        ConfigError: bf16 on a GPU without it.
    """
    precision = recipe.precision
    if precision == "auto":
        precision = "bf16" if device.type == "cuda" else "fp32"
    if precision == "bf16" and device.type == "cuda" and not torch.cuda.is_bf16_supported(False):
        raise ConfigError(
            f"precision: {torch.cuda.get_device_name(device)} has no bfloat16; use --set precision=fp32, "
            "which takes twice the memory of weights and activations"
        )
    return precision


def build_models(
    recipe: Recipe,
    device: torch.device,
    *,
    tokenizer: Any = None,
    world_size: int = 1,
    share_frozen: bool = False,
) -> TrainingModels:
    """Load or build all models of a recipe.

    Args:
        tokenizer: that of the recipe, for callers that have loaded it.
        world_size: processes that can share the models; see `is_sharded`.
        share_frozen: see `Placement`; for callers that train what the recipe's stages do, and nothing else. A
            teacher that none of these runs is then read for the weights of new students only.

    Raises:
        CheckpointError: a checkpoint is missing, damaged or unsafe.
        ConfigError: an unknown mixer or option, layers that the teacher does not have, different
            vocabularies, bf16 on a GPU without it, or a recipe that cannot be sharded.
        ModuleNotFoundError: a package that the optimizer's states need.
    """
    precision = resolve_precision(recipe, device)
    for stage in recipe.stages:
        stage.optimizer.check_installed()
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32

    def place(num_params: int) -> Placement:
        kind = Sharded if is_sharded(recipe, num_params, world_size) else Placement
        return kind(recipe, device, dtype, share_frozen=share_frozen)

    tokenizer = load_recipe_tokenizer(recipe) if tokenizer is None else tokenizer
    architecture = recipe.architecture
    if architecture is not None:
        config = architecture_config(architecture, tokenizer)
        placement = place(ModelCost.of(config).num_params)
        model = placement.random(partial(_random_model, config), recipe.seed)
        (label,) = recipe.labels
        students = {label: placement.student(model)}
        return TrainingModels(None, None, students, tokenizer, {label: []}, precision)
    from evalsuite.models.checkpoints.load import count_parameters, describe_checkpoint

    first = recipe.teacher or next(iter(recipe.student.initial_checkpoints.values()))
    placement = place(count_parameters(first))
    teacher, teacher_lineage = None, None
    runs_teacher = not share_frozen or recipe.loads_teacher
    if recipe.teacher is not None:
        is_read = runs_teacher or set(recipe.labels) - set(recipe.student.initial_checkpoints)
        loaded = (
            placement.open(recipe.teacher)
            if is_read
            else describe_checkpoint(recipe.teacher, with_tokenizer=False)
        )
        _check_selection(recipe, loaded.weights_id)
        teacher = placement.stored(loaded) if is_read else None
        teacher_lineage = {
            "path": recipe.teacher,
            "weights_id": loaded.weights_id,
            "revision": loaded.revision,
            "ancestors": chain(loaded) if loaded.lineage else [],
        }
    built: dict[str, Any] = {}
    ancestors: dict[str, list[dict[str, Any]]] = {label: [] for label in recipe.labels}
    for label in recipe.labels:
        path = recipe.student.initial_checkpoints.get(label)
        if path is not None:
            checkpoint = placement.open(path)
            ancestors[label], built[label] = chain(checkpoint), placement.stored(checkpoint)
        else:
            built[label] = _new_student(placement, recipe, label, teacher)
    students = {label: placement.student(model) for label, model in built.items()}
    frozen = placement.teacher(teacher, students) if teacher is not None and runs_teacher else None
    return TrainingModels(frozen, teacher_lineage, students, tokenizer, ancestors, precision)


def check_recipe(recipe: Recipe) -> Any:
    """Check what can be told from configs, before weights and data are read; return the tokenizer.

    Raises:
        CheckpointError: a checkpoint is missing, damaged or unsafe.
        ConfigError: an unknown mixer or option, layers that the teacher does not have, different
            vocabularies, sequences beyond the models' positions, or students that a stage cannot train.
    """
    if recipe.architecture is not None:
        return load_architecture_tokenizer(recipe.architecture)
    from evalsuite.models.checkpoints.load import load_outline
    from evalsuite.models.decoder.cost import build_on_meta

    tokenizer, teacher, students = None, None, dict[str, Any]()
    if recipe.teacher is not None:
        teacher, tokenizer = load_outline(recipe.teacher)
    for label in recipe.labels:
        path = recipe.student.initial_checkpoints.get(label)
        if path is None:
            assert teacher is not None
            config = new_student_config(recipe, label, teacher)
        else:
            config, own_tokenizer = load_outline(path)
            tokenizer = tokenizer or own_tokenizer
        students[label] = build_on_meta(config)
        if teacher is not None and config.vocab_size != teacher.vocab_size:
            raise ConfigError(
                f"vocabularies differ: student '{path}' has {config.vocab_size} tokens, teacher "
                f"'{recipe.teacher}' has {teacher.vocab_size}"
            )
    configs = {label: student.config for label, student in students.items()}
    check_lengths(recipe, teacher, configs)
    for stage in recipe.stages:
        stage.check_students(students)
        if stage.sequence_parallel > 1:
            run = configs if teacher is None or not stage.loads_teacher else {**configs, "teacher": teacher}
            check_parts(stage, {label: ModelCost.of(config).model for label, config in run.items()})
    return tokenizer


def check_parts(stage: Stage, models: Mapping[str, Any]) -> None:
    """Raise ConfigError for models whose layers cannot continue a sequence from what was read before."""
    from evalsuite.models import StudentForCausalLM
    from evalsuite.models.mixers import Mixer

    for label, model in models.items():
        where = f"stage '{stage.name}': sequence_parallel = {stage.sequence_parallel}: '{label}'"
        if not isinstance(model, StudentForCausalLM):
            raise ConfigError(f"{where} is of no family whose layers are known; set sequence_parallel: 1")
        for layer in model.model.layers:
            if type(layer.self_attn).cache_spec is Mixer.cache_spec:
                raise ConfigError(
                    f"{where} has layers of {layer.self_attn.name}, which cannot continue from a state; set "
                    "sequence_parallel: 1"
                )


def load_recipe_tokenizer(recipe: Recipe) -> Any:
    """The tokenizer of a recipe's teacher, of its architecture, or of its first initial checkpoint.

    Raises:
        CheckpointError: the checkpoint is missing, damaged or unsafe.
    """
    if recipe.architecture is not None:
        return load_architecture_tokenizer(recipe.architecture)
    from evalsuite.models.checkpoints.load import load_outline

    first = recipe.teacher or next(iter(recipe.student.initial_checkpoints.values()))
    return load_outline(first)[1]


def check_lengths(recipe: Recipe, teacher: Any, students: Mapping[str, Any]) -> None:
    """Check that teacher and students have the positions of every stage's sequences.

    A stage without the teacher may go beyond the stated positions as far as the positional scheme reaches.

    Args:
        teacher: its config; None without a teacher.
        students: their configs, by label.

    Raises:
        ConfigError: sequences beyond the teacher's positions, where its targets mean nothing, or beyond those
            that a student's positional scheme reaches.
    """
    from evalsuite.models.checkpoints.positions import check_max_length, stated_positions

    for stage in recipe.stages:
        length, where = stage.seq_len, f"stage '{stage.name}': seq_len = {stage.seq_len:,}"
        limit = None if teacher is None or not stage.needs_teacher else stated_positions(teacher)
        if limit is not None and length > limit:
            raise ConfigError(
                f"{where}: the teacher's positions end at {limit:,}; "
                f"--set stage.{stage.name}.seq_len={limit}, or less"
            )
        for label, student in students.items():
            try:
                check_max_length(student, length)
            except ConfigError as error:
                raise ConfigError(f"{where}, student '{label}': {error}; choose a shorter seq_len") from None


def _student_settings(recipe: Recipe, label: str, num_layers: int) -> dict[str, Any]:
    """Mixers, options and initialization of a new student."""
    config = recipe.student.of(label)
    names = layer_mixers(recipe, label, num_layers)
    heads = resolve_layer_selection(recipe).student.of(label).softmax_heads
    if heads and config.calibration is not None:
        raise ConfigError(
            f"student.softmax_heads of '{label}': student.calibration sets whole layers; remove one of them"
        )
    used = dict.fromkeys([*names, *(["softmax"] if heads else [])])
    return {
        "mixers": names,
        "options": {name: config.options[name] for name in used if name in config.options},
        "init": "random" if config.init == "scratch" else config.init,
        "softmax_heads": {layer: sorted(heads[layer]) for layer in sorted(heads)},
    }


def new_student_config(recipe: Recipe, label: str, teacher: Any) -> Any:
    """The config of a new student. Raises ConfigError as `build_student`.

    Args:
        teacher: its config.
    """
    from evalsuite.models.decoder.build import student_config

    return student_config(teacher, **_student_settings(recipe, label, teacher.num_hidden_layers))


def _new_student(placement: Placement, recipe: Recipe, label: str, teacher: Any) -> Any:
    config = recipe.student.of(label)
    student = placement.new_student(
        teacher,
        **_student_settings(recipe, label, placement.config(teacher).num_hidden_layers),
        seed=recipe.seed,
    )
    if config.init != "scratch":
        return student
    from evalsuite.models.decoder import StudentForCausalLM

    return placement.random(partial(StudentForCausalLM, placement.config(student)), recipe.seed)


def layer_mixers(recipe: Recipe, label: str, num_layers: int) -> list[str]:
    """The mixer of each layer: softmax in the student's softmax layers, those of `layers`, its own elsewhere.

    Args:
        label: a mixer, or one of the recipe's named students.

    Raises:
        ConfigError: a layer that does not exist or has two mixers, or a missing or invalid selection file.
    """
    student = resolve_layer_selection(recipe).student.of(label)
    assert not isinstance(student.softmax_layers, str)
    names = student.mixers * num_layers
    given: dict[int, str] = {}
    places = [("softmax_layers", "softmax", student.softmax_layers)]
    places += [(f"layers.{name}", name, layers) for name, layers in student.layers.items()]
    for field, name, layers in places:
        if invalid := [layer for layer in layers if not 0 <= layer < num_layers]:
            raise ConfigError(f"student.{field}: the teacher has layers 0 to {num_layers - 1}, not {invalid}")
        for layer in layers:
            if layer in given:
                raise ConfigError(f"student.{field}: layer {layer} is also in student.{given[layer]}")
            given[layer], names[layer] = field, name
    return names


def resolve_layer_selection(recipe: Recipe) -> Recipe:
    """Replace the names of selection files by their layers and provenance, in every student that is trained.

    A run is thereby tied to the layers themselves, not to a file that can change.

    Raises:
        ConfigError: a file is missing, is not a selection, or has no such step.
    """
    student = recipe.student
    changes: dict[str, Any] = {}
    if isinstance(student.softmax_layers, str):
        changes |= _read_selection(student.softmax_layers, "student", student.softmax_heads)
    named = {
        label: each.model_copy(
            update=_read_selection(each.softmax_layers, f"student.named.{label}", each.softmax_heads)
        )
        for label, each in student.named.items()
        if label in student.mixers and isinstance(each.softmax_layers, str)
    }
    if named:
        changes["named"] = {**student.named, **named}
    return recipe.model_copy(update={"student": student.model_copy(update=changes)}) if changes else recipe


def _read_selection(name: str, student: str, given: SoftmaxHeads | None) -> dict[str, Any]:
    """The fields `softmax_layers`, `selection` and, if it has heads, `softmax_heads` of a file, or of one
    step of its search (`FILE@STEP`).

    Args:
        student: the field of the student, for messages.
        given: softmax heads that the recipe has for it.
    """
    field = f"{student}.softmax_layers"
    path, _, step = name, "", ""
    if not Path(name).exists() and name.rpartition("@")[2].isdecimal():
        path, _, step = name.rpartition("@")
    try:
        value = parse_json(Path(path).read_bytes())
        found = value if isinstance(value, dict) else {"layers": value}
        heads = {} if step else found.get("heads", {})
        chosen = found.get("layers", []) if heads else found["layers"]
        if step:
            steps = {str(each["step"]): each["layers"] for each in found.get("history", ())}
            if step not in steps:
                known = f"it has {', '.join(steps)}" if steps else "it has none"
                raise ConfigError(f"{field}: {path} has no step {step} of a search; {known}")
            chosen = steps[step]
        layers = sorted(chosen)
        if not all(type(layer) is int and 0 <= layer < 2**31 for layer in layers):
            raise ValueError(f"{layers} are no numbers of layers")
        if len(set(layers)) < len(layers):
            raise ValueError(f"a layer of {layers} is given twice")
    except FileNotFoundError:
        raise ConfigError(f"{field}: {path}: no such file") from None
    except (OSError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise ConfigError(f"{field}: {path} has no list 'layers' ({error})") from None
    changes: dict[str, Any] = {"softmax_layers": layers, "selection": None}
    if heads:
        if given:
            raise ConfigError(f"{field}: {path} has heads, and so has {student}.softmax_heads; remove these")
        changes["softmax_heads"] = parse({"heads": heads}, _HeadsFile, path).heads
    if "selector" in found:
        origin = {key: found.get(key) for key in ("selector", "teacher", "mixer")}
        changes["selection"] = parse(
            {**origin, "step": int(step) if step else None}, SelectionProvenance, path
        )
    return changes


class _HeadsFile(Strict):
    """What a selection file says of heads."""

    heads: SoftmaxHeads


def _check_selection(recipe: Recipe, weights_id: str) -> None:
    for label in recipe.student.mixers:
        selection = recipe.student.of(label).selection
        if selection is not None and selection.teacher not in (None, weights_id):
            raise ConfigError(
                f"softmax layers of '{label}' were selected by {selection.selector} for another teacher "
                f"(weights {selection.teacher}); '{recipe.teacher}' has weights {weights_id}. To use them "
                "anyway, give the layers as a list"
            )


def load_architecture_tokenizer(architecture: ArchitectureConfig) -> Any:
    """The tokenizer of an architecture."""
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    if architecture.tokenizer == "pocket":
        from evalsuite.tasks.synthetic.pocket import build_tokenizer
        from evalsuite.tasks.synthetic.pocket.tokenizer import END, PAD

        return PreTrainedTokenizerFast(tokenizer_object=build_tokenizer(), eos_token=END, pad_token=PAD)
    try:
        return whole_texts(AutoTokenizer.from_pretrained(architecture.tokenizer))
    except (OSError, ValueError) as error:
        raise CheckpointError(
            f"architecture.tokenizer '{architecture.tokenizer}' cannot be loaded ({error})"
        ) from error


def _random_model(config: Any) -> Any:
    from transformers import LlamaForCausalLM

    from evalsuite.models.decoder import StudentForCausalLM

    return StudentForCausalLM.of_teacher(LlamaForCausalLM(config))


def architecture_config(architecture: ArchitectureConfig, tokenizer: Any) -> Any:
    """The config of a model from random weights."""
    from transformers import LlamaConfig

    sizes = architecture.model_dump(exclude={"tokenizer", "rope_theta"})
    return LlamaConfig(
        **sizes,
        vocab_size=len(tokenizer),
        rope_parameters={"rope_type": "default", "rope_theta": architecture.rope_theta},
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
