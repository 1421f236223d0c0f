"""Recipes: one YAML file with teacher, student, stages, data and token budget.

    recipe = load_recipe("linearizing-2025:360m,10b", ["stage.lr=3e-4", "student.mixers=[gla]"])

A name can be followed by variants after a colon. A variant is a set of overrides listed in the recipe file
(its ablation grid). Overrides from the command line are applied last and validated in the same way.
"""

import re
from collections.abc import Iterable, Mapping
from copy import deepcopy
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import Field, SerializeAsAny, field_validator, model_validator

from evalsuite.distill.recipe.config import (
    ArchitectureConfig,
    CalibrationConfig,
    CheckpointConfig,
    DivergenceConfig,
    SelectionConfig,
    SelectionProvenance,
    ValidationConfig,
)
from evalsuite.distill.recipe.data_sources import DataSourceConfig, ResponsesSourceConfig
from evalsuite.distill.recipe.overrides import apply_override
from evalsuite.distill.recipe.pocket import POCKET, on_pocket
from evalsuite.distill.recipe.stage import Stage
from evalsuite.foundation import ConfigError, content_hash, nearest
from evalsuite.foundation.strict import Distinct, Seed, Strict, parse
from evalsuite.foundation.strict_yaml import parse_yaml, read_yaml
from evalsuite.models.inits import INITS

RECIPES = Path(__file__).parents[1] / "recipes"
STUDENT_NAME = r"[A-Za-z0-9][A-Za-z0-9_.-]*"
CALIBRATED = "gated_deltanet"
"""The mixer that the method of a calibration fits."""
TEACHER_MIXERS = ("softmax", "sliding_window")
"""Mixers that are the teacher's own attention."""
SCRATCH = "scratch"
"""Initialization that copies nothing at all from the teacher."""
RUN_FOLDERS = ("checkpoints", "executor", "failed", "state", "variants")
"""What lies next to the students of a run."""


Head = Annotated[int, Field(ge=0)]
SoftmaxHeads = dict[Head, Annotated[list[Head], Field(min_length=1), Distinct]]


class NamedStudent(Strict):
    """A student with layers of its own; what is not given is that of the recipe's other students."""

    mixer: str
    """Name from `evalsuite show mixers`."""
    softmax_layers: list[int] | str | None = None
    """Layers (from 0) that keep softmax attention, or a file written by `evalsuite select`; `FILE@STEP` are
    the layers of its search after that step."""
    softmax_heads: SoftmaxHeads | None = None
    """Layer → its query heads (both from 0) that keep softmax attention next to the mixer's recurrence."""
    selection: SelectionProvenance | None = None
    """Filled in from that file."""
    layers: dict[str, list[int]] | None = None
    """Further mixers → the layers (from 0) that have them."""
    options: dict[str, dict[str, Any]] = Field(default_factory=dict)
    """Mixer name → mixer options, instead of the recipe's for that mixer."""


