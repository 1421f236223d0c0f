"""What a run asks: a suite resolved against its benchmarks, its data, and the tokenizers of those asked."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from evalsuite.evaluator.checkpoints import Subject
from evalsuite.evaluator.layout import Asked, Cell, Index
from evalsuite.foundation import ConfigError, DataError, MissingDependencyError
from evalsuite.foundation.strict import parse
from evalsuite.models.engine.requests import Sampling
from evalsuite.protocols import sandbox
from evalsuite.protocols.generation import chat_text
from evalsuite.reports.run_folder import BenchmarkPlan, CheckpointPlan, Plan, ProtocolPlan
from evalsuite.tasks.benchmark import Benchmark, SamplingSpec
from evalsuite.tasks.documents import Document, documents, sampled, whole
from evalsuite.tasks.resources import provide
from evalsuite.tasks.suite import Entry, Suite, load_suite, resolve, sampling_of

SHORT = 256
"""Characters up to which a text's token count is remembered."""


@dataclass(frozen=True)
class Asking:
    """A suite in which nothing is left to be defaulted."""

    suite: Suite
    entries: tuple[tuple[Entry, Benchmark], ...]
    template: bool
    """Whether chat prompts go through the tokenizers' chat templates."""

    @cached_property
    def record(self) -> dict[str, Any]:
        """All of it as JSON: two runs with equal records ask the same."""
        return {
            "seed": self.suite.seed,
            "template": self.template,
            "entries": [
                {
                    **_stated(entry),
                    "sampling": self.sampling(benchmark) if "generation" in entry.protocols else None,
                    "seeds": list(self.seeds(benchmark)) if "generation" in entry.protocols else [0],
                    "benchmark": benchmark.model_dump(mode="json"),
                }
                for entry, benchmark in self.entries
            ],
        }

    def without(self, names: Collection[str]) -> "Asking":
        """The same but for these benchmarks, or single contexts of theirs (``niah_single_1@16384``)."""
        kept = []
        for entry, benchmark in self.entries:
            contexts = tuple(each for each in entry.contexts if at_context(benchmark, each) not in names)
            if benchmark.name not in names and (contexts or not entry.contexts):
                kept.append((entry.model_copy(update={"contexts": contexts}), benchmark))
        return replace(self, entries=tuple(kept))

    def sampling(self, benchmark: Benchmark) -> dict[str, Any]:
        """How answers to a benchmark are written."""
        return self._sampling(benchmark).model_dump(mode="json")

    def seeds(self, benchmark: Benchmark) -> tuple[int, ...]:
        """The seeds of a benchmark's answers: greedy ones are written once."""
        return self.suite.seeds if self._sampling(benchmark).temperature > 0 else (0,)

    def _sampling(self, benchmark: Benchmark) -> SamplingSpec:
        entry = next(entry for entry, other in self.entries if other.name == benchmark.name)
        return sampling_of(self.suite, entry, benchmark)

    def cells(self, counts: Mapping[str, int]) -> tuple[Cell, ...]:
        """Every benchmark under each of its protocols.

        Args:
            counts: documents per benchmark; a protocol may be asked fewer.
        """
        return tuple(
            Cell(
                benchmark=benchmark.name,
                protocol=protocol,
                documents=min(counts[benchmark.name], entry.limits.get(protocol, counts[benchmark.name])),
                sampling=self.sampling(benchmark) if protocol == "generation" else None,
                seeds=self.seeds(benchmark) if protocol == "generation" else (0,),
            )
            for entry, benchmark in self.entries
            for protocol in entry.protocols
        )


def at_context(benchmark: Benchmark, context: int) -> str:
    """How one context of a benchmark is called where it is left out."""
    return f"{benchmark.name}@{context}"


def _stated(entry: Entry) -> dict[str, Any]:
    """An entry as JSON; what came later only where it says something, so that older runs are still equal."""
    unsaid = {name for name in ("limits", "prompt") if not getattr(entry, name)}
    return entry.model_dump(mode="json", exclude=unsaid)


def resolve_suite(suite: str | Path, subjects: Sequence[Subject], *, limit: int | None = None) -> Asking:
    """Resolve a suite.

    Args:
        suite: a name or a YAML file.
        subjects: who is asked; their tokenizers decide about chat templates.
        limit: instead of every limit that the suite states.

    Raises:
        ConfigError: an unknown suite or benchmark, a protocol that a benchmark lacks, or tokenizers that
            cannot be asked in the same way.
    """
    loaded = load_suite(suite)
    near = Path(suite).parent if str(suite).endswith((".yaml", ".yml")) else None
    entries = resolve(loaded, near=near)
    if limit is not None:
        if limit < 1:
            raise ConfigError(f"limit = {limit}: must be at least 1")
        entries = [
            (entry.model_copy(update={"limit": limit, "limits": {}}), benchmark)
            for entry, benchmark in entries
        ]
    chat = any(
        "generation" in entry.protocols and benchmark.generation and benchmark.generation.prompt == "chat"
        for entry, benchmark in entries
    )
    return Asking(loaded, tuple(entries), chat and _template(loaded, subjects))


