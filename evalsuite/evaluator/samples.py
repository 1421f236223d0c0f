"""Prompts of a benchmark exactly as a model receives them, for people to read."""

from pathlib import Path
from typing import Any

from evalsuite.evaluator.asking import counter
from evalsuite.evaluator.render import build
from evalsuite.foundation import ConfigError
from evalsuite.protocols.encode import Encoder
from evalsuite.protocols.generation import GenerationBenchmark
from evalsuite.protocols.loglikelihood import LogLikelihoodBenchmark
from evalsuite.tasks.benchmark import Benchmark, load_benchmark
from evalsuite.tasks.documents import documents, shot_rows


def samples(
    name: str | Path, count: int, *, data_dir: Path | str | None = None, checkpoint: str | None = None
) -> str:
    """Return the prompts of `count` documents under each protocol.

    Args:
        name: a benchmark's name or YAML file.
        count: documents, a seeded sample.
        data_dir: as `evaluate` takes it.
        checkpoint: whose tokenizer counts lengths and whose chat template is applied, where it has one.

    Raises:
        ConfigError: an unknown benchmark, or a count below 1.
        DataError: its data is missing.
    """
    if count < 1:
        raise ConfigError(f"--sample {count}: must be at least 1")
    benchmark = load_benchmark(name)
    tokenizer = _tokenizer(checkpoint)
    found = documents(
        benchmark,
        data_dir=data_dir,
        limit=count,
        context=benchmark.contexts[0] if benchmark.contexts else None,
        count_tokens=counter(tokenizer, benchmark) if tokenizer is not None else None,
    )
    parts = []
    for protocol in benchmark.protocols:
        shots = getattr(benchmark, protocol).shots
        examples = shot_rows(benchmark, data_dir=data_dir) if shots and benchmark.draws_shots else []
        harness = build(benchmark, protocol, found, shots, examples)
        for number, document in enumerate(found):
            parts.append(f"── {benchmark.name}, {protocol}, document {document.doc_id}")
            if isinstance(harness, LogLikelihoodBenchmark):
                parts.append(_ranked(harness, number))
            else:
                parts.append(_written(harness, number, benchmark, tokenizer))
    return "\n".join(parts)


def _tokenizer(checkpoint: str | None) -> Any:
    if checkpoint is None:
        return None
    from evalsuite.models.checkpoints import describe_checkpoint

    return describe_checkpoint(checkpoint).tokenizer


def _ranked(harness: LogLikelihoodBenchmark, number: int) -> str:
    """Each context once, with the continuations that are ranked after it."""
    contexts: dict[str, list[str]] = {}
    for context, continuation in harness.pairs(number):
        contexts.setdefault(context, []).append(continuation)
    return "\n".join(
        "\n".join([context, *(f"  ▸{continuation!r}" for continuation in rest)])
        for context, rest in contexts.items()
    )


def _written(harness: GenerationBenchmark, number: int, benchmark: Benchmark, tokenizer: Any) -> str:
    assert benchmark.generation is not None
    encoder = Encoder(tokenizer) if tokenizer is not None else None
    text = harness.text(number, encoder, template=tokenizer is not None and bool(tokenizer.chat_template))
    stop = ", ".join(repr(each) for each in benchmark.generation.sampling.stop) or "the end token"
    return f"{text}\n  ▸ up to {benchmark.generation.sampling.max_new_tokens} tokens, until {stop}"
