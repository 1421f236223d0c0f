"""Text for people: document texts of a report's samples, and prompts exactly as a model receives them.

Reports identify documents by their hashes. Importing this module imports no torch and no harness, so that a
report with document texts can be rebuilt on a laptop.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evalsuite.foundation import ConfigError, DataError, read_jsonl

if TYPE_CHECKING:
    from evalsuite.protocols.generation import GenerationBenchmark
    from evalsuite.protocols.loglikelihood import LogLikelihoodBenchmark
    from evalsuite.tasks.benchmark import Benchmark

COLUMNS = ("prompt", "question", "Question", "ctx", "sentence", "goal", "text", "input", "problem", "page")
"""Columns that may hold the text of a document, in order of preference."""
CHOICE_LISTS = ("choices", "mc1_targets", "endings")
CHOICE_COLUMNS = (("A", "B", "C", "D"), ("sol1", "sol2"), ("option1", "option2"))


def question_text(row: Mapping[str, Any]) -> str:
    """Return the text of a document: its question and choices, or the whole row as JSON."""
    for column in COLUMNS:
        if isinstance(row.get(column), str):
            lettered = [f"{chr(65 + i)}. {text}" for i, text in enumerate(choices_of(row))]
            return "\n".join([str(row[column]).strip(), *lettered])
    return json.dumps(dict(row), ensure_ascii=False)


def choices_of(row: Mapping[str, Any]) -> list[str]:
    """Return the choices of a document; none if there are none, or more than letters."""
    found: list[Any] = []
    for name in CHOICE_LISTS:
        value = row.get(name)
        if isinstance(value, Mapping):
            value = value.get("text", value.get("choices"))
        if isinstance(value, list):
            found = value
            break
    else:
        for names in CHOICE_COLUMNS:
            if all(name in row for name in names):
                found = [row[name] for name in names]
                break
    return [str(each).strip() for each in found] if len(found) <= 26 else []


class QuestionTexts:
    """Lookup (benchmark, doc_ids) → doc_id → text; `missing` then tells which texts were not found."""

    def __init__(self, runs: Sequence[Path], data_dir: Path | str | None = None) -> None:
        """Look texts up in `data_dir`, if given, and then in the documents stored in `runs`.

        Generated documents (pocket, RULER) are not in any data; only the runs have them.

        Args:
            runs: run folders.
            data_dir: frozen data; None uses the runs alone.

        Raises:
            DataError: the data folder does not exist.
        """
        self.runs = [Path(run) for run in runs]
        self.data_dir = data_dir
        self.missing: dict[str, str] = {}
        """Benchmark → why texts of its documents are missing."""
        if data_dir is not None:
            from evalsuite.tasks.sources.data import open_source

            open_source(data_dir)

    def __call__(self, benchmark: str, doc_ids: Sequence[str]) -> dict[str, str]:
        """Return the texts that are available. Raises DataError for a truncated file of documents."""
        wanted = set(doc_ids)
        found, why = self._from_data(benchmark, wanted)
        for run in self.runs:
            path = run / "documents" / f"{benchmark}.jsonl"
            if len(found) < len(wanted) and path.is_file():
                for document in read_jsonl(path):
                    key, row = document.get("doc_id"), document.get("row")
                    if isinstance(row, dict) and key in wanted - found.keys():
                        found[str(key)] = question_text(row)
        if len(found) < len(wanted):
            lacking = f"{len(wanted) - len(found)} of {len(wanted)} questions have no text"
            self.missing[benchmark] = f"{lacking}: {why or 'the run has no documents'}"
        return found

    def _from_data(self, benchmark: str, wanted: set[str]) -> tuple[dict[str, str], str]:
        """Return texts by doc_id, and why others are missing."""
        if self.data_dir is None:
            return {}, ""
        from evalsuite.tasks.benchmark import load_benchmark
        from evalsuite.tasks.sources.documents import documents

        try:
            known = load_benchmark(benchmark)
            if known.generated is not None:
                return {}, "they are generated, and the run has no documents"
            rows = documents(known, data_dir=self.data_dir)
        except (ConfigError, DataError) as error:
            return {}, str(error)
        found = {each.doc_id: question_text(each.row) for each in rows if each.doc_id in wanted}
        return found, f"{self.data_dir} has other documents of {benchmark}"


def sample_prompts(
    name: str | Path,
    count: int,
    *,
    data_dir: Path | str | None = None,
    checkpoint: str | None = None,
    trust_remote_code: bool = False,
) -> str:
    """Return the prompts of `count` documents of a benchmark under each protocol, as text.

    Args:
        name: a benchmark's name or YAML file.
        count: sample size.
        data_dir: as in `evaluate`.
        checkpoint: its tokenizer counts lengths, and its chat template is applied if there is one.
        trust_remote_code: allow a task file that is not lm-eval's or ours; it can run Python.

    Raises:
        ConfigError: an unknown benchmark, one that may not run here, or a count below 1.
        DataError: missing data.
    """
    from evalsuite.evaluation.build import fewshot_examples, make_harness
    from evalsuite.evaluation.documents import token_counter
    from evalsuite.protocols.loglikelihood import LogLikelihoodBenchmark
    from evalsuite.tasks.benchmark import load_benchmark
    from evalsuite.tasks.sources.documents import documents

    if count < 1:
        raise ConfigError(f"--sample {count}: must be at least 1")
    benchmark = load_benchmark(name)
    tokenizer = _tokenizer(checkpoint)
    found = documents(
        benchmark,
        data_dir=data_dir,
        limit=count,
        context=benchmark.contexts[0] if benchmark.contexts else None,
        count_tokens=token_counter(tokenizer, benchmark) if tokenizer is not None else None,
    )
    parts = []
    for protocol in benchmark.protocols:
        num_fewshot = getattr(benchmark, protocol).num_fewshot
        examples = fewshot_examples(benchmark, num_fewshot, data_dir)
        harness = make_harness(
            benchmark, protocol, found, num_fewshot, examples, trust_remote_code=trust_remote_code
        )
        for number, document in enumerate(found):
            parts.append(f"── {benchmark.name}, {protocol}, document {document.doc_id}")
            if isinstance(harness, LogLikelihoodBenchmark):
                parts.append(_loglikelihood_prompt(harness, number))
            else:
                parts.append(_generation_prompt(harness, number, benchmark, tokenizer))
    return "\n".join(parts)


def _tokenizer(checkpoint: str | None) -> Any:
    if checkpoint is None:
        return None
    from evalsuite.models.checkpoints.load import describe_checkpoint

    return describe_checkpoint(checkpoint, variants=True).tokenizer


def _loglikelihood_prompt(harness: "LogLikelihoodBenchmark", number: int) -> str:
    """Return each distinct context once, followed by its continuations."""
    contexts: dict[str, list[str]] = {}
    for context, continuation in harness.pairs(number):
        contexts.setdefault(context, []).append(continuation)
    return "\n".join(
        "\n".join([context, *(f"  ▸{continuation!r}" for continuation in rest)])
        for context, rest in contexts.items()
    )


def _generation_prompt(
    harness: "GenerationBenchmark", number: int, benchmark: "Benchmark", tokenizer: Any
) -> str:
    from evalsuite.protocols.tokenization import Encoder

    assert benchmark.generation is not None
    encoder = Encoder(tokenizer) if tokenizer is not None else None
    has_template = tokenizer is not None and bool(tokenizer.chat_template)
    text = harness.text(number, encoder, chat_template=has_template)
    how = benchmark.generation
    sampling = how.with_stop(how.sampling, chat_template=has_template)
    stop = ", ".join(repr(each) for each in sampling.stop) or "the end token"
    thought = f" after a thought of {sampling.thinking_budget}" if sampling.thinking_budget else ""
    return f"{text}\n  ▸ up to {sampling.max_new_tokens} tokens{thought}, until {stop}"
