"""Benchmarks, in YAML or in Python: data source, protocols, metrics and chance level.

A YAML file may `include` a built-in benchmark, as lm-eval's task files do: it then has that benchmark's keys,
except those that it gives itself.
"""

import os
from collections.abc import Iterable, Iterator
from functools import partial
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any, Literal

from pydantic import (
    Field,
    PrivateAttr,
    SerializerFunctionWrapHandler,
    field_validator,
    model_serializer,
    model_validator,
)

from evalsuite.foundation import ConfigError, DataError, nearest
from evalsuite.foundation.registry import Registry
from evalsuite.foundation.strict import Positive, Seed, Strict, parse
from evalsuite.foundation.strict_yaml import read_yaml
from evalsuite.foundation.taxonomy import CATEGORIES, PERPLEXITIES, PROTOCOLS, Category, Protocol
from evalsuite.tasks.questions import QuestionFile, columns_of, hash_of, open_questions
from evalsuite.tasks.requested import YAML_FILES, Requested, is_questions_file, parse_item, requested_name

FOLDER = Path(__file__).parent / "benchmarks"

COMPLETION_TASK = "evalsuite/choices.yaml"
"""lm-eval task of rows with a prompt and choices."""

Chance = float | Literal["per_document"] | None
ChatTemplateValue = bool | int | float | str


class Columns(Strict):
    """Columns of a file of questions; one that is not named is found by convention."""

    question: str | None = None
    """The question: `question`; or the complete prompt: `prompt` or `input`."""
    choices: str | None = None
    """A list of choices: `choices` or `options`; or columns `A`, `B` and so on. Without them, questions are
    answered in words."""
    answer: str | None = None
    """The right choice, as index from 0, letter or text; or the accepted answers. `answer`, `target`,
    `answers`, `gold` or `label`."""
    context: str | None = None
    """A text that the question is about: `context` or `passage`."""


def without_none(values: dict[str, Any], *keys: str) -> dict[str, Any]:
    """Return a mapping without those of some keys whose value is None."""
    return {key: value for key, value in values.items() if value is not None or key not in keys}


class ContextRows(Strict):
    """The rows of one prompt length: a config of the dataset, or those within bounds of a column."""

    config: str | None = None
    above: dict[str, float] = Field(default_factory=dict)
    """Column → every value is larger."""
    at_most: dict[str, float] = Field(default_factory=dict)
    """Column → no value is larger."""


