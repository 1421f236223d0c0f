"""Suites: lists of benchmarks with limits, contexts, few-shot counts and sampling. One YAML file each."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    Field,
    PrivateAttr,
    SerializerFunctionWrapHandler,
    field_validator,
    model_serializer,
    model_validator,
)

from evalsuite.foundation import ConfigError, nearest
from evalsuite.foundation.strict import Distinct, Positive, Seed, Strict, load
from evalsuite.foundation.strict_yaml import read_yaml
from evalsuite.foundation.taxonomy import PROTOCOLS, Protocol
from evalsuite.tasks.benchmark import (
    BENCHMARKS,
    Benchmark,
    ChatTemplateValue,
    Generation,
    SamplingSpec,
    known_benchmarks,
    load_benchmark,
    without_none,
)
from evalsuite.tasks.requested import (
    QUESTION_FILES,
    YAML_FILES,
    Requested,
    is_benchmark_file,
    parse_requested,
    requested_name,
)
from evalsuite.tasks.samplers import SAMPLERS

FOLDER = Path(__file__).parent / "suites"
BENCHMARK_KEYS = ("source", "sources", "generated", "completion", "prefix", *PROTOCOLS)
"""Keys by which a file is a benchmark's and not a suite's."""


class SamplingOverride(Strict):
    """Sampling parameters that override those of the benchmarks; None keeps the benchmark's value."""

    max_new_tokens: int | None = Field(default=None, ge=1)
    """Upper bound; a benchmark with a smaller value keeps it."""
    temperature: float | None = Field(default=None, ge=0)
    top_p: float | None = Field(default=None, gt=0, le=1)
    top_k: int | None = Field(default=None, ge=0)
    thinking_budget: int | None = Field(default=None, ge=1)
    """Tokens after which an open thought is closed by force."""

    @model_serializer(mode="wrap")
    def _without_defaults_of_later_keys(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return without_none(serialize(self), "thinking_budget")


class Entry(Strict):
    """One benchmark of a suite, with its overrides."""

    benchmark: str
    """A name from `evalsuite show benchmarks`, or a YAML or questions file, relative to the suite's."""
    protocols: Annotated[tuple[Protocol, ...], Distinct] = ()
    """Empty: all protocols of the benchmark."""
    contexts: Annotated[tuple[Positive, ...], Distinct] = ()
    """Empty: those of the benchmark."""
    limit: Positive | None = None
    """Documents, per context length where there are several; None: the suite's limit."""
    limits: dict[Protocol, Positive] = Field(default_factory=dict)
    """Fewer documents under one protocol: a sample of the documents of the other."""
    sampler: str = ""
    """Which documents a limit takes: a name from `evalsuite show samplers`; empty: as the suite states."""
    num_fewshot: dict[Protocol, Annotated[int, Field(ge=0)]] = Field(default_factory=dict)
    metrics: dict[Protocol, str] = Field(default_factory=dict)
    """Main metric per protocol, where it differs from the benchmark's."""
    sampling: SamplingOverride | None = None
    """Overrides the suite's sampling."""
    prompt: Literal["chat", "literal"] | None = None
    """Overrides the benchmark's prompt format: `chat` applies the tokenizer's chat template where there is
    one, `literal` is plain text. RULER's prompts are `literal`, as for base models; with `chat`, the answer
    prefix is placed in the assistant's turn, as RULER does for chat models."""
    chat_template_kwargs: dict[str, ChatTemplateValue] = Field(default_factory=dict)
    """Added to the suite's, and overrides them."""
    reasoning: Literal["strip", "keep"] | None = None
    """Overrides the suite's."""
    not_leading: str = ""
    """Why the benchmark counts in no average that ranks, such as answers in the training data. It is then
    reported as not informative, with this reason."""


class Suite(Strict):
    """A list of benchmarks that are evaluated together."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.+-]*$")
    title: str
    limit: Positive | None = None
    """Documents per benchmark: a sample, the same for every checkpoint; None: all."""
    limits: dict[Protocol, Positive] = Field(default_factory=dict)
    """Default of the entries' `limits`."""
    sampler: str = ""
    """Default of the entries' `sampler`; empty: `seeded`. Generated documents are the first ones."""
    seed: Seed = 0
    """Seed of document samples, generated documents and few-shot examples."""
    seeds: Annotated[tuple[Seed, ...], Distinct] = Field(default=(0,), min_length=1)
    """Seeds of sampled generation, one response each; greedy responses are generated once."""
    sampling: SamplingOverride = SamplingOverride()
    chat_template: Literal["auto", "never", "always"] = "auto"
    """Whether chat prompts use the tokenizer's chat template. `auto`: where there is one; `always`: a
    tokenizer without one is refused."""
    chat_template_kwargs: dict[str, ChatTemplateValue] = Field(default_factory=dict)
    """Further arguments of the chat template, such as ``enable_thinking: false``, for every chat prompt. A
    template that does not read them is refused."""
    reasoning: Literal["strip", "keep"] | None = None
    """`strip`: only what follows ``</think>`` is scored; `keep`: whole responses. None keeps the
    benchmarks' value."""
    include: Annotated[tuple[str, ...], Distinct] = ()
    """Suites whose benchmarks are added after this suite's own, which take precedence. Limits are inherited,
    sampling, seeds and arguments of chat templates are not."""
    benchmarks: tuple[Entry, ...] = ()
    """Benchmarks of the suite; a name stands for an entry without overrides."""
    _file: Path | None = PrivateAttr(default=None)

    @property
    def location(self) -> str:
        """The suite's file, or its name if it was not read from a file; used in messages."""
        return f"suite {self.name}" if self._file is None else str(self._file)

    @field_validator("benchmarks", mode="before")
    @classmethod
    def _names_become_entries(cls, value: object) -> object:
        if not isinstance(value, list | tuple):
            return value
        return [{"benchmark": entry} if isinstance(entry, str) else entry for entry in value]

    @model_validator(mode="after")
    def _names_are_unique(self) -> "Suite":
        names = [entry.benchmark for entry in self.benchmarks]
        repeated = sorted({name for name in names if names.count(name) > 1})
        if repeated:
            raise ValueError(f"benchmark '{repeated[0]}' is listed twice")
        if not self.benchmarks and not self.include:
            raise ValueError("give 'benchmarks', suites to 'include', or both")
        return self

    @model_validator(mode="after")
    def _template_arguments_need_a_template(self) -> "Suite":
        if self.chat_template == "never" and (
            self.chat_template_kwargs or any(entry.chat_template_kwargs for entry in self.benchmarks)
        ):
            raise ValueError("'chat_template_kwargs' has no effect with 'chat_template: never'; remove one")
        return self


def known_suites() -> list[str]:
    """Return the names of the built-in suites, sorted."""
    return sorted(path.stem for path in FOLDER.glob("*.yaml"))


def load_suite(name: str | Path) -> Suite:
    """Load what a name stands for, with its included suites expanded.

    Args:
        name: a suite or benchmark by name, a YAML file of either, or several of them with options (see
            `tasks.requested`): one suite of them all, in which benchmarks by name precede those of suites.

    Raises:
        ConfigError: an unknown name (with the nearest known one) or option, an invalid file, suites that
            include each other, or suites together whose settings differ.
    """
    requested = parse_requested(str(name))
    if len(requested) == 1 and requested[0].is_plain and _is_suite(requested[0].name):
        return _expanded(requested[0].name, ())
    return _combined(str(name), requested)


def _is_suite(name: str) -> bool:
    """Whether a name or file is a suite's; otherwise it is a benchmark's. Raises ConfigError if unknown."""
    if name.endswith(QUESTION_FILES):
        return False
    if suite_folder(name) is not None:
        return read_yaml(Path(name)).keys().isdisjoint(BENCHMARK_KEYS)
    if name in known_suites():
        return True
    if name not in BENCHMARKS:
        known = [*known_suites(), *known_benchmarks()]
        raise ConfigError(f"unknown suite or benchmark '{name}'{nearest(name, known)}")
    return False


def _combined(text: str, requested: Sequence[Requested]) -> Suite:
    suites = {each.name: _expanded(each.name, ()) for each in requested if _is_suite(each.name)}
    entries: dict[str, Entry] = {}
    for each in requested:
        if each.name not in suites:
            entries[each.benchmark] = _requested_entry(Entry(benchmark=each.benchmark), each)
            continue
        for entry in _entries(suites[each.name], suite_folder(each.name)):
            protocols = entry.protocols or load_benchmark(entry.benchmark).protocols
            if each.protocol is None or each.protocol in protocols:
                entries.setdefault(entry.benchmark, _requested_entry(entry, each))
    if not entries:
        raise ConfigError(f"'{text}': no benchmark of it has the protocol")
    return Suite(
        name=_name_of(text, requested),
        title=", ".join(each.strip() for each in text.split(",")),
        benchmarks=tuple(entries.values()),
        **_common_settings(suites),
    )


def _name_of(text: str, requested: Sequence[Requested]) -> str:
    if len(requested) == 1 and requested[0].is_plain and requested[0].is_yaml:
        return load_benchmark(requested[0].name).name
    return requested_name(text)


def _entries(suite: Suite, near: Path | None) -> list[Entry]:
    """Entries that mean in another suite what they mean in this one: with its defaults and absolute paths."""
    found = []
    for entry in suite.benchmarks:
        is_file = is_benchmark_file(entry.benchmark)
        sampling = suite.sampling.model_dump(exclude_none=True)
        if entry.sampling is not None:
            sampling |= entry.sampling.model_dump(exclude_none=True)
        update = {
            "benchmark": os.path.abspath((near or Path()) / entry.benchmark) if is_file else entry.benchmark,
            **_inherited(suite, entry),
            "sampling": SamplingOverride(**sampling) if sampling else None,
        }
        found.append(entry.model_copy(update=update))
    return found


def _requested_entry(entry: Entry, requested: Requested) -> Entry:
    """An entry with the options of a request. Raises ConfigError if it lacks the protocol."""
    protocols = entry.protocols or load_benchmark(entry.benchmark).protocols
    if requested.protocol is not None:
        if requested.protocol not in protocols:
            raise ConfigError(
                f"'{requested.name}:{requested.protocol}': it has no {requested.protocol} protocol; "
                f"use {' or '.join(protocols)}"
            )
        protocols = (requested.protocol,)
    update: dict[str, Any] = {"protocols": protocols}
    for key in ("limits", "metrics", "num_fewshot"):
        update[key] = {name: value for name, value in getattr(entry, key).items() if name in protocols}
    if requested.limit is not None:
        update |= {"limit": requested.limit, "limits": {}}
    if requested.thinking_budget is not None and "generation" not in protocols:
        if requested.benchmark == entry.benchmark:
            option = f"thinking_budget={requested.thinking_budget}"
            raise ConfigError(f"'{requested.name}:{option}': it generates nothing; remove this option")
    elif requested.thinking_budget is not None:
        given = entry.sampling.model_dump() if entry.sampling is not None else {}
        update["sampling"] = SamplingOverride(**given | {"thinking_budget": requested.thinking_budget})
    if requested.num_fewshot is not None:
        update["num_fewshot"] = dict.fromkeys(protocols, requested.num_fewshot)
    return entry.model_copy(update=update)


SETTINGS = ("seed", "seeds", "chat_template", "chat_template_kwargs", "reasoning")
"""Settings of a suite that hold for all of its benchmarks."""


def _common_settings(suites: Mapping[str, Suite]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key in SETTINGS:
        values = {name: getattr(suite, key) for name, suite in suites.items()}
        first, *others = values or {"": None}
        if differing := next((name for name in others if values[name] != values[first]), None):
            raise ConfigError(
                f"suites {first} and {differing} differ in '{key}' ({values[first]!r}, "
                f"{values[differing]!r}); run them one by one, or write a suite that includes both"
            )
        if values:
            found[key] = values[first]
    return found


def _expanded(name: str | Path, above: tuple[str, ...]) -> Suite:
    if str(name) in above:
        raise ConfigError(f"suite {name} includes itself ({' → '.join((*above, str(name)))})")
    suite = _read(name)
    entries = {entry.benchmark: entry for entry in suite.benchmarks}
    for other in suite.include:
        included = _expanded(other, (*above, str(name)))
        for entry in included.benchmarks:
            entries.setdefault(entry.benchmark, entry.model_copy(update=_inherited(included, entry)))
    return suite.model_copy(update={"include": (), "benchmarks": tuple(entries.values())})


def suite_folder(name: str | Path) -> Path | None:
    """Return the folder that a suite names files of benchmarks from; None for a built-in suite."""
    return Path(name).parent if str(name).endswith(YAML_FILES) else None


def _read(name: str | Path) -> Suite:
    if suite_folder(name) is not None:
        return _read_file(Path(name))
    path = FOLDER / f"{name}.yaml"
    if "/" in str(name) or not path.is_file():
        raise ConfigError(f"unknown suite '{name}'{nearest(str(name), known_suites())}")
    suite = _read_file(path)
    if suite.name != name:
        raise ConfigError(f"{path}: 'name' = {suite.name!r} differs from the file name {name}")
    return suite


def _read_file(path: Path) -> Suite:
    suite = load(path, Suite)
    suite._file = path
    return suite


def resolve(
    suite: Suite, *, near: Path | None = None, only: Sequence[Sequence[str]] = ()
) -> list[tuple[Entry, Benchmark]]:
    """Load the benchmarks of a suite and apply the suite's settings, leaving no default unresolved.

    Args:
        suite: the suite.
        near: folder that paths of its benchmarks are relative to.
        only: names of its benchmarks, in groups; the others are left out. Empty: all.

    Returns:
        Pairs of entry and benchmark; protocols, contexts, limit and num_fewshot of the entry are filled in.

    Raises:
        ConfigError: an unknown benchmark, two of one name, or a protocol or contexts that a benchmark does
            not have; a name in `only` that the suite lacks.
        DataError: a file of questions that cannot be read.
    """
    found = [_resolved(suite, entry, _loaded(suite, entry, near)) for entry in suite.benchmarks]
    names = [benchmark.name for _, benchmark in found]
    if repeated := next((name for name in names if names.count(name) > 1), None):
        raise ConfigError(
            f"{suite.location}: two benchmarks are named '{repeated}'; rename one of their files"
        )
    wanted = [name for group in only for name in group]
    for name in wanted:
        if name not in names:
            raise ConfigError(f"{suite.location}: no benchmark '{name}'{nearest(name, names)}")
        if wanted.count(name) > 1:
            raise ConfigError(f"benchmark '{name}' is listed twice")
    return [pair for pair in found if not wanted or pair[1].name in wanted]


def _loaded(suite: Suite, entry: Entry, near: Path | None) -> Benchmark:
    try:
        return load_benchmark(entry.benchmark, near=near)
    except ConfigError as error:
        raise ConfigError(f"{suite.location}: benchmarks: {error}") from error


def _resolved(suite: Suite, entry: Entry, benchmark: Benchmark) -> tuple[Entry, Benchmark]:
    location = f"{suite.location}: benchmarks: {benchmark.name}"
    for key in ("prompt", "chat_template_kwargs", "reasoning"):
        if getattr(entry, key) and benchmark.generation is None:
            raise ConfigError(
                f"{location}: '{key}' = {getattr(entry, key)}: it has no generation protocol; remove this key"
            )
    for key in ("protocols", "limits", "num_fewshot", "metrics"):
        for protocol in getattr(entry, key):
            if protocol not in benchmark.protocols:
                raise ConfigError(
                    f"{location}: '{key}' = {protocol}: it has no {protocol} protocol; "
                    f"use {' or '.join(benchmark.protocols)}"
                )
    if entry.contexts and not benchmark.contexts:
        raise ConfigError(f"{location}: 'contexts': it has no context lengths; remove this key")
    if unknown := benchmark.unknown_contexts(entry.contexts):
        known = ", ".join(map(str, benchmark.subject_sources[0][1].contexts))
        raise ConfigError(f"{location}: 'contexts' = {unknown[0]}: its source has the lengths {known}")
    metrics: dict[Protocol, str] = {
        protocol: getattr(benchmark, protocol).metric for protocol in benchmark.protocols
    }
    metrics |= entry.metrics
    num_fewshot: dict[Protocol, int] = {
        protocol: getattr(benchmark, protocol).num_fewshot for protocol in benchmark.protocols
    }
    num_fewshot |= entry.num_fewshot
    protocols = entry.protocols or benchmark.protocols
    limit, limits = _limits(suite, entry, benchmark, protocols)
    if entry.sampler and benchmark.generated is not None:
        raise ConfigError(
            f"{location}: 'sampler' = {entry.sampler}: its documents are generated; remove this key"
        )
    sampler = "" if benchmark.generated is not None else _inherited(suite, entry)["sampler"]
    if sampler:
        SAMPLERS.get_or_raise(sampler, f"{location}: 'sampler'")
    filled = Entry(
        benchmark=benchmark.name,
        protocols=protocols,
        contexts=entry.contexts or benchmark.contexts,
        limit=limit,
        limits=limits,
        sampler="" if sampler == "seeded" else sampler,
        num_fewshot=num_fewshot,
        metrics=metrics,
        sampling=entry.sampling,
        prompt=entry.prompt,
        not_leading=entry.not_leading,
    )
    how = benchmark.generation
    if how is not None:
        how = _generation(suite, entry, how, metrics["generation"], location)
    return filled, _with_overrides(benchmark, metrics, how)


def _inherited(suite: Suite, entry: Entry) -> dict[str, Any]:
    """Which documents an entry of a suite takes; a limit of its own replaces all limits of the suite."""
    own = entry.limit is not None
    return {
        "limit": entry.limit if own else suite.limit,
        "limits": entry.limits if own else suite.limits | entry.limits,
        "sampler": entry.sampler or suite.sampler,
    }


def _limits(
    suite: Suite, entry: Entry, benchmark: Benchmark, protocols: Sequence[Protocol]
) -> tuple[int | None, dict[Protocol, int]]:
    """Return the number of documents to load, and smaller limits per protocol.

    An entry's limit overrides the suite's, and a limit per protocol overrides one for both. Generated
    documents, and those of several lengths, have one limit for both protocols.
    """
    common, specific = (_inherited(suite, entry)[key] for key in ("limit", "limits"))
    each = {protocol: specific.get(protocol, common) for protocol in protocols}
    known = [limit for limit in each.values() if limit is not None]
    most = max(known) if len(known) == len(each) else None
    fewer = {name: limit for name, limit in each.items() if limit is not None and limit != most}
    if fewer and (benchmark.generated is not None or benchmark.contexts):
        why = "are generated" if benchmark.generated is not None else "have several lengths"
        raise ConfigError(
            f"{suite.location}: benchmarks: {benchmark.name}: 'limits': its documents {why}; give "
            "one 'limit' for both protocols"
        )
    return most, fewer


def _generation(suite: Suite, entry: Entry, how: Generation, metric: str, location: str) -> Generation:
    """Return the generation protocol of a benchmark with the settings of a suite."""
    prompt = entry.prompt or how.prompt
    if entry.chat_template_kwargs and prompt != "chat":
        raise ConfigError(
            f"{location}: 'chat_template_kwargs' = {entry.chat_template_kwargs}: its prompts are literal; "
            "set 'prompt: chat', or remove this key"
        )
    arguments = how.chat_template_kwargs | suite.chat_template_kwargs | entry.chat_template_kwargs
    return how.model_copy(
        update={
            "metric": metric,
            "prompt": prompt,
            "chat_template_kwargs": arguments if prompt == "chat" else {},
            "reasoning": entry.reasoning or suite.reasoning or how.reasoning,
        }
    )


def _with_overrides(
    benchmark: Benchmark, metrics: dict[Protocol, str], generation: Generation | None
) -> Benchmark:
    """Return the benchmark with a suite's metrics and generation protocol."""
    changed: dict[str, object] = {"generation": generation}
    if benchmark.loglikelihood is not None:
        changed["loglikelihood"] = benchmark.loglikelihood.with_metric(metrics["loglikelihood"])
    return benchmark.model_copy(update=changed)


def resolve_sampling(suite: Suite, entry: Entry, benchmark: Benchmark) -> SamplingSpec:
    """Return the sampling parameters of a benchmark's generation protocol in a suite."""
    assert benchmark.generation is not None
    own = benchmark.generation.sampling
    given = entry.sampling if entry.sampling is not None else suite.sampling
    overrides = {key: value for key, value in given.model_dump().items() if value is not None}
    if "max_new_tokens" in overrides:
        overrides["max_new_tokens"] = min(overrides["max_new_tokens"], own.max_new_tokens)
    return own.model_copy(update=overrides)
