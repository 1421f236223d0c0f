"""Documents of a run: loading, token counts, and generation ahead of time for `evalsuite prepare`."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from threading import Lock
from typing import Any

from evalsuite.evaluation.checkpoints import LocalCheckpoint
from evalsuite.evaluation.plan import ResolvedSuite, resolve_suite
from evalsuite.evaluation.processes.workers import Shared, WorkerPool, expected_rows
from evalsuite.evaluation.run_paths import unread_contexts
from evalsuite.foundation import (
    ConfigError,
    DataError,
    EvalsuiteError,
    MissingDependencyError,
    content_hash,
    progress,
)
from evalsuite.models.checkpoints.tokenizers import backend_of, needs_special_tokens, prefix_text
from evalsuite.protocols import sandbox
from evalsuite.protocols.prompt_text import chat_text
from evalsuite.tasks.benchmark import Benchmark
from evalsuite.tasks.generator import generator_of
from evalsuite.tasks.sources.assets import ensure_asset
from evalsuite.tasks.sources.documents import (
    Document,
    all_documents,
    documents,
    limit_documents,
    with_prefixes,
)
from evalsuite.tasks.sources.freeze import FrozenFile, freeze_generated
from evalsuite.tasks.suite import Entry

CACHED_TEXT_LENGTH = 256
"""Characters up to which the token count of a text is cached."""


@dataclass(frozen=True)
class LoadedDocuments:
    """Documents of a resolved suite."""

    documents: dict[str, list[Document]]
    """By benchmark, over all contexts."""
    partial: dict[str, tuple[int, ...]]
    """Benchmarks with incomplete data: documents available, documents published."""
    left_out: dict[str, str]
    """Benchmarks, or single contexts of them, that are left out, and why."""
    unread: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Label → further contexts that this checkpoint is not evaluated on, and why."""


def load_documents(
    resolved: ResolvedSuite,
    checkpoints: Sequence[LocalCheckpoint],
    data_dir: Path | str | None,
    *,
    skip_missing: bool = False,
    strict: bool = False,
    pool: WorkerPool | None = None,
) -> LoadedDocuments:
    """Load the documents of every benchmark.

    Token counts use the tokenizer of the first checkpoint (the teacher, if there is one), so that every
    checkpoint gets the same documents. A context that at least one checkpoint supports is included; the
    others are not evaluated on it.

    Args:
        resolved: the resolved suite.
        checkpoints: of the run.
        data_dir: as in `evaluate`.
        skip_missing: leave out benchmarks without data or consent to execute code, instead of raising.
        strict: raise for contexts that a checkpoint does not support, instead of leaving them out.
        pool: its workers share the benchmarks; None loads them in this process.

    Raises:
        DataError, MissingDependencyError: missing data or assets.
        ConfigError: a context that a checkpoint does not support (only if strict), a `max_length` that
            extends no checkpoint, a benchmark that executes code without consent, or no benchmark is left.
    """
    _check_extension(resolved, checkpoints)
    left_out = unreadable_contexts(resolved, checkpoints)
    if strict:
        _refuse_unread(resolved, checkpoints, left_out)
    resolved = resolved.without(left_out)
    unread = {
        each.label: contexts
        for each in checkpoints
        if (contexts := unread_contexts(resolved.config, each.limit(resolved.max_length)))
    }
    loaded = LoadedDocuments({}, {}, left_out, unread)
    pool = pool or WorkerPool()
    rows = expected_rows(resolved.entries, None)
    tokenizer = pool.share(checkpoints[0].text_tokenizer, rows)
    tasks = [
        _LoadTask(resolved, entry, benchmark, contexts, data_dir, tokenizer, checkpoints[0].tokenizer)
        for entry, benchmark in resolved.entries
        for contexts in _portions(entry, benchmark)
    ]
    results: dict[int, _Loaded | EvalsuiteError] = {}
    for number, result in pool.map(_load_portion, tasks, rows=rows):
        results[number] = result
        first = len(results) == number + 1  # All before it are loaded.
        if first and not skip_missing and isinstance(result, EvalsuiteError):
            raise _unskipped(result, tasks[number])
    for number, task in enumerate(tasks):
        name, result = task.benchmark.name, results[number]
        if name in loaded.left_out:
            continue
        if not isinstance(result, EvalsuiteError):
            found, partial = result
            loaded.documents.setdefault(name, []).extend(found)
            if partial is not None:
                loaded.partial[name] = partial
        elif not skip_missing:
            raise _unskipped(result, task)
        else:
            loaded.left_out[name] = str(result)
            loaded.documents.pop(name, None)
            loaded.partial.pop(name, None)
    if not loaded.documents:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in loaded.left_out.items())
        raise ConfigError(f"{resolved.suite.location}: no benchmark is left ({reasons})")
    return loaded


