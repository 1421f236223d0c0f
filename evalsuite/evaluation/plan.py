"""Manifest of a run: a suite with every default resolved against its benchmarks and tokenizers."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from evalsuite.evaluation.checkpoints import LocalCheckpoint, check_max_length
from evalsuite.evaluation.run_paths import Cell
from evalsuite.foundation import ConfigError, RunFolderError, content_hash
from evalsuite.foundation.chat_templates import check_template_arguments
from evalsuite.foundation.context_limits import context_name
from evalsuite.foundation.strict import parse
from evalsuite.foundation.taxonomy import Protocol
from evalsuite.models.inference.requests import SamplingParams
from evalsuite.protocols.prompt_text import chat_text
from evalsuite.reports.run import FILE, DivergedStudent, HubDataset, Manifest, ProtocolSettings
from evalsuite.reports.run import Benchmark as RunBenchmark
from evalsuite.tasks.benchmark import Benchmark, SamplingSpec
from evalsuite.tasks.recall import recall_numbers
from evalsuite.tasks.sources.documents import Document
from evalsuite.tasks.suite import Entry, Suite, load_suite, resolve, resolve_sampling, suite_folder

DocumentCounts = Mapping[tuple[str, str], int | dict[int, int]]
"""(benchmark, protocol) → number of documents, per context if there are contexts."""


@dataclass(frozen=True)
class ResolvedSuite:
    """A suite without defaults left to resolve."""

    suite: Suite
    entries: tuple[tuple[Entry, Benchmark], ...]
    chat_template: bool
    """Whether chat prompts go through the tokenizers' chat templates."""
    max_length: int | None = None
    """Positions that checkpoints are extended to; None: they read what their configs state."""
    built: Mapping[str, "BuiltSampling"] = field(default_factory=dict)
    """Benchmark → its sampling where a run has settled it, whatever the suite states."""

    @cached_property
    def config(self) -> dict[str, Any]:
        """The resolved suite as JSON: runs with equal configs have equal requests."""
        return {
            "seed": self.suite.seed,
            "chat_template": self.chat_template,
            "entries": [
                {
                    **_entry_config(entry),
                    "sampling": self.sampling(benchmark) if "generation" in entry.protocols else None,
                    "seeds": list(self.seeds(benchmark)) if "generation" in entry.protocols else [0],
                    "benchmark": benchmark.model_dump(mode="json"),
                }
                for entry, benchmark in self.entries
            ],
        }

    def without(self, names: Collection[str]) -> "ResolvedSuite":
        """Return the suite without these benchmarks, or single contexts of them (``niah_single_1@16384``)."""
        remaining = []
        for entry, benchmark in self.entries:
            contexts = tuple(
                each for each in entry.contexts if context_name(benchmark.name, each) not in names
            )
            if benchmark.name not in names and (contexts or not entry.contexts):
                remaining.append((entry.model_copy(update={"contexts": contexts}), benchmark))
        return replace(self, entries=tuple(remaining))

    def sampling(self, benchmark: Benchmark) -> dict[str, Any]:
        """Return the sampling parameters of a benchmark's generation."""
        return self._sampling(benchmark).model_dump(mode="json")

    def seeds(self, benchmark: Benchmark) -> tuple[int, ...]:
        """Return the seeds of a benchmark's responses; greedy generation has one."""
        if benchmark.name in self.built:
            return self.built[benchmark.name].seeds
        return self.suite.seeds if self._sampling(benchmark).temperature > 0 else (0,)

    def _sampling(self, benchmark: Benchmark) -> SamplingSpec:
        if benchmark.name in self.built:
            return self.built[benchmark.name].sampling
        entry = next(entry for entry, other in self.entries if other.name == benchmark.name)
        assert benchmark.generation is not None
        sampling = resolve_sampling(self.suite, entry, benchmark)
        return benchmark.generation.with_stop(sampling, chat_template=self.chat_template)

    def cells(self, counts: Mapping[str, int]) -> tuple[Cell, ...]:
        """Return every benchmark under each of its protocols.

        Args:
            counts: documents per benchmark; a protocol may be limited to fewer.
        """
        return tuple(
            Cell(
                benchmark=benchmark.name,
                protocol=protocol,
                documents=min(counts[benchmark.name], entry.limits.get(protocol, counts[benchmark.name])),
                sampling=self.sampling(benchmark) if protocol == "generation" else None,
                seeds=self.seeds(benchmark) if protocol == "generation" else (0,),
                sampler=entry.sampler or "seeded",
            )
            for entry, benchmark in self.entries
            for protocol in entry.protocols
        )