def _template(suite: Suite, subjects: Sequence[Subject]) -> bool:
    """Whether chat templates are used; all are asked in the same way or none is."""
    if suite.chat == "never":
        return False
    lacking = [subject.label for subject in subjects if not subject.tokenizer.chat_template]
    if suite.chat == "always" and lacking:
        raise ConfigError(
            f"{suite.where}: 'chat' = always: it asks through chat templates, and the tokenizer of "
            f"{lacking[0]} has none; set 'chat: never' in the suite to ask in plain text"
        )
    if lacking and len(lacking) < len(subjects):
        raise ConfigError(
            f"the tokenizer of {lacking[0]} has no chat template, others have one: all must "
            f"be given the same prompts; set 'chat: never' in a suite like {suite.name}, or ask them apart"
        )
    return not lacking


@dataclass(frozen=True)
class Gathered:
    """What there is to ask about."""

    documents: dict[str, list[Document]]
    """By benchmark; those of all contexts together."""
    partial: dict[str, tuple[int, int]]
    """Benchmarks whose data holds only part of what was published: documents there, documents published."""
    left_out: dict[str, str]
    """Benchmarks, or single contexts of them, that are not asked, and why."""


def gather(
    asking: Asking, subjects: Sequence[Subject], data_dir: Path | str | None, *, skip_missing: bool = False
) -> Gathered:
    """Return the documents of every benchmark.

    Lengths in tokens are counted with the tokenizer of the first checkpoint (the teacher, if there is
    one): every checkpoint is asked the same documents. A benchmark that runs code which models write is
    left out unless the user allows that. A context that one of the checkpoints reads is asked of all; the
    others' engines refuse it, and each refusal is a record.

    Args:
        asking: the resolved suite.
        subjects: who is asked.
        data_dir: as `evaluate` takes it.
        skip_missing: leave out benchmarks whose data is not to be had, and contexts that no checkpoint
            reads, instead of raising.

    Raises:
        DataError, MissingDependencyError: data or resources that are not there.
        ConfigError: a context that no checkpoint reads, or nothing is left to ask.
    """
    gathered = Gathered({}, {}, too_long(asking, subjects))
    if gathered.left_out and not skip_missing:
        where, why = next(iter(gathered.left_out.items()))
        name, _, context = where.partition("@")
        raise ConfigError(
            f"{asking.suite.where}: benchmarks: {name}: 'contexts' = {context}: {why}; ask for less in a "
            "suite of your own, ask a model that reads more, or leave such contexts out with --skip-missing"
        )
    asking = asking.without(gathered.left_out)
    for entry, benchmark in asking.entries:
        if benchmark.generation is not None and benchmark.generation.executes and not sandbox.allowed():
            gathered.left_out[benchmark.name] = sandbox.WHY
            continue
        try:
            for resource in benchmark.resources:
                provide(resource, data_dir)
            _gather_one(gathered, asking, entry, benchmark, data_dir, subjects[0])
        except (DataError, MissingDependencyError) as error:
            if not skip_missing:
                raise
            gathered.left_out[benchmark.name] = str(error)
    if not gathered.documents:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in gathered.left_out.items())
        raise ConfigError(f"{asking.suite.where}: nothing is left to ask ({reasons})")
    return gathered


def too_long(asking: Asking, subjects: Sequence[Subject]) -> dict[str, str]:
    """Contexts that nobody reads, so that making their documents, which takes long, would be in vain."""
    reader = max(subjects, key=lambda subject: subject.max_length)
    why = f"{reader.label} reads at most {reader.max_length:,} tokens"
    if len(subjects) > 1:
        why = f"of all that are asked {reader.label} reads most, {reader.max_length:,} tokens"
    return {
        at_context(benchmark, context): why
        for entry, benchmark in asking.entries
        for context in entry.contexts
        if context > reader.max_length
    }


def _gather_one(
    gathered: Gathered,
    asking: Asking,
    entry: Entry,
    benchmark: Benchmark,
    data_dir: Path | str | None,
    subject: Subject,
) -> None:
    if benchmark.generated is None:
        parts = whole(benchmark, data_dir=data_dir)
        there = sum(map(len, parts))
        if benchmark.published is not None and there < benchmark.published:
            gathered.partial[benchmark.name] = there, benchmark.published
        gathered.documents[benchmark.name] = sampled(parts, entry.limit, asking.suite.seed)
        return
    gathered.documents[benchmark.name] = []
    for context in entry.contexts or (None,):
        try:
            found = documents(
                benchmark,
                data_dir=data_dir,
                limit=entry.limit,
                seed=asking.suite.seed,
                context=context,
                count_tokens=counter(subject.tokenizer, benchmark, template=asking.template),
                counted=counted_as(subject, benchmark, template=asking.template),
            )
        except ConfigError as error:
            where = f"{asking.suite.where}: benchmarks: {benchmark.name}"
            at = f": 'contexts' = {context}" if context is not None else ""
            raise ConfigError(f"{where}{at}: {error}") from error
        gathered.documents[benchmark.name] += found
        # Where there are fewer questions than a generator is asked for, all of them were taken.
        if len(found) < min(entry.limit or benchmark.generated.count, benchmark.generated.count):
            gathered.partial[benchmark.name] = len(found), benchmark.generated.count


