"""Steady decoding rate of an engine: tokens per second from the 33rd to the 288th token of a batch.

    python -m tests.performance.bench_decode CHECKPOINT --engine vllm --out steady.jsonl

Each sequence has a context of random tokens. A repeat generates `--first` and then `--last` new tokens, and
the difference leaves out prefill. Of both, the fastest repeat counts. Sequences that end early lower the
rate; the row has their number.
"""

import argparse
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evalsuite.cli.options import add_engine_option, engine_arguments
from evalsuite.foundation import EvalsuiteError, append_jsonl
from evalsuite.models import describe_checkpoint
from evalsuite.models.engines import engine_type
from evalsuite.models.inference import Engine, EngineSettings, GenerateRequest, SamplingParams
from tests.parity.exit_codes import exit_with


@dataclass(frozen=True, slots=True)
class Generation:
    """One generation of all prompts."""

    seconds: float
    tokens: int
    ended_early: int
    """Sequences that ended before their last token."""


def generate(engine: Engine, prompts: Sequence[tuple[int, ...]], new_tokens: int) -> Generation:
    """Continue all prompts by at most `new_tokens` tokens, and time it.

    Raises:
        EvalsuiteError: a request failed.
    """
    requests = [GenerateRequest(prompt, SamplingParams(new_tokens)) for prompt in prompts]
    start = time.perf_counter()
    responses = dict(engine.generate(requests))
    seconds = time.perf_counter() - start
    if failed := [response.error for response in responses.values() if response.error]:
        raise EvalsuiteError(f"{len(failed)} of {len(prompts)} sequences failed: {failed[0]}")
    lengths = [len(response.tokens) for response in responses.values()]
    return Generation(seconds, sum(lengths), sum(length < new_tokens for length in lengths))


def steady_rate(
    engine: Engine, vocabulary: int, *, context: int, batch: int, first: int, last: int, repeats: int
) -> dict[str, Any]:
    """Row of the table.

    Args:
        engine: with any checkpoint.
        vocabulary: number of token ids to draw from.
        context: tokens of each prompt.
        batch: number of sequences.
        first, last: new tokens of the two generations.
        repeats: of both, after one that does not count.
    """
    draw = random.Random(0)

    def fastest(new_tokens: int) -> Generation:
        return min(runs[new_tokens], key=lambda run: run.seconds)

    runs: dict[int, list[Generation]] = {first: [], last: []}
    for repeat in range(1 + repeats):
        for new_tokens, found in runs.items():
            # Other prompts each time, so that nothing is found in a prefix cache.
            prompts = [tuple(draw.randrange(2, vocabulary) for _ in range(context)) for _ in range(batch)]
            run = generate(engine, prompts, new_tokens)
            if repeat:
                found.append(run)
    short, long = fastest(first), fastest(last)
    return {
        "context": context,
        "batch": batch,
        "from": first,
        "to": last,
        "tokens_per_second": round((long.tokens - short.tokens) / (long.seconds - short.seconds), 1),
        "short_seconds": round(short.seconds, 4),
        "long_seconds": round(long.seconds, 4),
        "ended_early": long.ended_early,
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print and append the row."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("checkpoint", help="folder or hub id")
    parser.add_argument("--label", help="name in the table (default: checkpoint and engine)")
    add_engine_option(parser, "what is measured")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--context", type=int, default=512)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--first", type=int, default=32)
    parser.add_argument("--last", type=int, default=288)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path, help="JSON lines file to append to")
    given = parser.parse_args(arguments)
    own = engine_arguments(given)
    kind = engine_type(given.engine, own)
    vocabulary = len(describe_checkpoint(given.checkpoint).tokenizer)
    settings = EngineSettings(device=given.device, dtype=given.dtype, arguments=own)
    engine = kind.open(given.checkpoint, settings)
    try:
        row = steady_rate(
            engine,
            vocabulary,
            context=given.context,
            batch=given.batch,
            first=given.first,
            last=given.last,
            repeats=given.repeats,
        )
    finally:
        engine.close()
    row = {"label": given.label or f"{given.checkpoint} {kind.display_name}", **row}
    print(row)
    if given.out:
        append_jsonl(given.out, [row])
    return 0


if __name__ == "__main__":
    exit_with(main)