class BuiltSampling(NamedTuple):
    """Sampling of a benchmark's responses in a run."""

    sampling: SamplingSpec
    seeds: tuple[int, ...]


def _entry_config(entry: Entry) -> dict[str, Any]:
    """Return an entry as JSON, without optional keys that are empty and what the report alone reads."""
    optional = ("limits", "sampler", "prompt", "chat_template_kwargs", "reasoning")
    empty = {name for name in optional if not getattr(entry, name)}
    return entry.model_dump(mode="json", exclude={*empty, "not_leading"})


def resolve_suite(
    suite: str | Path,
    checkpoints: Sequence[LocalCheckpoint],
    *,
    limit: int | None = None,
    max_length: int | None = None,
    only: Sequence[Sequence[str]] = (),
) -> ResolvedSuite:
    """Resolve a suite.

    Args:
        suite: a name or a YAML file.
        checkpoints: their tokenizers decide whether chat templates are used.
        limit: replaces every limit of the suite.
        max_length: positions that checkpoints are extended to.
        only: as `evalsuite.tasks.suite.resolve`.

    Raises:
        ConfigError: an unknown suite or benchmark, a protocol that a benchmark lacks, tokenizers that do not
            allow equal prompts, or a `max_length` that a checkpoint cannot reach.
    """
    if max_length is not None:
        check_max_length(checkpoints, max_length)
    loaded = load_suite(suite)
    entries = resolve(loaded, near=suite_folder(suite), only=only)
    if limit is not None:
        if limit < 1:
            raise ConfigError(f"limit = {limit}: must be at least 1")
        entries = [
            (entry.model_copy(update={"limit": limit, "limits": {}}), benchmark)
            for entry, benchmark in entries
        ]
    resolved = ResolvedSuite(loaded, tuple(entries), chat_template=False, max_length=max_length)
    used = _has_chats(resolved) and _use_chat_template(loaded, checkpoints)
    if used:
        _check_template_arguments(loaded, [benchmark for _, benchmark in entries], checkpoints)
    return replace(resolved, chat_template=used)


def check_suite(suite: str | Path, manifest: Manifest, run: Path, *, limit: int | None = None) -> None:
    """Refuse a suite that is no part of what a run was built with: what is scored was settled there.

    Args:
        suite: a name or a YAML file.
        manifest: of the run.
        run: the run folder, for messages.
        limit: documents per benchmark, which replaces every limit of the suite.

    Raises:
        RunFolderError: the run is of another suite.
        ConfigError: as `resolve_suite`.
    """
    resolved = resolve_suite(suite, [], limit=limit)
    if resolved.suite.chat_template == "auto":  # The tokenizers have decided.
        resolved = replace(resolved, chat_template=manifest.config["chat_template"])
    resolved = replace(resolved, max_length=manifest.max_length).without(manifest.left_out)
    grow(run, manifest, resolved)
    known = built_suite(manifest)
    names = {benchmark.name for _, benchmark in resolved.entries}
    part = replace(known, entries=tuple(pair for pair in known.entries if pair[1].name in names))
    where = _difference({"entries": part.config["entries"]}, {"entries": resolved.config["entries"]})
    if where is not None or (part == known and resolved.suite.name != known.suite.name):
        raise _refusal(run, manifest, resolved, where)


GROWING = ("protocols", "contexts", "limit", "limits", "seeds")
"""Settings of a benchmark in which a run may grow; others change the requests that it has."""