class StudentRecipe(Strict):
    """What is built from the teacher, once per mixer."""

    mixers: Annotated[list[str], Distinct] = Field(default_factory=lambda: ["gated_deltanet"], min_length=1)
    """Names from `evalsuite show mixers`, or of `named` students; one student each."""
    named: dict[str, NamedStudent] = Field(default_factory=dict)
    """Name → a student that differs from the others in its layers. All students of a run share the data and
    every forward pass of the teacher."""
    softmax_layers: list[int] | str = Field(default_factory=list)
    """Layers (from 0) that keep softmax attention, or a file written by `evalsuite select`; `FILE@STEP` are
    the layers of its search after that step."""
    softmax_heads: SoftmaxHeads = Field(default_factory=dict)
    """Layer → its query heads (both from 0) that keep softmax attention next to the mixer's recurrence. A
    file in `softmax_layers` can have them, too."""
    selection: SelectionProvenance | None = None
    """Filled in from that file."""
    layers: dict[str, list[int]] = Field(default_factory=dict)
    """Further mixers → the layers (from 0) that have them, in every student. The other layers have the
    student's own mixer, or softmax attention."""
    options: dict[str, dict[str, Any]] = Field(default_factory=dict)
    """Mixer name → mixer options."""
    init: str = "qkvo"
    """The teacher's projections that initialize the mixers: `qkvo`, `qkv` or `vo`. `random`: none; `scratch`:
    nothing at all is copied, neither MLPs nor embeddings. The other ones of `evalsuite.distill.defects`
    reproduce defects of published code."""
    calibration: CalibrationConfig | None = None
    """Set the initial values of the mixers from statistics of the teacher's attention."""
    initial_checkpoints: dict[str, str] = Field(default_factory=dict)
    """Mixer name → a distilled student to continue from, instead of a new one. `:NAME` is the student of that
    variant of the recipe, next to this run's folder."""
    shape_from: str | None = None
    """Without a teacher: the model whose shape a dry run uses."""

    def of(self, label: str) -> "StudentRecipe":
        """The settings of one student, with its mixer as the only one."""
        named = self.named.get(label)
        if named is None:
            return self.model_copy(update={"mixers": [label]})
        changes: dict[str, Any] = {"mixers": [named.mixer], "options": {**self.options, **named.options}}
        if named.softmax_layers is not None:
            changes |= {"softmax_layers": named.softmax_layers, "selection": named.selection}
        if named.softmax_heads is not None:
            changes["softmax_heads"] = named.softmax_heads
        if named.layers is not None:
            changes["layers"] = named.layers
        return self.model_copy(update=changes)

    @field_validator("init")
    @classmethod
    def _known_init(cls, name: str) -> str:
        if name != SCRATCH and name not in INITS:
            raise ValueError(f"unknown init '{name}'{nearest(name, [*INITS, SCRATCH])}")
        return name

    @model_validator(mode="after")
    def _names_are_folders(self) -> "StudentRecipe":
        for name in self.named:
            if not re.fullmatch(STUDENT_NAME, name):
                raise ValueError(f"named: '{name}' names a folder: use letters, digits, '_', '.' and '-'")
            if name in RUN_FOLDERS:
                raise ValueError(f"named: '{name}' is another folder of every run; choose another name")
        return self


