"""A recipe: one YAML file that says teacher, student, stages, data and budget.

    recipe = load_recipe("linearizing-2025:360m,10b", ["stage.lr=3e-4", "student.mixers=[gla]"])

A name may carry variants after a colon: each is a set of overrides that the recipe file itself lists
(its ablation grid). Overrides from the command line come last and are checked as the file is.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BeforeValidator, Field, model_validator

from evalsuite.distill.overrides import apply_override
from evalsuite.distill.schedules import Schedule
from evalsuite.foundation import ConfigError, content_hash, nearest
from evalsuite.foundation.strict import Strict, parse, read_yaml

RECIPES = Path(__file__).parent / "recipes"

ObjectiveName = Literal["matrix_mixing", "attention_output", "hidden_state", "kd", "sft"]
ALIGNMENT_OBJECTIVES = ("matrix_mixing", "attention_output", "hidden_state")


def _tokens(value: Any) -> Any:
    """Read `80M`, `1.5B`, `20k` or a plain number as a count of tokens."""
    if not isinstance(value, str):
        return value
    text = value.strip().replace("_", "").replace(",", "")
    scale = {"k": 10**3, "M": 10**6, "B": 10**9}.get(text[-1:], 1)
    try:
        return round(float(text[:-1] if scale > 1 else text) * scale)
    except ValueError:
        raise ValueError("a count of tokens such as 500000, 80M or 1.5B was expected") from None


Tokens = Annotated[int, BeforeValidator(_tokens), Field(gt=0)]
Fraction = Annotated[float, Field(ge=0, le=1)]


class DataSource(Strict):
    """Where examples come from. An example is a text, a prompt with its completion, or chat messages."""

    kind: Literal["pocket", "local", "hub", "responses"]
    """The pocket world; files on this disk; a hub dataset, streamed; what the teacher writes to prompts."""
    files: list[str] = Field(default_factory=list)
    """local: paths or glob patterns of .parquet, .jsonl or .jsonl.zst files; read in sorted order."""
    dataset: str | None = None
    """hub: `organisation/name`."""
    config: str | None = None
    """hub: the dataset's configuration."""
    split: str = "train"
    """hub: the split; pocket: the split of the corpus."""
    revision: str | None = None
    """hub: a commit, so that a later run reads the same bytes."""
    text: str = "text"
    """Name of the column that holds plain text."""
    messages: str | None = None
    """Name of the column that holds a list of {role, content}; read instead of `text`."""
    prompt: str | None = None
    """Name of the column of prompts; read with `completion` instead of `text`."""
    completion: str | None = None
    """Name of the column of completions."""
    chat_template: str | None = None
    """Name of a shipped chat template, or a Jinja template; by default the tokenizer's own."""
    where: dict[str, str | int | float | list[str]] = Field(default_factory=dict)
    """Rows to keep: column → a value, a list of values, or a number as the least value."""
    min_characters: int = Field(default=1, ge=1)
    """Shorter examples are dropped."""
    kinds: dict[str, float] = Field(default_factory=dict)
    """pocket: kind of text → share; default: the world's own mixture."""
    longest: int | None = Field(default=None, ge=1)
    """pocket: tokens of the longest haystack."""
    seed: int = 0
    """Seed of the order of documents, and of the pocket world's texts."""
    shuffle: int = Field(default=16384, ge=1)
    """Documents that are read and shuffled together."""
    prompts: str | None = None
    """responses: the source (with completions or messages) whose prompts the teacher answers."""
    count: int = Field(default=1000, ge=1)
    """responses: how many prompts."""
    max_new_tokens: int = Field(default=512, ge=1)
    """responses: longer answers are dropped."""
    temperature: float = Field(default=0.0, ge=0)
    """responses: 0 is greedy."""
    top_p: float = Field(default=1.0, gt=0, le=1)
    """responses: nucleus sampling."""
    workers: int = Field(default=0, ge=0)
    """pocket: processes that write texts ahead; 0: none, the reading thread does it."""
    repeat: bool = True
    """Start again, in another order, when the documents are used up."""
    part: Literal["all", "train", "held_out"] = "all"
    """local, hub: all documents, or all but a hundredth of them, or that hundredth, by a hash of the text."""

    @model_validator(mode="after")
    def _complete(self) -> "DataSource":
        if self.kind == "local" and not self.files:
            raise ValueError("a local source needs 'files'")
        if self.kind == "hub" and not self.dataset:
            raise ValueError("a hub source needs 'dataset'")
        if self.kind == "responses" and not self.prompts:
            raise ValueError("a source of responses needs 'prompts'")
        if (self.prompt is None) != (self.completion is None):
            raise ValueError("'prompt' and 'completion' go together")
        return self