def grow(run: Path, manifest: Manifest, resolved: ResolvedSuite) -> ResolvedSuite:
    """Return what a run has together with a suite: more benchmarks, protocols, contexts, documents or seeds.

    What the run has and the suite lacks stays.

    Raises:
        RunFolderError: a setting differs that changes the requests of the run; the message names it.
    """
    known = built_suite(manifest)
    mine, own = known.config, resolved.config
    here = {entry["benchmark"]["name"]: entry for entry in own["entries"]}
    both = [entry for entry in mine["entries"] if entry["benchmark"]["name"] in here]
    where = _difference(
        {"max_length": known.max_length, "seed": mine["seed"]}
        | {"entries": [_fixed(entry, here[entry["benchmark"]["name"]]) for entry in both]},
        {"max_length": resolved.max_length, "seed": own["seed"]}
        | {"entries": [_fixed(here[entry["benchmark"]["name"]], entry) for entry in both]},
    )
    if where is None and _has_chats(known) and _has_chats(resolved):
        where = _difference({"chat_template": known.chat_template}, {"chat_template": resolved.chat_template})
    if where is not None:
        raise _refusal(run, manifest, resolved, where)
    entries = {benchmark.name: (entry, benchmark) for entry, benchmark in known.entries}
    built = dict(known.built)
    for entry, benchmark in resolved.entries:
        before = entries.get(benchmark.name)
        entries[benchmark.name] = (
            (entry, benchmark) if before is None else (_grown(before[0], entry, benchmark), benchmark)
        )
        if benchmark.name in built and "generation" in entry.protocols:
            seeds = (*built[benchmark.name].seeds, *resolved.seeds(benchmark))
            built[benchmark.name] = built[benchmark.name]._replace(seeds=tuple(dict.fromkeys(seeds)))
        elif before is not None and "generation" in entry.protocols:
            built[benchmark.name] = BuiltSampling(resolved._sampling(benchmark), resolved.seeds(benchmark))
    return replace(
        known,
        suite=resolved.suite.model_copy(update={"name": _common_name(known, resolved)}),
        entries=tuple(entries.values()),
        chat_template=(known if _has_chats(known) else resolved).chat_template,
        built=built,
    )


def built_suite(manifest: Manifest) -> ResolvedSuite:
    """Return the suite of a run as it was built, with the sampling that was settled there."""
    benchmarks = benchmarks_in(manifest)
    reasons = {each.name: each.not_leading for each in manifest.benchmarks}
    entries, built = [], {}
    for stored in manifest.config["entries"]:
        benchmark = benchmarks[stored["benchmark"]["name"]]
        own = {key: value for key, value in stored.items() if key not in ("benchmark", "sampling", "seeds")}
        own |= {"benchmark": benchmark.name, "not_leading": reasons[benchmark.name]}
        entries.append((parse(own, Entry, FILE), benchmark))
        if stored["sampling"] is not None:
            sampling = parse(stored["sampling"], SamplingSpec, FILE)
            built[benchmark.name] = BuiltSampling(sampling, tuple(stored["seeds"]))
    names = tuple(Entry(benchmark=name) for name in benchmarks)
    suite = Suite(name=manifest.suite, title=manifest.suite, seed=manifest.config["seed"], benchmarks=names)
    template = bool(manifest.config["chat_template"])
    return ResolvedSuite(suite, tuple(entries), template, manifest.max_length, built)


def _refusal(run: Path, manifest: Manifest, resolved: ResolvedSuite, where: str | None) -> RunFolderError:
    return RunFolderError(
        f"{run}: holds a run of suite {manifest.suite} with another configuration than "
        f"{resolved.suite.location}{f' ({where})' if where else ''}; choose another --out, or repeat the "
        "same suite and options"
    )