class Recipe(Strict):
    """Everything that determines the result of a training run."""

    name: str = Field(pattern=r"^[A-Za-z0-9_.-]+$")
    """Name of the recipe, in lineage and folders."""
    variant: str = Field(default="", pattern=r"^[A-Za-z0-9_.-]*$")
    """The chosen variants without a `name` of their own, joined by `-`; lineages add it to the name."""
    title: str = ""
    """One line for listings."""
    source: str = ""
    """The paper or measurement that the numbers come from."""
    notes: list[str] = Field(default_factory=list)
    """Differences from the source, with reasons."""
    teacher: str | None = None
    """A hub id (`ORG/NAME`, or `ORG/NAME@REVISION` for a commit, tag or branch), folder, GGUF file or
    `pocket`."""
    student: StudentRecipe = StudentRecipe()
    """What is built from the teacher."""
    architecture: ArchitectureConfig | None = None
    """A Transformer from random weights, instead of students of a teacher."""
    data: dict[str, SerializeAsAny[DataSourceConfig]] = Field(min_length=1)
    """Name → source; stages name them."""
    stages: list[SerializeAsAny[Stage]] = Field(min_length=1)
    """Stages, in order."""
    selection: SelectionConfig | None = None
    """How `evalsuite select` chooses the softmax layers of this recipe; training does not read it."""
    seed: Seed = 0
    """Seed of initial weights and of the order of the data."""
    precision: Literal["auto", "bf16", "fp32"] = "auto"
    """bf16: run on a bf16 copy of fp32 master weights. auto: bf16 on CUDA, fp32 elsewhere."""
    kernels: Literal["auto", "torch", "triton"] = "auto"
    """torch or triton: how operations that have both are computed. auto: triton on CUDA, if installed."""
    sharding: Literal["auto", "none", "full"] = "auto"
    """On several GPUs: replicate teacher and students (none) or shard them (full: FSDP2). auto: full from 3B
    parameters of the teacher."""
    num_workers: int | None = Field(default=None, ge=0)
    """Processes per GPU that parse, render and tokenize the data in advance; they do not change the order.
    Default: 4 on a GPU, as far as there are cores; none on a CPU, where a thread does it."""
    checkpoint: CheckpointConfig = CheckpointConfig()
    validation: ValidationConfig | None = None
    """Measure KL(teacher ‖ student) and perplexity on the held-out part of each stage's data, which is to be
    left out of the training (`subset: train`)."""
    divergence: DivergenceConfig | None = DivergenceConfig()
    """When training stops because a loss has diverged; null: only when one is not finite."""
    log_grad_norms: bool = False
    """Log the gradient norms of embedding, mixers, MLPs, norms and head, too."""
    track: str | None = None
    """Experiment tracker that the metrics are also logged to: `tensorboard` or `trackio`."""
    variants: dict[str, dict[str, Any] | str] = Field(default_factory=dict)
    """Name → overrides, for the ablations of the source; select with `recipe:name`. A row that occurs in
    several tables is written once: its other names have the name of the first, instead of overrides."""

    @property
    def hash(self) -> str:
        """16 hex digits over everything that determines the result (see NON_HASHED_FIELDS).

        Only values that differ from the defaults are hashed, so that fields added by a later version do not
        change the hashes of existing recipes. Published defaults must therefore never change. `restart_data`
        is the exception: all stages of the first recipes restarted, so a stage that continues is marked.
        Of a teacher store counts that there is one, and not its folder; `sequence_parallel` does not count.
        Named students that are not trained do not count.
        """
        fields = self.model_dump(mode="json", exclude=set(NON_HASHED_FIELDS), exclude_defaults=True)
        student = fields.pop("student", {})
        named = student.pop("named", {})
        if trained := {name: named[name] for name in self.student.mixers if name in named}:
            student["named"] = trained
        if student:
            fields["student"] = student
        earlier: set[str] = set()
        for stage, values in zip(self.stages, fields["stages"], strict=True):
            if not values.pop("restart_data", False) and not earlier.isdisjoint(stage.mixture):
                values["continues_data"] = True
            values.pop("sequence_parallel", None)
            if values.pop("teacher_store", None) is not None:
                values["has_teacher_store"] = True
            earlier.update(stage.mixture)
        return content_hash(fields)

    def overrides(self, variant: str) -> dict[str, Any]:
        """What a variant changes, but for `pocket`, which every recipe has."""
        return {} if variant == POCKET else _overrides(self.variants, variant)

    @property
    def labels(self) -> list[str]:
        """Names of the checkpoints: one per mixer, or the recipe's name for an `architecture`."""
        return [self.name] if self.architecture is not None else list(self.student.mixers)

    def name_of(self, label: str) -> str:
        """Name of a student's recipe in its lineage, with its variant; a named student has its own."""
        name = self.name
        for part in (self.variant, label if label in self.student.named else ""):
            name += f"{'-' if '.' in name else '.'}{part}" if part else ""
        return name

    @property
    def tokens(self) -> int:
        """Number of training tokens over all stages, in whole batches."""
        return sum(stage.steps * stage.tokens_per_step for stage in self.stages)

    @property
    def sources_read(self) -> set[str]:
        """The sources that a stage or the calibration reads; others are not opened."""
        found = {source for stage in self.stages for source in stage.mixture}
        return found if self.student.calibration is None else found | {self.student.calibration.data}

    @property
    def loads_teacher(self) -> bool:
        """Whether a stage or the calibration runs the teacher."""
        return self.student.calibration is not None or any(stage.loads_teacher for stage in self.stages)

    @property
    def calibration_problem(self) -> str | None:
        """Why the students cannot be calibrated, with the way out; None if they can."""
        student = self.student
        calibration = student.calibration
        if calibration is None:
            return None
        where = "student.calibration"
        if self.teacher is None:
            return f"{where} needs a 'teacher'"
        if calibration.data not in self.data:
            known = nearest(calibration.data, self.data)
            return f"{where}.data: source '{calibration.data}' is not defined{known}"
        students = [student.of(label) for label in student.mixers]
        names = [name for each in students for name in (*each.mixers, *each.layers)]
        if other := [name for name in names if name not in (CALIBRATED, *TEACHER_MIXERS)]:
            return (
                f"{where}: method taylor fits {CALIBRATED}, not {other[0]}; remove the calibration, or this "
                "mixer"
            )
        if CALIBRATED not in names:
            return f"{where}: method taylor fits {CALIBRATED}, which no student has; remove the calibration"
        if student.initial_checkpoints:
            return f"{where} sets new students only; remove it, or 'student.initial_checkpoints'"
        if student.init == SCRATCH or not INITS[student.init].letters.startswith("qkv"):
            return (
                f"{where} starts from the teacher's queries, keys and values: set student.init: qkvo or qkv, "
                f"not {student.init}"
            )
        return None

    @model_validator(mode="after")
    def _consistent(self) -> "Recipe":
        names = [stage.name for stage in self.stages]
        if len(set(names)) < len(names):
            raise ValueError(f"two stages have the same name: {', '.join(names)}")
        for stage in self.stages:
            for source in stage.mixture:
                if source not in self.data:
                    raise ValueError(
                        f"stage '{stage.name}': data source '{source}' is not defined"
                        f"{nearest(source, self.data)}"
                    )
        if self.validation is not None:
            self._check_held_out()
        if problem := self.calibration_problem:
            raise ValueError(problem)
        if POCKET in self.variants:
            raise ValueError(f"variants.{POCKET}: every recipe has a variant of this name; choose another")
        for name, given in self.variants.items():
            if isinstance(given, str) and not isinstance(self.variants.get(given), dict):
                raise ValueError(f"variants.{name}: '{given}' is no variant with overrides of its own")
        for mixer, path in self.student.initial_checkpoints.items():
            if path.startswith(":") and path[1:] not in self.variants:
                raise ValueError(
                    f"student.initial_checkpoints.{mixer}: there is no variant '{path[1:]}'"
                    f"{nearest(path[1:], self.variants)}"
                )
        if self.architecture is not None:
            if self.teacher is not None:
                raise ValueError("'architecture' starts from random weights and has no 'teacher'")
            if any(stage.needs_teacher or stage.trainable_set != "all" for stage in self.stages):
                raise ValueError(
                    "an 'architecture' from random weights needs objective sft with all parameters trainable"
                )
        elif self.teacher is None:
            if needing := [stage.objective for stage in self.stages if stage.needs_teacher]:
                raise ValueError(f"'teacher' is required by objective {needing[0]}; sft needs none")
            if set(self.student.mixers) - set(self.student.initial_checkpoints):
                raise ValueError(
                    "without a 'teacher', every mixer needs an entry in 'student.initial_checkpoints'"
                )
        return self

    def _check_held_out(self) -> None:
        for name in sorted(self.sources_read):
            source = self.data[name]
            if isinstance(source, ResponsesSourceConfig):
                raise ValueError(f"'validation' needs held-out documents; data.{name} (responses) has none")
            if not source.leaves_held_out:
                raise ValueError(
                    f"'validation' needs held-out documents: set data.{name}.subset: train, so that no stage "
                    "trains on them"
                )


