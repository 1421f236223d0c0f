"""Settings of a selection, and the shortened stages of one-swap training."""

from collections.abc import Iterable
from typing import Annotated, TypeVar

from pydantic import Field

from evalsuite.distill.objectives.end_to_end import KnowledgeDistillation
from evalsuite.distill.recipe import Recipe
from evalsuite.distill.recipe.config import Tokens
from evalsuite.distill.recipe.stage import Stage
from evalsuite.distill.selection.layer_sets import StopRule
from evalsuite.foundation import ConfigError, content_hash
from evalsuite.foundation.strict import Seed, Strict, parse
from evalsuite.foundation.strict_yaml import parse_yaml

StageKind = TypeVar("StageKind", bound=Stage)

DEFAULT_FRACTION = 10
"""Shortened stages have one tenth of the tokens of the recipe's stages by default."""
NUM_WINDOWS = 2
"""Windows of snapshots in a pass that may stop early; with a single one, it could only stop at its end."""


RETIRED = {
    "trunk": "all_linear",
    "trunk_stages": "all_linear_stages",
    "batch": "batch_size",
    "rate": "lr_scale",
    "every": "snapshot_interval",
    "stop": "early_stop",
    "keep_state": "save_state",
    "similarity": "min_jaccard",
    "newer": "stop_on_last_slot_tie",
    "examples": "num_examples",
    "pairs": "num_pairs",
    "beam": "beam_width",
}
"""Retired option → current option."""


class Options(Strict):
    """Settings of the selectors; each selector reads the ones that apply to it."""

    set: str | None = None
    """`fixed`: name of a published set."""
    layers: list[int] | None = None
    """`fixed`: explicit list of layers."""
    all_linear: str | None = None
    """Path of an all-linear student of this teacher; by default one is distilled by the recipe."""
    all_linear_stages: Annotated[str, Field(pattern="^(all|alignment)$")] = "all"
    """Stages of the recipe that train the all-linear student. KL-guided selection's code stops after
    alignment; its Algorithm 1 does not."""
    tokens: Tokens | None = None
    """Knowledge-distillation tokens per one-swap student; default: a tenth of the recipe's first kd stage or,
    with `early_stop` and where the stage has as many, two windows of snapshots."""
    align_tokens: Annotated[int, Field(ge=0)] | Tokens | None = None
    """Tokens of the shared alignment before it; default: a tenth of the first alignment stage."""
    batch_size: int | None = Field(default=None, gt=0)
    """Sequences per step of one-swap training; by default those of the stages."""
    lr_scale: float = Field(default=1.0, gt=0)
    """Factor on the learning rates of that knowledge distillation. The full rate perturbs an all-linear
    student whose training ended at a low rate, and with it the ranking of its layers."""
    snapshot_interval: int = Field(default=50, gt=0)
    """Steps between snapshots of the top-K set (Appendix B)."""
    early_stop: bool = True
    """Stop knowledge distillation once the top-K set is stable."""
    save_state: bool = True
    """Save the one-swap students periodically and at the end, 12 bytes per trained parameter each, so that
    training can be resumed or extended. Otherwise an interrupted training restarts."""
    window: int = Field(default=10, gt=1)
    """Number of snapshots that must agree."""
    min_jaccard: float = Field(default=0.9, gt=0, le=1)
    """Minimum mean pairwise Jaccard similarity of these snapshots."""
    stop_on_last_slot_tie: bool = False
    """Also stop when two layers alternate in the last slot (Appendix B, optional rule; see `StopRule`)."""
    iterative: bool = False
    """`ga_*`, `gr_*`, `avg_*`: decide one layer per round (Table 3 of KL-guided selection) instead of scoring
    every layer once (its Algorithm 1)."""
    held_out: int = Field(default=32, gt=0)
    """Sequences of the held-out slice."""
    num_examples: int = Field(default=200, gt=0)
    """Questions per synthetic task and of the knowledge set (500 in arXiv 2603.26556, Appendix D)."""
    num_pairs: int = Field(default=40, gt=4, le=80)
    """Key-value pairs of the associative-recall set (Appendix D)."""
    knowledge: str | None = None
    """Knowledge set: a data source of the recipe with prompts and completions, or a benchmark. Default:
    `pocket_facts` for the pocket tokenizer, otherwise the training questions of `arc_easy`."""
    beam_width: int = Field(default=4, gt=0)
    """Beam width; the paper does not state its own."""
    seed: Seed = 0
    """Seed of the synthetic questions."""

    @property
    def rule(self) -> StopRule:
        """Early-stop rule with these settings."""
        return StopRule(
            window=self.window, min_jaccard=self.min_jaccard, stop_on_last_slot_tie=self.stop_on_last_slot_tie
        )


