"""A benchmark: one YAML file that says what is asked, how under each protocol, and what chance scores."""

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from evalsuite.foundation import ConfigError, nearest
from evalsuite.foundation.metrics import PERPLEXITIES
from evalsuite.foundation.strict import Strict, load

FOLDER = Path(__file__).parent / "benchmarks"
PROTOCOLS = ("loglikelihood", "generation")

ProtocolName = Literal["loglikelihood", "generation"]
Chance = float | Literal["per_document"] | None


class Source(Strict):
    """Rows of a data set of the hub, or of a frozen copy of it."""

    dataset: str
    """Hub id, such as ``allenai/ai2_arc``."""
    config: str | None = None
    configs: tuple[str, ...] = ()
    """Several configs, each one subject of the benchmark; instead of `config`."""
    split: str
    shots_split: str | None = None
    """Split that few-shot examples are drawn from; never the evaluated one."""
    subject_column: str | None = None
    """Column that names a row's subject."""
    merged: bool = False
    """The hub keeps one config per subject; frozen, they are one file with `subject_column`."""
    where: dict[str, str] = Field(default_factory=dict)
    """Keep only rows whose columns have these values; case and surrounding space do not count."""
    derive: str | None = None
    """A name from `evalsuite.tasks.derive.DERIVE`, which makes questions of the rows."""
    options: dict[str, int] = Field(default_factory=dict)
    """Of `derive`: ``templates: 3``."""

    @model_validator(mode="after")
    def _is_consistent(self) -> "Source":
        if self.config is not None and self.configs:
            raise ValueError("give either 'config' or 'configs'")
        if self.merged and (self.config is not None or self.configs or self.subject_column is None):
            raise ValueError("'merged' needs 'subject_column', and neither 'config' nor 'configs'")
        if self.shots_split == self.split:
            raise ValueError("'shots_split' must not be the evaluated split")
        if self.options and self.derive is None:
            raise ValueError("'options' belong to 'derive'")
        return self


class Split(Strict):
    """One split of a data set, whole."""

    dataset: str
    config: str | None = None
    split: str


class Generated(Strict):
    """Rows that a generator of ours makes from a seed."""

    generator: str
    """A name from `evalsuite.tasks.documents.GENERATORS`."""
    kind: str
    count: int = Field(ge=1)
    """Documents, per context length where there are contexts; at most, where it draws from `reads`."""
    reads: tuple[Split, ...] = ()
    """What the generator draws text or questions from."""


class SamplingSpec(Strict):
    """How an answer is written; see `evalsuite.models.engine.requests.Sampling`."""

    max_new_tokens: int = Field(ge=1)
    temperature: float = Field(default=0.0, ge=0)
    top_p: float = Field(default=1.0, gt=0, le=1)
    top_k: int = Field(default=0, ge=0)
    stop: tuple[str, ...] = ()


class LogLikelihood(Strict):
    """How a benchmark is asked by ranking log-likelihoods, through lm-eval."""

    task: str
    """A task file below lm-eval's task folder (``arc/arc_easy.yaml``; ``{subject}`` stands for the
    subject), or ``evalsuite/<name>.yaml`` for one of ours (`evalsuite/protocols/lm_eval_tasks`)."""
    metric: str
    """The metric that tables show; a suite may choose another of the task's."""
    direction: Literal["higher", "lower"] = "higher"
    units: str | None = None
    shots: int = Field(default=0, ge=0)
    begin: bool = False
    """Every context begins with the tokenizer's BOS (EOS where it has none), whatever it does by default."""
    chance: Chance = None
    """Where it differs from the benchmark's own."""

    @model_validator(mode="after")
    def _direction_is_the_metrics(self) -> "LogLikelihood":
        lower = self.metric in PERPLEXITIES
        if (self.direction, self.units) != ("lower" if lower else "higher", PERPLEXITIES.get(self.metric)):
            kind = f"a perplexity: lower, units {PERPLEXITIES[self.metric]}" if lower else "higher is better"
            raise ValueError(f"'direction' and 'units' do not fit metric {self.metric} ({kind})")
        return self

    def with_metric(self, metric: str) -> "LogLikelihood":
        """The same questions, with another main metric."""
        lower = metric in PERPLEXITIES
        direction: Literal["higher", "lower"] = "lower" if lower else "higher"
        return self.model_copy(
            update={"metric": metric, "direction": direction, "units": PERPLEXITIES.get(metric)}
        )