NON_HASHED_FIELDS = (
    "variant",
    "title",
    "source",
    "notes",
    "variants",
    "selection",
    "checkpoint",
    "validation",
    "divergence",
    "log_grad_norms",
    "track",
    "sharding",
    "num_workers",
)
"""Fields of a recipe that do not affect the trained weights."""
OF_ONE_RECIPE = {"seed", "teacher", "student.mixers"}
"""What runs of one recipe may differ in: a variant that sets these alone adds nothing to its name."""


def _overrides(variants: Mapping[str, Any], name: str) -> dict[str, Any]:
    """What a variant changes; one that another name refers to is that one."""
    found = variants[name]
    return dict(variants[found] if isinstance(found, str) else found)


def known_recipes() -> list[str]:
    """Names of the shipped recipes."""
    return sorted(path.stem for path in RECIPES.glob("*.yaml"))


def load_recipe(name: str | Path, overrides: Iterable[str] = ()) -> Recipe:
    """Load a shipped recipe by name, or any recipe by path, with variants and overrides applied.

    Args:
        name: `pocket`, `kd-nine-2025:qkv-h2h`, `linearizing-2025:360m,10b`, or a path to a YAML file. Of
            variants that set one key, the last counts, but their names are joined: `base.first-second`.
            Variants without a name are joined to `variant`. `pocket` needs no entry in the file: it comes
            after the others and puts the recipe onto the embedded teacher (see `on_pocket`).
        overrides: `key=value` with dotted keys and YAML values. `stage.lr` addresses every stage;
            `stage.kd.lr` or `stages.2.lr` one stage, by name or number.

    Raises:
        ConfigError: unknown recipe, variant or key (with the nearest known name), or a value of the wrong
            type.
    """
    text, _, variants = str(name).partition(":")
    path = Path(text)
    if path.suffix not in (".yaml", ".yml"):
        path = RECIPES / f"{text}.yaml"
        if not path.is_file():
            raise ConfigError(f"unknown recipe '{text}'{nearest(text, known_recipes())}")
    value = read_yaml(path)
    source = str(path)
    offered = value.get("variants") or {}
    base, names = value.get("name"), []
    unnamed = [value.get("variant")]
    chosen = list(filter(None, variants.split(",")))
    plain = parse(deepcopy(value), Recipe, source) if POCKET in chosen else None
    for variant in chosen:
        if variant == POCKET:
            continue
        if variant not in offered:
            raise ConfigError(f"{source}: unknown variant '{variant}'{nearest(variant, [*offered, POCKET])}")
        # Groups (`stages`) are set before keys inside them (`stage.tune.loss_mask`).
        changes = _overrides(offered, variant)
        for key, setting in sorted(changes.items(), key=lambda item: item[0].count(".")):
            apply_override(value, key, setting, f"{source}, variant {variant}")
        if "name" in changes:
            names.append(str(value["name"]).removeprefix(f"{base}."))
        elif not changes.keys() <= OF_ONE_RECIPE:
            unnamed.append(offered[variant] if isinstance(offered[variant], str) else variant)
    if len(names) > 1:
        value["name"] = f"{base}.{'-'.join(names)}"
    if plain is not None:
        recipe = parse(value, Recipe, source)
        if recipe.architecture is not None:
            raise ConfigError(f"{source}: variant '{POCKET}' needs students, and this recipe makes a teacher")
        tokens = sum(stage.tokens for stage in plain.stages)
        value = on_pocket(recipe.model_dump(mode="json"), tokens)
        unnamed.append(POCKET)
    value["variant"] = "-".join(filter(None, unnamed))
    for override in overrides:
        key, equals, setting = override.partition("=")
        if not equals:
            raise ConfigError(f"--set {override}: expected key=value")
        origin = f"--set {override}"
        apply_override(value, key.strip(), parse_yaml(setting, origin), origin)
        if key.strip() == "name":
            value["variant"] = ""
        source = f"{path} with --set"
    return parse(value, Recipe, source)


def write_recipe(recipe: Recipe) -> str:
    """The fully resolved recipe as YAML; loading it gives an equal recipe."""
    return yaml.safe_dump(recipe.model_dump(mode="json"), sort_keys=False, allow_unicode=True)