class Source(Strict):
    """Rows of a hub dataset or of a frozen copy of it, or of a file of one's own."""

    dataset: str = ""
    """Hub id, such as ``allenai/ai2_arc``."""
    file: str = ""
    """File of rows instead of a `dataset`: JSON lines, CSV, TSV or Parquet, relative to the YAML file."""
    columns: Columns | None = None
    """Makes questions of the rows of a `file`, as a benchmark without a protocol does; otherwise rows stay as
    they are."""
    sha256: str = ""
    """Hash of the `file`, which a run records; a stated one must be the file's."""
    config: str | None = None
    configs: tuple[str, ...] = ()
    """Several configs, each a subject of the benchmark; excludes `config`."""
    split: str = ""
    fewshot_split: str | None = None
    """Split that few-shot examples are drawn from; never the evaluated one."""
    subject_column: str | None = None
    """Column that names the subject of a row."""
    cluster_column: str | None = None
    """Column whose equal values mark documents that share a passage, task, relation or subject; intervals
    resample them together. ``subject`` stands for the subject where there is no such column."""
    merge_configs: bool = False
    """The hub has one config per subject; the frozen copy is one file with `subject_column`."""
    filters: dict[str, str] = Field(default_factory=dict)
    """Column → required value; case and surrounding whitespace are ignored."""
    contexts: dict[Positive, ContextRows] = Field(default_factory=dict)
    """Prompt length in tokens → its rows, for a dataset that has several lengths."""
    transform: str | None = None
    """A name from `evalsuite show transforms`, which turns rows into questions."""
    transform_args: dict[str, bool | int | float | str] = Field(default_factory=dict)
    """Arguments of `transform`, such as ``templates: 3``."""
    _path: Path | None = PrivateAttr(default=None)

    @property
    def name(self) -> str:
        """The dataset, or the name of the file; used in messages."""
        return self.dataset or Path(self.file).name

    @property
    def address(self) -> str:
        """The dataset with its split, or the path of the file; used in messages."""
        return str(self._path or self.file) if self.file else f"{self.dataset} ({self.split})"

    @property
    def path(self) -> Path:
        """Where the file lies."""
        if self._path is None:
            raise DataError(
                f"{self.file}: a run folder does not say where this file lies; name its benchmark"
            )
        return self._path

    def at(self, context: int | None) -> "Source":
        """Return the source with the config of one prompt length; None: the source itself."""
        if context is None or self.contexts[context].config is None:
            return self
        return self.model_copy(update={"config": self.contexts[context].config})

    def open_file(self) -> QuestionFile:
        """Open a file of questions. Raises ConfigError or DataError as `open_questions` does."""
        return open_questions(self.path, columns_of(self.columns.model_dump() if self.columns else {}))

    @model_serializer(mode="wrap")
    def _without_the_other_kind(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        values: dict[str, Any] = serialize(self)
        unused = ["file", "columns", "sha256"]
        if self.file:
            # Where the file lies changes nothing.
            values["file"] = Path(self.file).name
            unused = ["dataset", "split"]
        if not self.contexts:
            unused.append("contexts")
        return {key: value for key, value in values.items() if key not in unused}

    @model_validator(mode="after")
    def _is_a_dataset_or_a_file(self) -> "Source":
        if bool(self.dataset) == bool(self.file):
            raise ValueError("give either 'dataset' or 'file'")
        if self.dataset and not self.split:
            raise ValueError("'split' is required")
        of_datasets = ("split", "fewshot_split", "config", "configs", "merge_configs")
        for key in of_datasets if self.file else ("columns", "sha256"):
            if getattr(self, key):
                raise ValueError(f"'{key}' belongs to a '{'dataset' if self.file else 'file'}'; remove it")
        if self.columns is not None and self.transform is not None:
            raise ValueError("give either 'columns' or 'transform'")
        return self

    @model_validator(mode="after")
    def _is_consistent(self) -> "Source":
        if self.config is not None and self.configs:
            raise ValueError("give either 'config' or 'configs'")
        if self.configs and any(part.config is not None for part in self.contexts.values()):
            raise ValueError("give either 'configs' or the configs of 'contexts'")
        if self.merge_configs and (self.config is not None or self.configs or self.subject_column is None):
            raise ValueError("'merge_configs' needs 'subject_column', and neither 'config' nor 'configs'")
        if self.fewshot_split is not None and self.fewshot_split == self.split:
            raise ValueError("'fewshot_split' must not be the evaluated split")
        if self.transform_args and self.transform is None:
            raise ValueError("'transform_args' needs 'transform'")
        return self


class SplitRef(Strict):
    """One complete split of a dataset."""

    dataset: str
    config: str | None = None
    split: str


class Generated(Strict):
    """Rows that a generator makes from a seed."""

    generator: str
    """A name from `evalsuite show generators`; for a benchmark in Python, its own."""
    task: str
    """Task of the generator, such as ``niah_single_1``."""
    count: int = Field(ge=1)
    """Documents, per context length where there are several; an upper bound if drawn from `inputs`."""
    inputs: tuple[SplitRef, ...] = ()
    """Splits that the generator takes texts or questions from."""


class SamplingSpec(Strict):
    """Sampling parameters of generation; see `evalsuite.models.inference.requests.Sampling`."""

    max_new_tokens: int = Field(ge=1)
    """Longest response, in tokens."""
    temperature: float = Field(default=0.0, ge=0)
    """0 is greedy."""
    top_p: float = Field(default=1.0, gt=0, le=1)
    """Nucleus sampling; 1 disables it."""
    top_k: int = Field(default=0, ge=0)
    """Number of most likely tokens to sample from; 0: all."""
    stop: tuple[str, ...] = ()
    """Strings that end a response; the text is cut before the first of them."""
    thinking_budget: int | None = Field(default=None, ge=1)
    """Tokens after which a thought that is still open is closed by force; `max_new_tokens` is the answer's.
    None: no budget, and thought and answer have `max_new_tokens` together."""

    @model_serializer(mode="wrap")
    def _without_defaults_of_later_keys(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return without_none(serialize(self), "thinking_budget")


class Completion(Strict):
    """Few-shot prompts that a model completes, the same text under both protocols.

    For models that follow no instructions. A row gets the columns `prompt`, `choices` and `gold`, which
    ``evalsuite/choices.yaml`` and the built-in adapter read; examples and the question are the same text.
    """

    prompt: str
    """Jinja template over the columns of a row; it ends where the answer begins."""
    answer: str
    """Jinja template of the right answer, which follows the prompt after a space."""
    choices: str | None = None
    """Jinja expression of the choices' texts, with the right answer among them; None: that answer alone."""
    num_fewshot: int = Field(default=0, ge=0)
    """Examples before each question, drawn for each document from its content."""
    set_aside: int = Field(default=0, ge=0)
    """Documents that examples are drawn from, where there is no `fewshot_split`. Neither they nor documents
    of their clusters are evaluated. For generated documents: further ones, of another seed."""
    seed: Seed = 0
    """Decides which documents are set aside and which examples a document gets, whatever the suite."""
    separator: str = "\n\n"
    """Between examples, and before the question."""

    @model_validator(mode="after")
    def _answer_can_follow(self) -> "Completion":
        if self.prompt.endswith((" ", "\n")):
            raise ValueError("'prompt' must not end with white space: the answer follows after a space")
        return self


class Prefix(SplitRef):
    """Unrelated text before every prompt: an excerpt of whole sentences, drawn for each document.

    It is counted in words, so that all checkpoints and both protocols read the same text. Documents keep
    their ids, by which they are paired with those of the benchmark without a prefix.
    """

    column: str = "text"
    """Column of the text."""
    words: int = Field(ge=1)
    """Longest excerpt; it ends with the last sentence that fits."""
    seed: Seed = 0
    """Decides, with a document's content, where its excerpt begins."""
    separator: str = "\n\n"
    """Between excerpt and prompt."""


class LogLikelihood(Strict):
    """The log-likelihood protocol of a benchmark, through lm-eval."""

    task: str
    """A task file below lm-eval's task folder (``arc/arc_easy.yaml``; ``{subject}`` stands for the
    subject), or ``evalsuite/<name>.yaml`` for a built-in one (`evalsuite/protocols/lm_eval_tasks`)."""
    metric: str
    """Main metric, shown in tables; a suite may choose another metric of the task."""
    direction: Literal["higher", "lower"] = "higher"
    units: str | None = None
    num_fewshot: int = Field(default=0, ge=0)
    add_bos_token: bool = False
    """Prepend BOS (EOS where the tokenizer has none) to every context, whatever the tokenizer's default."""
    truncate: Literal["middle"] | None = None
    """Cut contexts that exceed the model's length minus the longest choice; None refuses them by name."""
    chance: Chance = None
    """Overrides the chance level of the benchmark."""

    @model_validator(mode="after")
    def _direction_fits_metric(self) -> "LogLikelihood":
        lower = self.metric in PERPLEXITIES
        if (self.direction, self.units) != ("lower" if lower else "higher", PERPLEXITIES.get(self.metric)):
            kind = f"a perplexity: lower, units {PERPLEXITIES[self.metric]}" if lower else "higher is better"
            raise ValueError(f"'direction' and 'units' do not fit metric {self.metric} ({kind})")
        return self

    @model_serializer(mode="wrap")
    def _without_defaults_of_later_keys(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        # Runs that were built before the key existed are equal to those of today.
        return without_none(serialize(self), "truncate")

    def with_metric(self, metric: str) -> "LogLikelihood":
        """Return the same protocol with another main metric."""
        lower = metric in PERPLEXITIES
        direction: Literal["higher", "lower"] = "lower" if lower else "higher"
        return self.model_copy(
            update={"metric": metric, "direction": direction, "units": PERPLEXITIES.get(metric)}
        )


class Generation(Strict):
    """The generation protocol of a benchmark, through EvalScope."""

    dataset: str
    """An EvalScope benchmark, or ``evalsuite`` for the built-in adapter over rows with a prompt. What may
    execute generated code is listed in `evalsuite.protocols.sandbox`."""
    metric: str
    num_fewshot: int = Field(default=0, ge=0)
    prompt: Literal["chat", "literal"] = "chat"
    """`chat`: through the tokenizer's chat template where there is one; `literal`: plain text."""
    scorer: str | None = None
    """Built-in adapter only: a key of `evalsuite.protocols.scorers.SCORERS`."""
    fields: dict[str, str] = Field(default_factory=dict)
    """Columns that EvalScope expects, as Jinja expressions over the row: ``question: goal``."""
    prompt_template: str | None = None
    """Built-in adapter only: Jinja template of the prompt, for rows that have none."""
    truncate: Literal["middle"] | None = None
    """Cut prompts that exceed the model's length minus `max_new_tokens`; None refuses them by name."""
    dataset_args: dict[str, Any] = Field(default_factory=dict)
    """Further arguments of the EvalScope benchmark."""
    sampling: SamplingSpec
    stop: tuple[str, ...] = Field(default=(), exclude=True)
    """Further strings that end a response to a prompt without a chat template: the start of a next question,
    which a base model goes on with. The resolved `sampling` of a run holds them where they apply."""
    chance: Chance = None
    """Overrides the chance level of the benchmark."""
    chat_template_kwargs: dict[str, ChatTemplateValue] = Field(default_factory=dict)
    """Further arguments of the tokenizer's chat template, such as ``enable_thinking: false``."""
    reasoning: Literal["strip", "keep"] = "strip"
    """`strip`: only what follows ``</think>`` is scored, and a response that ends within its reasoning is
    wrong; `keep`: responses are scored whole."""

    @model_validator(mode="after")
    def _template_arguments_need_a_template(self) -> "Generation":
        if self.chat_template_kwargs and self.prompt != "chat":
            raise ValueError("'chat_template_kwargs' needs 'prompt: chat'")
        return self

    @model_validator(mode="after")
    def _stop_needs_chat_prompts(self) -> "Generation":
        if self.stop and self.prompt != "chat":
            raise ValueError("'stop' needs 'prompt: chat'; 'sampling: {stop: […]}' ends every response")
        return self

    def with_stop(self, sampling: SamplingSpec, *, chat_template: bool) -> SamplingSpec:
        """Return sampling parameters with `stop`, unless prompts go through a chat template."""
        if chat_template and self.prompt == "chat":
            return sampling
        return sampling.model_copy(update={"stop": tuple(dict.fromkeys((*sampling.stop, *self.stop)))})

    @model_validator(mode="after")
    def _scorer_needs_built_in_adapter(self) -> "Generation":
        if (self.dataset == "evalsuite") != (self.scorer is not None):
            raise ValueError("'scorer' belongs to dataset 'evalsuite', and only there")
        if self.prompt_template is not None and self.scorer is None:
            raise ValueError("'prompt_template' belongs to dataset 'evalsuite'; EvalScope's have their own")
        return self


class Benchmark(Strict):
    """A named question set with up to two protocols over the same documents."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.+-]*$")
    """Equal to the file name for a built-in benchmark."""
    title: str
    """Name in tables."""
    category: Category
    chance: Chance = None
    """Expected score of guessing, as a fraction; `per_document`: 1 / number of choices; None: unknown."""
    license: str
    """License of the data."""
    citation: str
    """Where the benchmark was published."""
    source: Source | None = None
    """Where the rows come from."""
    sources: dict[str, Source] = Field(default_factory=dict)
    """Subject → dataset, instead of `source`. A limit is divided evenly among them."""
    generated: Generated | None = None
    """Generator of the rows, instead of `source`."""
    num_documents: int | None = Field(default=None, ge=1)
    """Published number of documents; a data folder may hold only some of them."""
    contexts: tuple[int, ...] = ()
    """Default prompt lengths in tokens; a suite may choose others, of those that the source has."""
    group: str | None = None
    """Suite that the benchmark is a part of, such as ``longbench``."""
    recall: tuple[str, ...] = ()
    """Recall numbers of the report that count it: `needles`, `ruler`, `longbench`, or a name of its own."""
    requires: str | None = None
    """What the user must provide or allow besides the data; printed by `evalsuite show`."""
    completion: Completion | None = None
    """Few-shot completion prompts of both protocols; a row's own prompt and choices without it."""
    prefix: Prefix | None = None
    """Unrelated text before every prompt."""
    assets: tuple[Literal["punkt_tab"], ...] = ()
    """Files that the metric reads besides the rows; see `evalsuite.tasks.sources.assets`."""
    loglikelihood: LogLikelihood | None = None
    generation: Generation | None = None

    @field_validator("category", mode="before")
    @classmethod
    def _category_is_known(cls, value: Any) -> Any:
        if value not in CATEGORIES:
            raise ValueError(f"unknown category{nearest(str(value), CATEGORIES)}")
        return value

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
        if self.generated is not None and self.num_documents is not None:
            raise ValueError("'num_documents' belongs to a 'source'; a generator has 'count'")
        if self.contexts and self.generated is None and (lacking := self.unknown_contexts(self.contexts)):
            raise ValueError(
                f"'contexts' need a generator, or a source with the same ones (not {lacking[0]})"
            )
        if not self.contexts and any(source.contexts for _, source in self.subject_sources):
            raise ValueError("the source has 'contexts': name those of the benchmark, too")
        independent = [name for name, source in self.subject_sources if source.cluster_column is None]
        if independent and self.cluster_column is not None:
            raise ValueError(f"'cluster_column' must be given for every source; '{independent[0]}' lacks it")
        if not self.protocols:
            raise ValueError("give a 'loglikelihood' block, a 'generation' block, or both")
        return self

    @model_validator(mode="after")
    def _completion_makes_the_prompts(self) -> "Benchmark":
        if self.completion is None:
            return self
        if self.loglikelihood is not None and self.loglikelihood.task != COMPLETION_TASK:
            raise ValueError(f"'completion' needs 'loglikelihood: {{task: {COMPLETION_TASK}}}'")
        how = self.generation
        if how is not None and (how.scorer, how.prompt, how.prompt_template) != (
            how.scorer or "",
            "literal",
            None,
        ):
            raise ValueError(
                "'completion' needs 'generation: {dataset: evalsuite, prompt: literal}' without a template"
            )
        if any(how is not None and how.num_fewshot for how in (self.loglikelihood, self.generation)):
            raise ValueError("'completion' has its own 'num_fewshot'")
        available = self.completion.set_aside or self.has_fewshot_split
        if self.completion.num_fewshot and not available:
            raise ValueError("'completion.num_fewshot' needs 'set_aside' or a 'fewshot_split'")
        if self.completion.set_aside and self.has_fewshot_split:
            raise ValueError("give either 'completion.set_aside' or a 'fewshot_split'")
        return self

    @property
    def subject_sources(self) -> tuple[tuple[str | None, Source], ...]:
        """Pairs of subject and source; empty if rows are generated."""
        if self.source is not None:
            return ((None, self.source),)
        return tuple(self.sources.items())

    def unknown_contexts(self, contexts: Iterable[int]) -> list[int]:
        """Return those of some prompt lengths that a source has no rows of; a generator has any."""
        return [
            each for each in contexts for _, source in self.subject_sources if each not in source.contexts
        ]

    @property
    def cluster_column(self) -> str | None:
        """Columns of the sources that name the cluster of a row; None: documents are independent."""
        columns = [source.cluster_column for _, source in self.subject_sources]
        return ", ".join(dict.fromkeys(name for name in columns if name is not None)) or None

    @property
    def expected_documents(self) -> int | None:
        """Documents of the complete benchmark (of one context, if it has several); None: unknown."""
        return self.generated.count if self.generated is not None else self.num_documents

    @property
    def has_fewshot_split(self) -> bool:
        """Whether any source has a split to draw few-shot examples from."""
        return any(source.fewshot_split is not None for _, source in self.subject_sources)

    @property
    def protocols(self) -> tuple[Protocol, ...]:
        """Protocols that the benchmark defines."""
        found: list[Protocol] = []
        if self.loglikelihood is not None:
            found.append("loglikelihood")
        if self.generation is not None:
            found.append("generation")
        return tuple(found)

    def chance_under(self, protocol: str) -> Chance:
        """Chance level under a protocol that it has: the protocol's own, else the benchmark's."""
        own: Chance = getattr(self, protocol).chance
        return self.chance if own is None else own


def _as_benchmark(item: Any) -> Benchmark:
    if not isinstance(item, Benchmark):
        raise TypeError("it must be a Benchmark, as evalsuite.tasks.generator.benchmark returns it")
    return item


class _Benchmarks(Registry[Benchmark]):
    """Benchmarks by the name that they have themselves."""

    def _load(self, name: str, candidates: list[EntryPoint]) -> Benchmark:
        return _named(super()._load(name, candidates), name, f"benchmark '{name}' of {self.origin(name)}")


def _named(benchmark: Benchmark, name: str, where: str) -> Benchmark:
    if benchmark.name != name:
        raise ConfigError(f"{where}: 'name' = {benchmark.name!r}; use {name}, by which it is known")
    return benchmark


def _read(path: Path) -> Benchmark:
    return _named(_load(path), path.stem, str(path))


def _load(path: Path) -> Benchmark:
    """Read a file, whose sources may be files next to it."""
    values = _with_included(path, ())
    source = values.get("source")
    if isinstance(source, dict) and source.get("file") and not any(name in values for name in PROTOCOLS):
        own = parse({"columns": {}} | source, Source, f"{path}: source")
        values = _about_questions(own, path.parent) | values | {"source": {"columns": {}} | source}
    return _with_files(parse(values, Benchmark, str(path)), path.parent, str(path))


def _with_included(path: Path, above: tuple[str, ...]) -> dict[str, Any]:
    """Read a file; the keys of a built-in benchmark that it includes hold where it has none of its own."""
    values = read_yaml(path)
    if "include" not in values:
        return values
    name = str(values.pop("include"))
    file = FOLDER / f"{name}.yaml"
    if "/" in name or not file.is_file():
        known = [each.stem for each in FOLDER.glob("*.yaml")]
        raise ConfigError(f"{path}: 'include' = {name!r}: no built-in benchmark{nearest(name, known)}")
    if name in above:
        raise ConfigError(f"{path}: 'include' = {name!r}: it includes itself ({' → '.join((*above, name))})")
    return _with_included(file, (*above, name)) | values


BENCHMARKS = _Benchmarks("benchmark", group="evalsuite.benchmarks", validate=_as_benchmark)
"""Name → benchmark. Those of evalsuite are files below `FOLDER`, each read when it is first used."""
for _path in sorted(FOLDER.glob("*.yaml")):
    BENCHMARKS.defer(_path.stem, partial(_read, _path))


def known_benchmarks() -> list[str]:
    """Return the names of all benchmarks, sorted."""
    return sorted(BENCHMARKS)


def load_benchmark(name: str | Path, *, near: Path | None = None) -> Benchmark:
    """Load a registered benchmark by name, or a YAML file by path.

    Args:
        name: a name, or the path of a YAML file or of a file of questions, perhaps with columns
            (``questions.csv:answer=solution``).
        near: folder that relative paths start from.

    Raises:
        ConfigError: an unknown name (with the nearest known one), a plugin that cannot be used, or an invalid
            file.
        DataError: a file of questions that cannot be read.
    """
    place, text = near or Path(), str(name)
    if text.endswith(YAML_FILES):
        return _load(place / text)
    if is_questions_file(text):
        return _of_questions(text, place)
    return BENCHMARKS.get_or_raise(text)


def _of_questions(text: str, near: Path) -> Benchmark:
    """Return the benchmark that a file of questions is, perhaps with columns after colons."""
    requested = Requested(text) if (near / text).is_file() else parse_item(text)
    if requested != Requested(requested.name, columns=requested.columns):
        raise ConfigError(f"'{text}': options other than columns belong to keys of the suite's entry")
    values = {"file": requested.name, "columns": dict(requested.columns)}
    source = parse({**values}, Source, text)
    name = requested_name(os.path.basename(requested.name))
    name = f"{name}-questions" if name in BENCHMARKS else name
    found = {"name": name, "source": values} | _about_questions(source, near)
    return _with_files(parse(found, Benchmark, requested.name), near, requested.name)


def _with_files(benchmark: Benchmark, folder: Path, where: str) -> Benchmark:
    """Return a benchmark that knows where its files lie, and their hashes."""

    def located(source: Source) -> Source:
        if not source.file:
            return source
        path = folder / source.file
        found = hash_of(path)
        if source.sha256 not in ("", found):
            raise DataError(
                f"{where}: 'source.sha256' = {source.sha256}: the hash of {path} is {found}; the file has "
                "changed: remove the key, or restore the file"
            )
        source = source.model_copy(update={"sha256": found})
        source._path = path
        return source

    source = benchmark.source and located(benchmark.source)
    sources = {subject: located(each) for subject, each in benchmark.sources.items()}
    return benchmark.model_copy(update={"source": source, "sources": sources})


def _about_questions(source: Source, folder: Path) -> dict[str, Any]:
    """Return what a benchmark states about a file of questions, by the layout of its first row."""
    source._path = folder / source.file
    layout = source.open_file().layout
    found: dict[str, Any] = {"title": source.name, "category": "other"}
    found |= {"license": "not stated", "citation": source.name}
    context = "{% if context %}{{ context }}\n\n{% endif %}Question: {{ question }}\n"
    if layout.kind == "answers":
        reply = context + "Reply with the answer alone.\nAnswer:"
        generation: dict[str, Any] = {"scorer": "answer", "sampling": {"max_new_tokens": 64}}
        loglikelihood = {"task": "evalsuite/answers.yaml", "metric": "acc"}
        found["chance"] = 0.0
    else:
        reply = context + (
            "Options:\n{% for choice in choices %}- {{ choice.strip() }}\n{% endfor %}"
            "Answer with one of the options."
        )
        generation = {"scorer": "option", "sampling": {"max_new_tokens": 64}}
        loglikelihood = {"task": "evalsuite/choices.yaml", "metric": "acc"}
        found["chance"] = "per_document"
        if layout.verbatim:
            generation["chance"] = 0.0  # The prompt names no choice, unless its author listed them.
    if not layout.verbatim:
        generation["prompt_template"] = reply
    generation |= {"dataset": "evalsuite", "metric": "accuracy", "stop": ["\n\n", "\nQuestion:"]}
    return found | {"loglikelihood": loglikelihood, "generation": generation}


def all_benchmarks() -> Iterator[Benchmark]:
    """Yield every benchmark, sorted by name, without plugins that cannot be used."""
    for name in known_benchmarks():
        if BENCHMARKS.is_usable(name):
            yield load_benchmark(name)