def counted_as(subject: Subject, benchmark: Benchmark, *, template: bool) -> str | None:
    """Name what `counter` gives: equal names count alike. None for documents that are made in no time."""
    if benchmark.generated is None or benchmark.generated.generator != "sized":
        return None
    chat = template and benchmark.generation is not None and benchmark.generation.prompt == "chat"
    return subject.tokenizer_id + ("-chat" if chat else "")


def counter(tokenizer: Any, benchmark: Benchmark, *, template: bool = False) -> Callable[[str], int]:
    """Return what counts tokens for a benchmark's generator.

    Some generators count whole prompts, with the special tokens and the chat template that a model will be
    given (`sized`); others count pieces, and the same filler again and again: short texts are counted once.

    Args:
        tokenizer: of the first checkpoint.
        benchmark: whose documents are generated.
        template: chat prompts go through the tokenizer's chat template.
    """
    fast = getattr(tokenizer, "backend_tokenizer", None)
    special = benchmark.generated is not None and benchmark.generated.generator == "sized"
    how = benchmark.generation
    chat = special and template and how is not None and how.prompt == "chat"

    def count(text: str) -> int:
        if chat:
            # The template writes the special tokens itself.
            text = chat_text(benchmark, [("user", text)], tokenizer)
            return len(tokenizer.encode(text, add_special_tokens=False))
        if fast is None:
            return len(tokenizer.encode(text, add_special_tokens=special))
        return len(fast.encode(text, add_special_tokens=special).ids)

    remembered = lru_cache(maxsize=1 << 16)(count)
    return lambda text: remembered(text) if len(text) <= SHORT else count(text)


def plan_of(asking: Asking, subjects: Sequence[Subject], cells: Sequence[Cell]) -> Plan:
    """Return the plan as the reports read it."""
    return Plan(
        schema=1,
        suite=asking.suite.name,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        benchmarks=tuple(_benchmark_plan(asking, entry, benchmark) for entry, benchmark in asking.entries),
        checkpoints=tuple(
            CheckpointPlan(
                label=subject.label,
                weights_id=subject.weights_id,
                role="teacher" if subject.role == "teacher" else "student",
                path=subject.path,
                parameters=subject.parameters,
                lineage=subject.lineage,
            )
            for subject in subjects
        ),
    )


def _benchmark_plan(asking: Asking, entry: Entry, benchmark: Benchmark) -> BenchmarkPlan:
    protocols: dict[Any, ProtocolPlan] = {}
    for protocol in entry.protocols:
        shots = entry.shots[protocol]
        if protocol == "loglikelihood":
            assert benchmark.loglikelihood is not None
            how = benchmark.loglikelihood
            protocols[protocol] = ProtocolPlan(
                metric=how.metric, direction=how.direction, units=how.units, shots=shots
            )
        else:
            assert benchmark.generation is not None
            sampling = asking.sampling(benchmark)
            how_asked = "chat template" if asking.template else "plain text"
            protocols[protocol] = ProtocolPlan(
                metric=benchmark.generation.metric,
                shots=shots,
                prompt=how_asked if benchmark.generation.prompt == "chat" else "literal",
                sampling=Sampling(**{**sampling, "stop": tuple(sampling["stop"])}).key(),
                seeds=asking.seeds(benchmark),
            )
    own = [getattr(benchmark, protocol).chance for protocol in entry.protocols]
    # Where the protocols differ, each record says its own.
    chance = "per_document" if any(value is not None for value in own) else benchmark.chance
    return BenchmarkPlan(
        name=benchmark.name,
        title=benchmark.title,
        category=benchmark.category,
        licence=benchmark.licence,
        citation=benchmark.citation,
        chance=chance,
        contexts=entry.contexts,
        group=benchmark.group,
        protocols=protocols,
    )


def index_of(asking: Asking, subjects: Sequence[Subject], cells: Sequence[Cell]) -> Index:
    """Return the index of requests."""
    return Index(
        suite=asking.suite.name,
        asked=asking.record,
        cells=tuple(cells),
        checkpoints=tuple(
            Asked(
                label=subject.label,
                path=subject.path,
                weights_id=subject.weights_id,
                tokenizer=subject.tokenizer_id,
            )
            for subject in subjects
        ),
    )


def benchmarks_of(index: Index) -> dict[str, Benchmark]:
    """Return the benchmarks that an index holds, by name."""
    found = [parse(entry["benchmark"], Benchmark, "requests/index.json") for entry in index.asked["entries"]]
    return {benchmark.name: benchmark for benchmark in found}
