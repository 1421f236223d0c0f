"""Manifest of a run: a suite with every default resolved against its benchmarks and tokenizers."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any

from evalsuite.evaluation.checkpoints import LocalCheckpoint, check_max_length
from evalsuite.evaluation.run_paths import Cell
from evalsuite.foundation import ConfigError, RunFolderError, content_hash
from evalsuite.foundation.chat_templates import check_template_arguments
from evalsuite.foundation.context_limits import context_name
from evalsuite.foundation.strict import parse
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
        return self.suite.seeds if self._sampling(benchmark).temperature > 0 else (0,)

    def _sampling(self, benchmark: Benchmark) -> SamplingSpec:
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
) -> ResolvedSuite:
    """Resolve a suite.

    Args:
        suite: a name or a YAML file.
        checkpoints: their tokenizers decide whether chat templates are used.
        limit: replaces every limit of the suite.
        max_length: positions that checkpoints are extended to.

    Raises:
        ConfigError: an unknown suite or benchmark, a protocol that a benchmark lacks, tokenizers that do not
            allow equal prompts, or a `max_length` that a checkpoint cannot reach.
    """
    if max_length is not None:
        check_max_length(checkpoints, max_length)
    loaded = load_suite(suite)
    entries = resolve(loaded, near=suite_folder(suite))
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
    used = chat and _use_chat_template(loaded, checkpoints)
    if used:
        _check_template_arguments(loaded, [benchmark for _, benchmark in entries], checkpoints)
    return ResolvedSuite(loaded, tuple(entries), used, max_length)


def check_suite(suite: str | Path, manifest: Manifest, run: Path, *, limit: int | None = None) -> None:
    """Refuse a suite that is not the one that a run was built with: what is scored was settled there.

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
    refuse_other_config(run, manifest, resolved)


def refuse_other_config(run: Path, manifest: Manifest, resolved: ResolvedSuite) -> None:
    """Raise RunFolderError, which names the first difference, unless a suite is the one of a run."""
    benchmarks = benchmarks_in(manifest)
    entries = [
        {**entry, "benchmark": benchmarks[entry["benchmark"]["name"]].model_dump(mode="json")}
        for entry in manifest.config["entries"]  # Of an earlier version, perhaps, which had fewer settings.
    ]
    built = {**manifest.config, "entries": entries, "max_length": manifest.max_length}
    where = _difference(built, {**resolved.config, "max_length": resolved.max_length})
    if where is not None or manifest.suite != resolved.suite.name:
        raise RunFolderError(
            f"{run}: holds a run of suite {manifest.suite} with another configuration than "
            f"{resolved.suite.location}{f' ({where})' if where else ''}; choose another --out, or repeat the "
            "same suite and options"
        )


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
