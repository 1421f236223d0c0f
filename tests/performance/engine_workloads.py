"""What `bench_engine` runs: random words of a tokenizer, as pairs to score and prompts to continue."""

import random
from dataclasses import dataclass, replace
from typing import Any

from evalsuite.models.inference.base import Engine
from evalsuite.models.inference.requests import GenerateRequest, SamplingParams, ScoreRequest
from evalsuite.models.inference.response_cache import ResponseCache
from evalsuite.protocols.tokenization import Encoder, group_by_context

Pair = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Workload:
    """Pairs of context and continuation to score, or prompts to continue by `new_tokens` tokens."""

    name: str
    pairs: tuple[Pair, ...] = ()
    prompts: tuple[str, ...] = ()
    new_tokens: int = 0
    batch_size: int = 64
    """Batch size of HFLM."""


def workloads(tokenizer: Any, scale: float = 1.0, seed: int = 0) -> list[Workload]:
    """The three workloads, with 2000, 300 and 512 documents times `scale`."""
    words = _words(tokenizer)
    draw = random.Random(seed)

    def text(low: int, high: int) -> str:
        return "".join(draw.choice(words) for _ in range(draw.randint(low, high)))

    def count(full: int) -> int:
        return max(4, round(full * scale))

    hellaswag = [
        (context, text(10, 30)) for context in (text(20, 70) for _ in range(count(2000))) for _ in range(4)
    ]
    mmlu = [
        (context + "\nAnswer:", choice)
        for context in (text(500, 900) for _ in range(count(300)))
        for choice in (" A", " B", " C", " D")
    ]
    prompts = tuple(text(32, 96) for _ in range(count(512)))
    return [
        Workload("hellaswag", pairs=tuple(hellaswag)),
        Workload("mmlu", pairs=tuple(mmlu)),
        Workload("generation", prompts=prompts, new_tokens=256, batch_size=256),
    ]


def _words(tokenizer: Any) -> list[str]:
    """Words of the vocabulary, each one token with its leading space."""
    ids = list(tokenizer.get_vocab().values())
    texts = tokenizer.batch_decode([[number] for number in sorted(ids)])
    return [text for text in texts if text[:1] == " " and text[1:].isalpha() and text.isascii()]


def generate_requests(encoder: Encoder, workload: Workload) -> list[GenerateRequest]:
    """Tokenize the prompts."""
    encoded = encoder.encode(workload.prompts)
    sampling = SamplingParams(workload.new_tokens)
    return [GenerateRequest(encoded[text], sampling) for text in workload.prompts]


def score_requests(encoder: Encoder, workload: Workload) -> list[ScoreRequest]:
    """Tokenize pairs as lm-eval does; one request per context."""
    return group_by_context(encoder.pairs(workload.pairs))[0]


def part(workload: Workload, fraction: float, new_tokens: int = 16) -> Workload:
    """The first documents of a workload, with fewer new tokens."""
    return replace(
        workload,
        pairs=workload.pairs[: 4 * max(1, round(fraction * len(workload.pairs) / 4))],
        prompts=workload.prompts[: max(1, round(fraction * len(workload.prompts)))],
        new_tokens=min(workload.new_tokens, new_tokens),
    )


def run_engine(
    engine: Engine, encoder: Encoder, workload: Workload, cache: ResponseCache | None = None
) -> list[Any]:
    """Tokenize and run; one result per pair (log-probability, greedy) or per prompt (text).

    With a `cache`, responses are also stored, as a run stores them.
    """
    if workload.prompts:
        requests = generate_requests(encoder, workload)
        responses = dict(engine.generate(requests))
        if cache is not None:
            cache.add("f" * 16, [(requests[index].key(), each) for index, each in responses.items()])
        return [responses[index].text for index in range(len(responses))]
    scored = dict(engine.score(score_requests(encoder, workload)))
    if cache is not None:
        keys = [("score", str(index), "", 0) for index in scored]
        cache.add("f" * 16, list(zip(keys, scored.values(), strict=True)))
    return [
        pair
        for index in range(len(scored))
        for pair in zip(scored[index].logprobs, scored[index].greedy, strict=True)
    ]