def unreadable_contexts(resolved: ResolvedSuite, checkpoints: Sequence[LocalCheckpoint]) -> dict[str, str]:
    """Return the contexts that no checkpoint supports, and why; generating their documents is slow."""
    limits = {each.label: each.limit(resolved.max_length) for each in checkpoints}
    label = max(limits, key=lambda label: limits[label].longest or 0)
    why = f"{label} {limits[label].reason}"
    if len(checkpoints) > 1:
        why = f"of all checkpoints {label} supports most, {limits[label].longest:,} tokens"
    return dict.fromkeys(unread_contexts(resolved.config, limits[label]), why)


def _check_extension(resolved: ResolvedSuite, checkpoints: Sequence[LocalCheckpoint]) -> None:
    """Refuse a `max_length` without effect."""
    if resolved.max_length is not None and all(
        each.limit(resolved.max_length).extension is None for each in checkpoints
    ):
        fewest = min(checkpoints, key=lambda each: each.positions)
        raise ConfigError(
            f"'max_length' (--max-length) = {resolved.max_length}: it only extends checkpoints, and "
            f"{fewest.label} reads {fewest.positions:,} positions already; leave it out, or use shorter "
            "contexts in a suite of your own"
        )


def _refuse_unread(
    resolved: ResolvedSuite, checkpoints: Sequence[LocalCheckpoint], left_out: Mapping[str, str]
) -> None:
    """Refuse a context that a checkpoint does not support; one that none supports first."""
    refused = dict(left_out)
    for each in checkpoints:
        contexts = unread_contexts(resolved.config, each.limit(resolved.max_length))
        refused = {name: f"{each.label} {why}" for name, why in contexts.items()} | refused
    for where, why in refused.items():
        name, _, context = where.partition("@")
        raise ConfigError(
            f"{resolved.suite.location}: benchmarks: {name}: 'contexts' = {context}: {why}; use shorter "
            "contexts in a suite of your own, add a checkpoint with more positions or --max-length, or leave "
            "out --strict"
        )


def _portions(entry: Entry, benchmark: Benchmark) -> Sequence[tuple[int | None, ...]]:
    """Return the contexts of a benchmark, divided for workers: documents of each length take long to draw."""
    contexts = entry.contexts or (None,)
    return [contexts] if benchmark.generated is None else [(context,) for context in contexts]


@dataclass(frozen=True)
class _LoadTask:
    """Documents of one benchmark that are to be loaded."""

    resolved: ResolvedSuite
    entry: Entry
    benchmark: Benchmark
    contexts: tuple[int | None, ...]
    """None: the benchmark has no contexts."""
    data_dir: Path | str | None
    tokenizer: Shared
    """Counts tokens."""
    tokenizer_id: str


_Loaded = tuple[list[Document], tuple[int, int] | None]
"""Documents; and if they are incomplete, documents available and documents published."""


def _load_portion(task: _LoadTask) -> _Loaded | EvalsuiteError:
    """Load documents of one benchmark; return a reason for which a run may leave it out."""
    spec = task.benchmark.generation if "generation" in task.entry.protocols else None
    if spec is not None and (refusal := sandbox.execution_refusal(spec.dataset)):
        return ConfigError(refusal)
    try:
        for asset in task.benchmark.assets:
            ensure_asset(asset, task.data_dir)
        return _generate(task) if task.benchmark.generated is not None else _read(task)
    except (DataError, MissingDependencyError) as error:
        return error


def _unskipped(error: EvalsuiteError, task: _LoadTask) -> EvalsuiteError:
    """Return the error of a run that leaves nothing out."""
    if not isinstance(error, ConfigError):
        return error
    return ConfigError(f"{task.benchmark.name}: {error} (--skip-missing leaves the benchmark out)")


def _read(task: _LoadTask) -> _Loaded:
    published, sampler = task.benchmark.expected_documents, task.entry.sampler or "seeded"
    found: list[Document] = []
    partial = None
    for context in task.contexts:
        groups = all_documents(task.benchmark, data_dir=task.data_dir, context=context)
        available = sum(map(len, groups))
        if published is not None and available < published:
            partial = available, published
        found += limit_documents(groups, task.entry.limit, task.resolved.suite.seed, sampler)
    return with_prefixes(task.benchmark, found, task.data_dir), partial