class Generation(Strict):
    """How a benchmark is asked by making the model write, through EvalScope."""

    dataset: str
    """An EvalScope benchmark, or ``evalsuite`` for our adapter over rows with a prompt."""
    metric: str
    shots: int = Field(default=0, ge=0)
    prompt: Literal["chat", "literal"] = "chat"
    """`chat`: through the tokenizer's chat template where there is one; `literal`: the text as it is."""
    judge: str | None = None
    """For our adapter: a name from `evalsuite.protocols.judges.JUDGES`."""
    fields: dict[str, str] = Field(default_factory=dict)
    """Columns that EvalScope expects, as Jinja expressions over the row: ``question: goal``."""
    template: str | None = None
    """For our adapter: the prompt as a Jinja template over the row, where rows bring none themselves."""
    truncate: Literal["middle"] | None = None
    """Cut what a model cannot read whole, leaving `max_new_tokens` free. None: refuse it by name."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Further arguments of EvalScope's benchmark (`dataset_args`)."""
    executes: bool = False
    """Judging runs code that the model wrote: only where a user allows it."""
    sampling: SamplingSpec
    chance: Chance = None
    """Where it differs from the benchmark's own."""

    @model_validator(mode="after")
    def _judge_is_ours(self) -> "Generation":
        if (self.dataset == "evalsuite") != (self.judge is not None):
            raise ValueError("'judge' belongs to dataset 'evalsuite', and only there")
        if self.template is not None and self.judge is None:
            raise ValueError("'template' belongs to dataset 'evalsuite'; EvalScope's have their own")
        return self


class Benchmark(Strict):
    """A named question set with up to two protocols over the same documents."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.+-]*$")
    title: str
    category: Literal[
        "knowledge", "common_sense", "reasoning", "instruction_following", "recall", "language_modeling"
    ]
    chance: Chance = None
    """Score of a guesser as a fraction; `per_document`: one over the number of choices; None: unknown."""
    licence: str
    citation: str
    source: Source | None = None
    sources: dict[str, Source] = Field(default_factory=dict)
    """Instead of `source`: several data sets, each a subject. A limit is shared out evenly among them."""
    generated: Generated | None = None
    """Instead of `source`."""
    documents: int | None = Field(default=None, ge=1)
    """How many documents there are as published; a data folder may hold only part of them."""
    contexts: tuple[int, ...] = ()
    """Lengths in tokens at which it is asked unless a suite says otherwise."""
    group: str | None = None
    """Suite of which it is a part, such as ``longbench``."""
    needs: str | None = None
    """What a user must bring or allow beside its data; shown by `evalsuite show`."""
    resources: tuple[Literal["punkt_tab"], ...] = ()
    """What its metric reads beside its rows; see `evalsuite.tasks.resources`."""
    loglikelihood: LogLikelihood | None = None
    generation: Generation | None = None

    @field_validator("chance")
    @classmethod
    def _chance_is_a_fraction(cls, value: Chance) -> Chance:
        if isinstance(value, float) and not 0 <= value < 1:
            raise ValueError("a chance level is a fraction, at least 0 and below 1")
        return value

    @model_validator(mode="after")
    def _is_complete(self) -> "Benchmark":
        given = [self.source is not None, bool(self.sources), self.generated is not None]
        if sum(given) != 1:
            raise ValueError("give either a 'source' or a 'generated' block (or several 'sources')")
        if self.generated is not None and self.documents is not None:
            raise ValueError(
                "'documents' belongs to a 'source'; a generator's 'count' says how many it makes"
            )
        if self.contexts and self.generated is None:
            raise ValueError("'contexts' need a generator")
        if not self.protocols:
            raise ValueError("give a 'loglikelihood' block, a 'generation' block, or both")
        return self

    @property
    def parts(self) -> tuple[tuple[str | None, Source], ...]:
        """Its data sets, each with the subject that it stands for; none where rows are generated."""
        if self.source is not None:
            return ((None, self.source),)
        return tuple(self.sources.items())

    @property
    def published(self) -> int | None:
        """Documents of the whole benchmark (of one context, where there are several); None: not known."""
        return self.generated.count if self.generated is not None else self.documents

    @property
    def draws_shots(self) -> bool:
        """Whether there is a split to draw few-shot examples from."""
        return any(source.shots_split is not None for _, source in self.parts)

    @property
    def protocols(self) -> tuple[ProtocolName, ...]:
        """The protocols it has."""
        found: list[ProtocolName] = []
        if self.loglikelihood is not None:
            found.append("loglikelihood")
        if self.generation is not None:
            found.append("generation")
        return tuple(found)


def known_benchmarks() -> list[str]:
    """Names of the benchmarks that are built in, sorted."""
    return sorted(path.stem for path in FOLDER.glob("*.yaml"))


def load_benchmark(name: str | Path, *, near: Path | None = None) -> Benchmark:
    """Load a built-in benchmark by name, or a YAML file by path.

    Args:
        name: a name, or a path that ends in ``.yaml``.
        near: folder that a relative path starts from.

    Raises:
        ConfigError: an unknown name (the nearest known one is named), or a file that is not a benchmark.
    """
    if str(name).endswith((".yaml", ".yml")):
        return load((near / name) if near is not None else Path(name), Benchmark)
    return _built_in(str(name))


@cache
def _built_in(name: str) -> Benchmark:
    path = FOLDER / f"{name}.yaml"
    if "/" in name or not path.is_file():
        raise ConfigError(f"unknown benchmark '{name}'{nearest(name, known_benchmarks())}")
    benchmark = load(path, Benchmark)
    if benchmark.name != name:
        raise ConfigError(f"{path}: 'name' = {benchmark.name!r}; the file is called {name}")
    return benchmark


def all_benchmarks() -> Iterator[Benchmark]:
    """Yield every built-in benchmark, by name."""
    for name in known_benchmarks():
        yield load_benchmark(name)
