"""A recipe: one YAML file that says teacher, student, stages, data and budget.

    recipe = load_recipe("linearizing-2025:360m,10b", ["stage.lr=3e-4", "student.mixers=[gla]"])

A name may carry variants after a colon: each is a set of overrides that the recipe file itself lists
(its ablation grid). Overrides from the command line come last and are checked as the file is.
"""

from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, Field, model_validator

from evalsuite.distill.overrides import apply_override
from evalsuite.distill.schedules import Schedule
from evalsuite.distill.settings import (
    Architecture,
    DataSource,
    Distance,
    Loss,
    Optimizer,
    Saving,
    SelectedBy,
    Tokens,
)
from evalsuite.foundation import ConfigError, content_hash, nearest
from evalsuite.foundation.strict import Strict, parse, read_yaml

RECIPES = Path(__file__).parent / "recipes"

ObjectiveName = Literal["matrix_mixing", "attention_output", "hidden_state", "kd", "sft"]
ALIGNMENT_OBJECTIVES = ("matrix_mixing", "attention_output", "hidden_state")


class Stage(Strict):
    """Which parameters train, on which objective, data and schedule, for how many tokens."""

    name: str = Field(pattern=r"^[A-Za-z0-9_.-]+$")
    objective: ObjectiveName
    train: Literal["mixer_qk", "mixer", "no_softmax", "no_mlp", "no_softmax_no_mlp", "all"] | None = None
    """Default: `mixer` for alignment, `all` otherwise. See `stages.trained_parameters`."""
    data: str | dict[str, float]
    """A source by name, or a mixture: source → share of the tokens."""
    tokens: Tokens
    length: int = Field(gt=1)
    """Tokens per sequence."""
    batch: int = Field(gt=0)
    """Sequences per optimizer step, over all GPUs."""
    micro_batch: int | None = Field(default=None, gt=0)
    """Sequences per forward pass on one GPU; default: the whole batch."""
    lr: float = Field(gt=0)
    lr_rest: float | None = Field(default=None, gt=0)
    """Learning rate of everything but the mixers; default: `lr`."""
    schedule: Schedule = Schedule()
    optimizer: Optimizer = Optimizer()
    clip: float | None = Field(default=1.0, gt=0)
    """Largest gradient norm (per layer in alignment stages); null: no clipping."""
    packing: Literal["concat", "documents"] = "concat"
    """concat: one stream cut into sequences; documents: whole documents that cannot see each other."""
    mask: Literal["full", "completion"] = "full"
    """Which tokens count: all, or what an assistant wrote (a completion)."""
    loss: Loss = Loss()
    """kd: the weights and the form of CE and KL."""
    distance: Distance = Distance()
    """Alignment objectives: how far apart teacher and student are."""

    @property
    def trains(self) -> str:
        """The name of the set of parameters that train."""
        return self.train or ("mixer" if self.aligns else "all")

    @property
    def aligns(self) -> bool:
        """True where layers are matched one by one instead of the model's output."""
        return self.objective in ALIGNMENT_OBJECTIVES

    @property
    def steps(self) -> int:
        """Optimizer steps that the budget pays for."""
        return self.tokens // (self.batch * self.length)

    @property
    def mixture(self) -> dict[str, float]:
        """Source → share of the tokens, summing to 1."""
        shares = {self.data: 1.0} if isinstance(self.data, str) else self.data
        return {name: share / sum(shares.values()) for name, share in shares.items()}

    @model_validator(mode="after")
    def _consistent(self) -> "Stage":
        if self.steps == 0:
            raise ValueError(
                f"the budget of {self.tokens:,} tokens is smaller than one batch "
                f"of {self.batch} × {self.length}"
            )
        if self.micro_batch is not None and self.batch % self.micro_batch:
            raise ValueError(
                f"'batch' ({self.batch}) is not a multiple of 'micro_batch' ({self.micro_batch})"
            )
        if isinstance(self.data, dict) and (not self.data or min(self.data.values()) <= 0):
            raise ValueError("the shares of a mixture must be positive")
        if self.aligns and self.trains not in ("mixer", "mixer_qk"):
            raise ValueError(f"{self.objective} trains mixers only: 'train' must be mixer or mixer_qk")
        return self


STAGE_FIELDS = frozenset(Stage.model_fields)


class Student(Strict):
    """What is built from the teacher, once per mixer."""

    mixers: list[str] = Field(default_factory=lambda: ["gated_deltanet"], min_length=1)
    softmax_layers: list[int] | str = Field(default_factory=list)
    """Layers (from 0) that keep softmax attention, or the file that `evalsuite select` wrote."""
    selection: SelectedBy | None = None
    """Filled in from that file."""
    options: dict[str, dict[str, Any]] = Field(default_factory=dict)
    """Mixer name → its options."""
    init: Literal["qkvo", "qkv", "vo", "random"] = "qkvo"
    """Which of the teacher's projections the mixers start from."""
    kv_expansion: Literal["heads", "head_size_32", "rows"] = "heads"
    """How a grouped-query teacher's key and value heads are copied for every query head: whole (right), or
    as two defects of published code do it; see `models.mixers.geometry.expand_heads`."""
    checkpoints: dict[str, str] = Field(default_factory=dict)
    """Mixer name → a distilled student to go on from, instead of a fresh one; `:NAME` is the student of that
    variant of the recipe, in the folder beside."""
    sizes_of: str | None = None
    """Without a teacher: the model whose sizes a dry run takes."""