def _generate(task: _LoadTask) -> _Loaded:
    resolved, entry, benchmark = task.resolved, task.entry, task.benchmark
    assert benchmark.generated is not None
    loaded: list[Document] = []
    partial = None
    template, tokenizer = resolved.chat_template, task.tokenizer.get()
    for context in task.contexts:
        try:
            found = documents(
                benchmark,
                data_dir=task.data_dir,
                limit=entry.limit,
                seed=resolved.suite.seed,
                context=context,
                count_tokens=token_counter(tokenizer, benchmark, chat_template=template),
                tokenizer_id=counter_id(task.tokenizer_id, benchmark, chat_template=template),
            )
        except ConfigError as error:
            where = f"{resolved.suite.location}: benchmarks: {benchmark.name}"
            at = f": 'contexts' = {context}" if context is not None else ""
            raise ConfigError(f"{where}{at}: {error}") from error
        loaded += found
        # Fewer documents than requested: the source has no more.
        if len(found) < min(entry.limit or benchmark.generated.count, benchmark.generated.count):
            partial = len(found), benchmark.generated.count
    return loaded, partial


def counter_id(tokenizer_id: str, benchmark: Benchmark, *, chat_template: bool) -> str | None:
    """Return the identity of `token_counter`: equal ids count alike. None where pieces are counted."""
    generator = generator_of(benchmark)
    if generator is None or not generator.counts_prompts:
        return None
    how = benchmark.generation
    if not chat_template or how is None or how.prompt != "chat":
        return tokenizer_id
    arguments = f"-{content_hash(how.chat_template_kwargs, 8)}" if how.chat_template_kwargs else ""
    return f"{tokenizer_id}-chat{arguments}"


def token_counter(
    tokenizer: Any, benchmark: Benchmark, *, chat_template: bool = False
) -> Callable[[str], int]:
    """Return the function that counts tokens for a benchmark's generator.

    Some generators count whole prompts, including special tokens and the chat template. Others count pieces,
    and the same filler repeatedly: counts of short texts are cached.

    Args:
        tokenizer: of the first checkpoint.
        benchmark: whose documents are generated.
        chat_template: whether chat prompts go through the tokenizer's chat template.
    """
    backend, prefix = backend_of(tokenizer), prefix_text(tokenizer)
    generator = generator_of(benchmark)
    special = generator is not None and generator.counts_prompts
    spec = benchmark.generation
    chat = special and chat_template and spec is not None and spec.prompt == "chat"
    # Generators count in threads, which a tokenizer without a backend need not support.
    one_at_a_time = Lock()

    def count(text: str) -> int:
        if chat:
            text = chat_text(benchmark, [("user", text)], tokenizer)
        adds = special and needs_special_tokens(text, prefix)
        if backend is None:
            with one_at_a_time:
                return len(tokenizer.encode(text, add_special_tokens=adds))
        # Without offsets, which nobody reads.
        return len(backend.encode_batch_fast([text], add_special_tokens=adds)[0])

    cached = lru_cache(maxsize=1 << 16)(count)
    return lambda text: cached(text) if len(text) <= CACHED_TEXT_LENGTH else count(text)


@dataclass(frozen=True)
class PreparedDocuments:
    """Result of `prepare_documents`."""

    files: list[FrozenFile]
    left_out: dict[str, str]
    """Contexts that the checkpoint does not support, and why."""


def prepare_documents(
    suite: str | Path,
    folder: Path,
    checkpoint: str,
    *,
    max_length: int | None = None,
    trust_remote_code: bool = False,
    quiet: bool = False,
) -> PreparedDocuments:
    """Generate and freeze a suite's documents of given lengths, for one tokenizer.

    Runs with this data folder use them for every checkpoint with this tokenizer; without them a run generates
    the same documents itself.

    Args:
        suite: a name or a YAML file.
        folder: frozen data, including the sources that the documents are drawn from.
        checkpoint: its tokenizer counts tokens.
        max_length: as in `RunConfig`.
        trust_remote_code: as `evalsuite.models.load_checkpoint`.
        quiet: no progress bar.

    Raises:
        ConfigError, CheckpointError, DataError: as `evalsuite.evaluation.evaluate`.
    """
    from evalsuite.evaluation.checkpoints import describe_checkpoints

    described = describe_checkpoints([checkpoint], None, trust_remote_code=trust_remote_code)
    resolved = resolve_suite(suite, described, max_length=max_length)
    left_out = unreadable_contexts(resolved, described)
    resolved = resolved.without(left_out)
    template = resolved.chat_template
    wanted = [
        (benchmark, context, tokenizer_id)
        for entry, benchmark in resolved.entries
        if (tokenizer_id := counter_id(described[0].tokenizer, benchmark, chat_template=template)) is not None
        for context in entry.contexts
    ]
    files = [
        freeze_generated(
            benchmark,
            context,
            folder,
            seed=resolved.suite.seed,
            tokenizer_id=tokenizer_id,
            count_tokens=token_counter(described[0].text_tokenizer, benchmark, chat_template=template),
        )
        for benchmark, context, tokenizer_id in progress(
            wanted, total=len(wanted), what="generate documents", unit="file", quiet=quiet
        )
    ]
    return PreparedDocuments(files, left_out)
