"""What a user may set about a selection, beside the recipe."""

from collections.abc import Iterable
from typing import Annotated

import yaml
from pydantic import Field

from evalsuite.distill.recipe import Recipe, Stage, Tokens
from evalsuite.distill.selection.sets import StopRule
from evalsuite.foundation import ConfigError, content_hash
from evalsuite.foundation.strict import Strict, parse

BRIEF = 10
"""A brief adaptation takes one part in so many of the recipe's own budget."""


class Options(Strict):
    """Settings of the selectors; each uses what concerns it."""

    set: str | None = None
    """fixed: name of a published set."""
    layers: list[int] | None = None
    """fixed: the layers themselves."""
    trunk: str | None = None
    """An all-linear student of this teacher to start from; by default one is distilled as the recipe says."""
    trunk_stages: Annotated[str, Field(pattern="^(all|alignment)$")] = "all"
    """Which of the recipe's stages make the trunk (the code published with KL-guided selection stops after
    alignment, its Algorithm 1 does not)."""
    tokens: Tokens | None = None
    """Of knowledge distillation per one-swap student; by default a tenth of the recipe's first kd stage."""
    align_tokens: Annotated[int, Field(ge=0)] | Tokens | None = None
    """Of alignment before it, done once for all; by default a tenth of the recipe's first alignment stage."""
    batch: int | None = Field(default=None, gt=0)
    """Sequences per step of the one-swap passes; by default the stages' own."""
    rate: float = Field(default=1.0, gt=0)
    """Learning rates of that knowledge distillation, as a share of the stage's own. A trunk that ended at a
    low rate is shaken up by the full one, and the ranking of its layers with it."""
    every: int = Field(default=50, gt=0)
    """Steps between snapshots of the top-K set (Appendix B)."""
    stop: bool = True
    """Stop a knowledge-distillation pass early, once its top-K set has settled."""
    keep_state: bool = True
    """Save the one-swap students now and then and at the end, so that a pass can be resumed or gone on with.
    They take 12 bytes a trained parameter each; without, an interrupted pass starts again."""
    window: int = Field(default=10, gt=1)
    """Snapshots that must agree."""
    similarity: float = Field(default=0.9, gt=0, le=1)
    """Least mean Jaccard similarity of these."""
    newer: bool = False
    """Stop as well where the last place has just gone to the newer of two layers (see `StopRule`)."""
    iterative: bool = False
    """ga_*, gr_*, avg_*: decide one layer a round, as Table 3 of KL-guided selection puts it, instead of
    rating every layer once, as its Algorithm 1 does."""
    held_out: int = Field(default=32, gt=0)
    """Sequences of the held-out slice."""
    examples: int = Field(default=200, gt=0)
    """Questions per synthetic task and of the knowledge set (500 in arXiv 2603.26556, Appendix D)."""
    pairs: int = Field(default=40, gt=4, le=80)
    """Key-value pairs of the associative-recall set (Appendix D)."""
    knowledge: str | None = None
    """The knowledge set: a data source of the recipe with prompts and completions, or a benchmark's name;
    by default the pocket world's facts for a pocket tokenizer, else `arc_easy` (its training questions)."""
    beam: int = Field(default=4, gt=0)
    """Configurations that a beam search keeps at each depth; the paper does not print its own."""
    seed: int = 0
    """Of the synthetic questions."""

    @property
    def rule(self) -> StopRule:
        """The early-stop rule with these settings."""
        return StopRule(window=self.window, similarity=self.similarity, newer=self.newer)


def load_options(settings: Iterable[str]) -> Options:
    """Options from `key=value` texts, values as YAML.

    Raises:
        ConfigError: no `=`, an unknown key (naming the nearest), or a value that is not possible.
    """
    values = {}
    for setting in settings:
        key, equals, value = setting.partition("=")
        if not equals:
            raise ConfigError(f"--option {setting}: expected key=value")
        try:
            values[key.strip()] = yaml.safe_load(value)
        except yaml.YAMLError:
            raise ConfigError(f"--option {setting}: the value is not YAML") from None
    return parse(values, Options, "--option")


def alignment_stage(recipe: Recipe, options: Options) -> Stage | None:
    """The brief first stage: the recipe's first alignment stage, cut down; None if nothing is to be aligned.

    Raises:
        ConfigError: the budget does not pay for one step.
    """
    own = next((stage for stage in recipe.stages if stage.aligns), None)
    if own is None or options.align_tokens == 0:
        return None
    return _brief(own, options.align_tokens, options.batch, "align_tokens")


def kd_stage(recipe: Recipe, options: Options) -> Stage:
    """The brief second stage: the recipe's first knowledge-distillation stage, cut down.

    Raises:
        ConfigError: the recipe has none, or the budget does not pay for one step.
    """
    own = next((stage for stage in recipe.stages if stage.objective == "kd"), None)
    if own is None or not own.loss.kl:
        raise ConfigError(
            f"recipe '{recipe.name}' has no stage with objective kd, whose data and rates this selector takes"
        )
    brief = _brief(own, options.tokens, options.batch, "tokens")
    rest = None if brief.lr_rest is None else brief.lr_rest * options.rate
    return brief.model_copy(update={"lr": brief.lr * options.rate, "lr_rest": rest})


def _brief(stage: Stage, tokens: int | None, batch: int | None, option: str) -> Stage:
    size = batch or stage.batch
    value = stage.model_dump()
    value["batch"] = size
    if batch is not None:
        value["micro_batch"] = min(stage.micro_batch, size) if stage.micro_batch else None
    value["tokens"] = tokens if tokens is not None else max(stage.tokens // BRIEF, size * stage.length)
    return parse(value, Stage, f"--option {option}")


def identity(recipe: Recipe, options: Options, *names: str) -> str:
    """8 hex digits over the recipe and the named options: what a journal in the work folder belongs to."""
    return content_hash([recipe.hash, {name: getattr(options, name) for name in names}], 8)