def load_options(settings: Iterable[str]) -> Options:
    """Parse `key=value` settings; values are YAML.

    Raises:
        ConfigError: no `=`, an unknown key (with the nearest known one), or an invalid value.
    """
    values = {}
    for setting in settings:
        key, equals, value = setting.partition("=")
        if not equals:
            raise ConfigError(f"--option {setting}: expected key=value")
        key = key.strip()
        if key in RETIRED:
            raise ConfigError(f"--option {setting}: '{key}' has been renamed to '{RETIRED[key]}'")
        if key in values:
            raise ConfigError(f"--option {setting}: '{key}' is given twice")
        values[key] = parse_yaml(value, f"--option {setting}")
    return parse(values, Options, "--option")


def shorten_alignment_stage(recipe: Recipe, options: Options) -> Stage | None:
    """Return the recipe's first alignment stage with fewer tokens; None without alignment.

    Raises:
        ConfigError: too few tokens for one step.
    """
    own = next((stage for stage in recipe.stages if stage.is_layerwise), None)
    if own is None or options.align_tokens == 0:
        return None
    return _shorten(own, options.align_tokens, options.batch_size, "align_tokens")


def shorten_kd_stage(recipe: Recipe, options: Options) -> KnowledgeDistillation:
    """Return the recipe's first knowledge-distillation stage with fewer tokens.

    Raises:
        ConfigError: the recipe has none, or too few tokens for one step.
    """
    own = next((stage for stage in recipe.stages if isinstance(stage, KnowledgeDistillation)), None)
    if own is None or not own.runs_teacher:
        raise ConfigError(f"recipe '{recipe.name}' has no stage with objective kd, which this selector needs")
    tokens_per_step = (options.batch_size or own.batch_size) * own.seq_len
    windows = NUM_WINDOWS * options.window * options.snapshot_interval * tokens_per_step
    tokens = options.tokens
    if tokens is None and options.early_stop and own.tokens // DEFAULT_FRACTION < windows <= own.tokens:
        tokens = windows
    short = _shorten(own, tokens, options.batch_size, "tokens")
    rest = None if short.backbone_lr is None else short.backbone_lr * options.lr_scale
    return short.model_copy(update={"lr": short.lr * options.lr_scale, "backbone_lr": rest})


def _shorten(stage: StageKind, tokens: int | None, batch: int | None, option: str) -> StageKind:
    size = batch or stage.batch_size
    value = stage.model_dump()
    value["batch_size"] = size
    if batch is not None:
        value["micro_batch_size"] = min(stage.micro_batch_size, size) if stage.micro_batch_size else None
    value["tokens"] = (
        tokens if tokens is not None else max(stage.tokens // DEFAULT_FRACTION, size * stage.seq_len)
    )
    return parse(value, type(stage), f"--option {option}")


def options_hash(recipe: Recipe, options: Options, *names: str) -> str:
    """Hash recipe and named options to 8 hex digits, for folder names."""
    return content_hash([recipe.hash, {name: getattr(options, name) for name in names}], 8)