class Recipe(Strict):
    """Everything that decides what a run makes."""

    name: str = Field(pattern=r"^[A-Za-z0-9_.-]+$")
    title: str = ""
    source: str = ""
    """The paper or measurement that the numbers come from."""
    notes: list[str] = Field(default_factory=list)
    """Where this recipe departs from its source, and why."""
    teacher: str | None = None
    """A hub id, folder, GGUF file or `pocket`."""
    student: Student = Student()
    architecture: Architecture | None = None
    data: dict[str, DataSource] = Field(min_length=1)
    stages: list[Stage] = Field(min_length=1)
    seed: int = 0
    precision: Literal["auto", "bf16", "fp32"] = "auto"
    """bf16: a bf16 copy of fp32 master weights runs. auto: bf16 on CUDA, fp32 elsewhere."""
    sharding: Literal["auto", "none", "full"] = "auto"
    """On several GPUs, whether each holds a whole student (none) or a part of it (full: FSDP2). auto: full
    from 3B parameters up. Alignment stages are never sharded."""
    saving: Saving = Saving()
    variants: dict[str, dict[str, Any]] = Field(default_factory=dict)
    """Name → overrides, for the ablations of the source; ask for one with `recipe:name`."""

    @property
    def hash(self) -> str:
        """16 hex digits over all that decides the result (titles, notes, variants and saving do not).

        Only what differs from the defaults is hashed, so that a field which a later version adds does not
        change the hash of a file that says nothing about it; a default, once published, stays. (Up to
        schema 1 of lineage.json defaults were hashed too: such a hash names its recipe file only together
        with the version that wrote it.)
        """
        return content_hash(without_defaults(self, leave_out=UNDECISIVE))

    @property
    def labels(self) -> list[str]:
        """Names of the checkpoints that a run makes: the mixers, or the recipe of an `architecture`."""
        return [self.name] if self.architecture is not None else list(self.student.mixers)

    @property
    def tokens(self) -> int:
        """Tokens that the stages really train on: whole batches only."""
        return sum(stage.steps * stage.batch * stage.length for stage in self.stages)

    @model_validator(mode="after")
    def _consistent(self) -> "Recipe":
        names = [stage.name for stage in self.stages]
        if len(set(names)) < len(names):
            raise ValueError(f"two stages have one name: {', '.join(names)}")
        for stage in self.stages:
            for source in stage.mixture:
                if source not in self.data:
                    raise ValueError(
                        f"stage '{stage.name}': data source '{source}' is not defined"
                        f"{nearest(source, self.data)}"
                    )
        for mixer, start in self.student.checkpoints.items():
            if start.startswith(":") and start[1:] not in self.variants:
                raise ValueError(
                    f"student.checkpoints.{mixer}: there is no variant '{start[1:]}'"
                    f"{nearest(start[1:], self.variants)}"
                )
        if self.architecture is not None:
            if self.teacher is not None:
                raise ValueError("'architecture' starts from random weights and has no 'teacher'")
            if any(stage.objective != "sft" or stage.trains != "all" for stage in self.stages):
                raise ValueError(
                    "an 'architecture' from random weights trains with objective sft, all parameters"
                )
        elif self.teacher is None:
            if any(stage.objective != "sft" for stage in self.stages):
                raise ValueError("'teacher' is required by every objective but sft")
            if set(self.student.mixers) - set(self.student.checkpoints):
                raise ValueError("without a 'teacher', every mixer needs an entry in 'student.checkpoints'")
        return self


UNDECISIVE = ("title", "source", "notes", "variants", "saving", "sharding")
"""Fields of a recipe that do not decide what it makes."""


def without_defaults(model: BaseModel, leave_out: Collection[str] = ()) -> dict[str, Any]:
    """What a validated model says beyond its defaults, as plain JSON values."""
    said: dict[str, Any] = {}
    for name, field in type(model).model_fields.items():
        value = getattr(model, name)
        if name in leave_out or value == field.get_default(call_default_factory=True):
            continue
        said[name] = _plain(value)
    return said


def _plain(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return without_defaults(value)
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_plain(inner) for inner in value]
    return value


def known_recipes() -> list[str]:
    """Names of the recipes that evalsuite ships."""
    return sorted(path.stem for path in RECIPES.glob("*.yaml"))


def load_recipe(name: str | Path, overrides: Iterable[str] = ()) -> Recipe:
    """Read a shipped recipe by name, or any recipe by path, with variants and overrides applied.

    Args:
        name: `pocket`, `kd-nine-2025:gla-qkv-h2h`, `linearizing-2025:360m,10b`, or a path to a YAML file.
        overrides: `key=value` with dotted keys. `stage.lr` means every stage, `stage.kd.lr` or
            `stages.2.lr` one stage (by name or number); values are YAML.

    Raises:
        ConfigError: unknown recipe, variant or key (naming the nearest), or a value of the wrong type.
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
    for variant in filter(None, variants.split(",")):
        if variant not in offered:
            raise ConfigError(f"{source}: unknown variant '{variant}'{nearest(variant, offered)}")
        # A whole group (`stages`) before what is set inside it (`stage.tune.mask`).
        for key, setting in sorted(offered[variant].items(), key=lambda item: item[0].count(".")):
            apply_override(value, key, setting, STAGE_FIELDS, f"{source}, variant {variant}")
    for override in overrides:
        key, equals, setting = override.partition("=")
        if not equals:
            raise ConfigError(f"--set {override}: expected key=value")
        try:
            apply_override(value, key.strip(), yaml.safe_load(setting), STAGE_FIELDS, f"--set {override}")
        except yaml.YAMLError:
            raise ConfigError(f"--set {override}: the value is not YAML") from None
        source = f"{path} with --set"
    return parse(value, Recipe, source)


def write_recipe(recipe: Recipe) -> str:
    """The fully resolved recipe as YAML; reading it back gives an equal recipe."""
    return yaml.safe_dump(recipe.model_dump(mode="json"), sort_keys=False, allow_unicode=True)