class Optimizer(Strict):
    """AdamW on fp32 master weights, or Muon for matrices with AdamW for everything else."""

    kind: Literal["adamw", "muon"] = "adamw"
    beta1: Fraction = 0.9
    beta2: Fraction = 0.95
    epsilon: float = Field(default=1e-8, gt=0)
    weight_decay: float = Field(default=0.1, ge=0)
    """Applied to matrices of two or more dimensions, never to norms, biases, gates' vectors or embeddings."""
    momentum: Fraction = 0.95
    """muon: momentum of the matrices' update."""


class Loss(Strict):
    """The `kd` objective: ce · CE + kl · KL, each a mean over the tokens that count."""

    ce: float = Field(default=0.0, ge=0)
    kl: float = Field(default=1.0, ge=0)
    temperature: float = Field(default=1.0, gt=0)
    """Of both distributions in the KL, whose gradient is scaled by its square."""
    direction: Literal["forward", "reverse"] = "forward"
    """forward: KL(teacher ‖ student); reverse: KL(student ‖ teacher)."""
    top_k: int | None = Field(default=None, ge=1)
    """Only the teacher's K likeliest tokens; by default the whole vocabulary."""
    rest: Literal["renormalise", "bucket"] = "renormalise"
    """top_k: forget the other tokens, or keep them as one more outcome."""
    scale: Literal["token_mean", "times_length"] = "token_mean"
    """times_length repeats a defect of published code, in which `batchmean` made the KL T times too large."""

    @model_validator(mode="after")
    def _something(self) -> "Loss":
        if self.ce == 0 and self.kl == 0:
            raise ValueError("'ce' and 'kl' are both 0, so that nothing would be learnt")
        return self


class Distance(Strict):
    """How the alignment objectives measure distance."""

    squared: bool | None = None
    """Squared L2 norm (default of attention_output) or the norm itself (default of hidden_state)."""
    target: Literal["mixer", "block"] | None = None
    """Compare the mixer's output (attention_output) or the block's (hidden_state)."""
    relative: bool = False
    """Divide by the teacher's own mean square, so that no layer outweighs another."""
    matrix_norm: Literal["frobenius", "mse"] = "frobenius"


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


class SelectedBy(Strict):
    """Where a list of softmax layers comes from, for the lineage."""

    selector: str
    teacher: str | None = None
    """weights_id of the teacher that the layers were chosen in; another one is refused."""
    mixer: str | None = None
    """The mixer that probed; the student may use another."""


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
    checkpoints: dict[str, str] = Field(default_factory=dict)
    """Mixer name → a distilled student to go on from, instead of a fresh one."""
    sizes_of: str | None = None
    """Without a teacher: the model whose sizes a dry run takes."""


class Architecture(Strict):
    """A Llama-style Transformer that starts from random weights (objective `sft`)."""

    tokenizer: str
    """A folder or hub id, or `pocket` for the pocket world's own."""
    hidden_size: int = Field(gt=0)
    layers: int = Field(gt=0)
    heads: int = Field(gt=0)
    kv_heads: int = Field(gt=0)
    head_dim: int = Field(gt=0)
    intermediate_size: int = Field(gt=0)
    max_length: int = Field(gt=0)
    """Longest context, in tokens."""
    rope_theta: float = Field(default=10000.0, gt=0)
    tie_embeddings: bool = True
    initial_std: float = Field(default=0.02, gt=0)


class Saving(Strict):
    """What is written on the way."""

    state_seconds: float = Field(default=300.0, ge=0)
    """Seconds between saved training states (from which a killed run goes on); 0: after every step."""
    checkpoint_tokens: Tokens | None = None
    """Tokens between checkpoints kept for token-scaling studies, besides the one at each stage's end."""
    stage_checkpoints: bool = True
    """Keep a checkpoint at the end of each stage but the last (whose is the student itself)."""
    tensorboard: bool = False


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
    """bf16: autocast over fp32 master weights. auto: bf16 on CUDA, fp32 elsewhere."""
    saving: Saving = Saving()
    variants: dict[str, dict[str, Any]] = Field(default_factory=dict)
    """Name → overrides, for the ablations of the source; ask for one with `recipe:name`."""

    @property
    def hash(self) -> str:
        """16 hex digits over all that decides the result (titles, notes, variants and saving do not)."""
        decisive = self.model_dump(mode="json", exclude={"title", "source", "notes", "variants", "saving"})
        return content_hash(decisive)

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
        for key, setting in offered[variant].items():
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