def _fixed(entry: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """Return what an entry and another one of the same benchmark must have in common."""
    found = {key: value for key, value in entry.items() if key not in GROWING}
    if entry["sampling"] is None or other["sampling"] is None:
        del found["sampling"]  # One of them does not generate.
    return found


def _has_chats(resolved: ResolvedSuite) -> bool:
    """Whether prompts depend on the use of chat templates."""
    return any(
        "generation" in entry.protocols and benchmark.generation and benchmark.generation.prompt == "chat"
        for entry, benchmark in resolved.entries
    )


def _grown(before: Entry, after: Entry, benchmark: Benchmark) -> Entry:
    """Return an entry with the protocols, contexts and documents of both."""
    protocols = tuple(dict.fromkeys((*before.protocols, *after.protocols)))
    limits: dict[Protocol, int | None] = {}
    for entry in (before, after):
        for protocol in entry.protocols:
            limit = entry.limits.get(protocol, entry.limit)
            known = limits.get(protocol, limit)
            limits[protocol] = None if limit is None or known is None else max(limit, known)
    given = [limit for limit in limits.values() if limit is not None]
    most = max(given) if len(given) == len(limits) else None
    # A sample of generated documents, or of several subjects or lengths, is no part of a larger one under one
    # protocol.
    divided = benchmark.generated is not None or benchmark.contexts or len(benchmark.subject_sources) > 1
    fewer = {name: limit for name, limit in limits.items() if limit not in (None, most) and not divided}
    return before.model_copy(
        update={
            "protocols": protocols,
            "contexts": tuple(dict.fromkeys((*before.contexts, *after.contexts))),
            "limit": most,
            "limits": fewer,
        }
    )


def _common_name(known: ResolvedSuite, resolved: ResolvedSuite) -> str:
    """Name of a run that has grown: the suite that has all of its benchmarks, else both."""
    mine, own = ({benchmark.name for _, benchmark in each.entries} for each in (known, resolved))
    if mine <= own:
        return resolved.suite.name
    return known.suite.name if own <= mine else f"{known.suite.name}+{resolved.suite.name}"


def _difference(old: Any, new: Any, where: str = "") -> str | None:
    """Describe the first difference between two JSON values; None if they are equal."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        for key in dict.fromkeys((*old, *new)):
            if found := _difference(old.get(key), new.get(key), f"{where}.{key}" if where else str(key)):
                return found
        return None
    if where == "entries":
        # In whichever order the suite lists them.
        here, there = ({each["benchmark"]["name"]: each for each in entries} for entries in (old, new))
        for name in dict.fromkeys((*here, *there)):
            if found := _difference(here.get(name), there.get(name), f"entries[{name}]"):
                return found
        return None
    return None if old == new else f"{where}: {_short(old)} there, {_short(new)} here"


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "…"


def _use_chat_template(suite: Suite, checkpoints: Sequence[LocalCheckpoint]) -> bool:
    """Return whether chat templates are used: for all checkpoints or for none."""
    if suite.chat_template == "never":
        return False
    lacking = [each.label for each in checkpoints if not each.text_tokenizer.chat_template]
    if suite.chat_template == "always" and lacking:
        raise ConfigError(
            f"{suite.location}: 'chat_template' = always: the tokenizer of {lacking[0]} has no chat "
            "template; set "
            "'chat_template: never' in the suite to use plain text"
        )
    if lacking and len(lacking) < len(checkpoints):
        raise ConfigError(
            f"the tokenizer of {lacking[0]} has no chat template, others have one: all checkpoints must "
            f"get the same prompts; set 'chat_template: never' in a suite like {suite.name}, or run them "
            "separately"
        )
    return not lacking


def _check_template_arguments(
    suite: Suite, benchmarks: Sequence[Benchmark], checkpoints: Sequence[LocalCheckpoint]
) -> None:
    """Refuse chat templates that do not read the arguments of a benchmark's prompts, or reject them."""
    for benchmark in benchmarks:
        how = benchmark.generation
        if how is None or not how.chat_template_kwargs:
            continue
        for each in checkpoints:
            try:
                check_template_arguments(each.text_tokenizer.chat_template, how.chat_template_kwargs)
                chat_text(benchmark, [("user", "A question.")], each.text_tokenizer)
            except ConfigError as error:
                where = f"{suite.location}: benchmarks: {benchmark.name}: the tokenizer of {each.label}"
                raise ConfigError(
                    f"{where}: {error}; remove the argument, or include {suite.name} in a suite without it"
                ) from error


def make_manifest(
    resolved: ResolvedSuite,
    checkpoints: Sequence[LocalCheckpoint],
    counts: DocumentCounts,
    diverged: Sequence[DivergedStudent] = (),
) -> Manifest:
    """Return the manifest of a run.

    Args:
        resolved, checkpoints: what is evaluated.
        counts: documents of every benchmark under each of its protocols, see `count_documents`.
        diverged: students without a checkpoint.
    """
    return Manifest(
        suite=resolved.suite.name,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        benchmarks=tuple(
            _benchmark(resolved, entry, benchmark, counts) for entry, benchmark in resolved.entries
        ),
        checkpoints=tuple(each.stated for each in checkpoints),
        max_length=resolved.max_length,
        config=resolved.config,
        diverged=tuple(diverged),
    )


def count_documents(documents: Sequence[Document]) -> int | dict[int, int]:
    """Return the number of documents; per context if they have contexts."""
    contexts = Counter(document.context for document in documents if document.context is not None)
    return {context: contexts[context] for context in sorted(contexts)} if contexts else len(documents)


def _benchmark(
    resolved: ResolvedSuite, entry: Entry, benchmark: Benchmark, counts: DocumentCounts
) -> RunBenchmark:
    protocols: dict[Any, ProtocolSettings] = {}
    for protocol in entry.protocols:
        documents = counts[benchmark.name, protocol]
        num_fewshot = entry.num_fewshot[protocol]
        if protocol == "loglikelihood":
            spec = benchmark.loglikelihood
            assert spec is not None
            protocols[protocol] = ProtocolSettings(
                metric=spec.metric,
                documents=documents,
                direction=spec.direction,
                units=spec.units,
                num_fewshot=num_fewshot,
            )
        else:
            assert benchmark.generation is not None
            sampling = resolved.sampling(benchmark)
            how = benchmark.generation
            chat = "chat template" if resolved.chat_template else "plain text"
            templated = resolved.chat_template and how.prompt == "chat"
            protocols[protocol] = ProtocolSettings(
                metric=how.metric,
                documents=documents,
                num_fewshot=num_fewshot,
                prompt=chat if how.prompt == "chat" else "literal",
                chat_template_kwargs=how.chat_template_kwargs if templated else {},
                reasoning=how.reasoning,
                sampling=SamplingParams(**{**sampling, "stop": tuple(sampling["stop"])}).key(),
                seeds=resolved.seeds(benchmark),
            )
    own = [getattr(benchmark, protocol).chance for protocol in entry.protocols]
    # If the protocols differ, each score row carries its own chance level.
    chance = "per_document" if any(value is not None for value in own) else benchmark.chance
    return RunBenchmark(
        name=benchmark.name,
        title=benchmark.title,
        category=benchmark.category,
        license=benchmark.license,
        citation=benchmark.citation,
        chance=chance,
        contexts=entry.contexts,
        group=benchmark.group,
        recall=recall_numbers(benchmark),
        cluster_column=benchmark.cluster_column,
        dataset=hub_dataset(benchmark),
        files_hash=_files_hash(benchmark),
        not_leading=entry.not_leading,
        protocols=protocols,
    )


def hub_dataset(benchmark: Benchmark) -> HubDataset | None:
    """The dataset of a benchmark; None if it is generated, or comes from a file or from several datasets."""
    sources = [source for _, source in benchmark.subject_sources]
    if any(source.file for source in sources):
        return None
    if len({(source.dataset, source.split) for source in sources}) != 1:
        return None
    configs = {source.config for source in sources}
    first = sources[0]
    return HubDataset(
        id=first.dataset, config=configs.pop() if len(configs) == 1 else None, split=first.split
    )


def _files_hash(benchmark: Benchmark) -> str:
    """The hash of the files that a benchmark reads, over all subjects if there are several; "" for none."""
    hashes = [source.sha256 for _, source in benchmark.subject_sources if source.file]
    return hashes[0] if len(hashes) == 1 else content_hash(hashes) if hashes else ""


def benchmarks_in(manifest: Manifest) -> dict[str, Benchmark]:
    """Return the definitions of a run's benchmarks, by name."""
    found = [parse(entry["benchmark"], Benchmark, FILE) for entry in manifest.config["entries"]]
    return {benchmark.name: benchmark for benchmark in found}
