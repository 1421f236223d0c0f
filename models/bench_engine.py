"""Our engine against lm-eval's HFLM: the same requests, the same run, tokenization included on both sides.

    python -m evalsuite.models.bench_engine --checkpoint pocket --mixer gated_deltanet

Three workloads: "hellaswag" (four continuations of several tokens per context), "mmlu" (a long few-shot
context and four one-token continuations), "generation" (prompts of different length, a fixed number of
new tokens). The texts are random words of the tokenizer: only speed is measured, and that the answers of
both sides agree. Each side runs up to three times after a short warm-up; the table gives the best of them
and, as "first", the ratio of the first runs, in which kernels are still chosen for sizes not met before.
"""

import argparse
import gc
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from evalsuite.foundation import MissingDependencyError, write_json
from evalsuite.models import build_student
from evalsuite.models.checkpoints import Checkpoint, load_checkpoint
from evalsuite.models.engine.profile import bounds
from evalsuite.models.engine.requests import GenerateRequest, Sampling, ScoreRequest
from evalsuite.models.engine.torch_engine import TorchEngine

Pair = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Workload:
    """What is asked: pairs of context and continuation, or prompts that are continued by `new_tokens`."""

    name: str
    pairs: tuple[Pair, ...] = ()
    prompts: tuple[str, ...] = ()
    new_tokens: int = 0
    batch_size: int = 64
    """Batch size that HFLM is given."""


@dataclass(frozen=True, slots=True)
class Timing:
    """One line of the table. Rates are requests or written tokens per second, in the best of the runs."""

    model: str
    workload: str
    unit: str
    ours: float
    hflm: float
    ratio: float
    first_ratio: float
    """Of the first run of each side."""
    deviation: float
    """Largest difference of a log-probability; for generation the share of answers that differ."""
    bound: str = ""
    """What our side's time was spent on."""


def workloads(tokenizer: Any, scale: float = 1.0, seed: int = 0) -> list[Workload]:
    """The three workloads; `scale` multiplies the number of documents (1: 2000, 300 and 512)."""
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


def prompts(tokenizer: Any, workload: Workload) -> list[GenerateRequest]:
    """Tokenize prompts."""
    encoded = tokenizer(list(workload.prompts), return_attention_mask=False)["input_ids"]
    return [GenerateRequest(tuple(ids), Sampling(workload.new_tokens)) for ids in encoded]


def questions(tokenizer: Any, workload: Workload) -> list[ScoreRequest]:
    """Tokenize pairs as lm-eval does, and join those of one context."""
    contexts = list(dict.fromkeys(context for context, _ in workload.pairs))
    alone = dict(zip(contexts, tokenizer(contexts, return_attention_mask=False)["input_ids"], strict=True))
    whole = tokenizer([a + b for a, b in workload.pairs], return_attention_mask=False)["input_ids"]
    grouped: dict[str, list[tuple[int, ...]]] = {}
    for (context, _), ids in zip(workload.pairs, whole, strict=True):
        grouped.setdefault(context, []).append(tuple(ids[len(alone[context]) :]))
    return [ScoreRequest(tuple(alone[context]), tuple(rest)) for context, rest in grouped.items()]


def ours(engine: TorchEngine, tokenizer: Any, workload: Workload) -> list[Any]:
    """Tokenize and answer; one result per pair (log-probability, greedy) or per prompt (text)."""
    if workload.prompts:
        answers = dict(engine.generate(prompts(tokenizer, workload)))
        return [answers[index].text for index in range(len(answers))]
    scored = dict(engine.score(questions(tokenizer, workload)))
    return [
        pair
        for index in range(len(scored))
        for pair in zip(scored[index].logprobs, scored[index].greedy, strict=True)
    ]


def bound_of(engine: TorchEngine, tokenizer: Any, workload: Workload) -> str:
    """What bounds our side (see `Bounds`); of a generation the prompts and their first tokens."""
    workload = replace(workload, new_tokens=min(workload.new_tokens, 32))
    start = time.perf_counter()
    (prompts if workload.prompts else questions)(tokenizer, workload)
    spent = time.perf_counter() - start
    return str(bounds(lambda: ours(engine, tokenizer, workload), tokenization=spent))


def theirs(lm: Any, workload: Workload) -> list[Any]:
    """The same through lm-eval's HFLM."""
    from lm_eval.api.instance import Instance

    if workload.prompts:
        how = {"until": [], "max_gen_toks": workload.new_tokens, "do_sample": False}
        asked = [Instance("generate_until", {}, (text, how), i) for i, text in enumerate(workload.prompts)]
        return list(lm.generate_until(asked, disable_tqdm=True))
    asked = [Instance("loglikelihood", {}, pair, i) for i, pair in enumerate(workload.pairs)]
    return list(lm.loglikelihood(asked, disable_tqdm=True))


def compare(checkpoint: Checkpoint, workload: Workload, *, warm: Workload) -> Timing:
    """Time both engines on one workload, each after a warm-up on `warm` (see `_timed`).

    Raises:
        MissingDependencyError: lm-eval is not installed.
    """
    try:
        from lm_eval.models.huggingface import HFLM
    except ImportError as error:
        raise MissingDependencyError(
            f"bench engine compares with lm-eval, which is missing: {error}"
        ) from error
    engine = TorchEngine(checkpoint, max_length=2048)
    lm = HFLM(
        pretrained=checkpoint.model,
        tokenizer=checkpoint.tokenizer,
        batch_size=workload.batch_size,
        max_length=2048,
    )
    mine, my_seconds = _timed(lambda each: ours(engine, checkpoint.tokenizer, each), workload, warm)
    bound = bound_of(engine, checkpoint.tokenizer, workload)
    other, other_seconds = _timed(lambda each: theirs(lm, each), workload, warm)
    if workload.prompts:
        unit, amount = "tokens", len(workload.prompts) * workload.new_tokens
        deviation = sum(a != b for a, b in zip(mine, other, strict=True)) / len(mine)
    else:
        unit, amount = "requests", len(workload.pairs)
        deviation = max(abs(a[0] - b[0]) for a, b in zip(mine, other, strict=True))
    return Timing(
        checkpoint.label,
        workload.name,
        unit,
        amount / min(my_seconds),
        amount / min(other_seconds),
        min(other_seconds) / min(my_seconds),
        other_seconds[0] / my_seconds[0],
        deviation,
        bound,
    )


def _timed(
    answer: Callable[[Workload], list[Any]], workload: Workload, warm: Workload
) -> tuple[list[Any], list[float]]:
    """Results, and the seconds of three runs (of fewer, once they have taken ten seconds)."""
    answer(warm)
    seconds: list[float] = []
    while len(seconds) < 3 and sum(seconds) < 10:
        gc.collect()
        _wait()
        start = time.perf_counter()
        results = answer(workload)
        _wait()
        seconds.append(time.perf_counter() - start)
    return results, seconds


def _wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def part(workload: Workload, fraction: float) -> Workload:
    """The first part of a workload, whole documents; what warms caches and kernels up."""
    return replace(
        workload,
        pairs=workload.pairs[: 4 * max(1, round(fraction * len(workload.pairs) / 4))],
        prompts=workload.prompts[: max(1, round(fraction * len(workload.prompts)))],
        new_tokens=min(workload.new_tokens, 16),
    )


def table(timings: Sequence[Timing]) -> str:
    """The timings as text."""
    lines = [f"{'model':<26}{'workload':<12}{'ours/s':>12}{'HFLM/s':>12}{'ratio':>8}{'first':>8}  deviation"]
    lines += [
        f"{t.model:<26}{t.workload:<12}{t.ours:>12,.0f}{t.hflm:>12,.0f}{t.ratio:>7.1f}×{t.first_ratio:>7.1f}×"
        f"  {t.deviation:.2g}"
        for t in timings
    ]
    lines += [f"{t.model}, {t.workload}: {t.bound}" for t in timings]
    return "\n".join(lines)


def random_checkpoint(folder: Path, dtype: torch.dtype, device: str) -> Checkpoint:
    """A model of the config in `folder` with random weights: speed does not depend on them."""
    torch.manual_seed(0)
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder), dtype=dtype).eval()
    return Checkpoint(folder.name, str(folder), model, AutoTokenizer.from_pretrained(folder), "0" * 16)


def student_of(teacher: Checkpoint, mixer: str) -> Checkpoint:
    """An untrained student of `teacher` with `mixer` in every layer."""
    student = build_student(teacher.model, mixer).eval()
    return replace(teacher, label=f"{teacher.label} {mixer}", model=student)


def main(arguments: Sequence[str] | None = None) -> list[Timing]:
    """Run the comparison, print the table, write it as JSON if asked to."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--checkpoint", default="pocket", help="hub id, folder, GGUF file or pocket")
    parser.add_argument("--random", action="store_true", help="random weights of the checkpoint's config")
    parser.add_argument("--mixer", action="append", default=[], help="also a student with this mixer")
    parser.add_argument("--workload", action="append", help="hellaswag, mmlu or generation; default all")
    parser.add_argument("--scale", type=float, default=1.0, help="number of documents, 1 = full")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--dtype", default=None, help="default bfloat16 on a GPU, float32 on a CPU")
    parser.add_argument("--out", type=Path, help="JSON file for the timings")
    options = parser.parse_args(arguments)
    dtype = getattr(torch, options.dtype or ("bfloat16" if options.device == "cuda" else "float32"))
    if options.random:
        teacher = random_checkpoint(Path(options.checkpoint), dtype, options.device)
    else:
        teacher = load_checkpoint(options.checkpoint, dtype=dtype, device=options.device)
    timings: list[Timing] = []
    for checkpoint in [teacher, *(student_of(teacher, mixer) for mixer in options.mixer)]:
        for workload in workloads(checkpoint.tokenizer, options.scale):
            if options.workload and workload.name not in options.workload:
                continue
            timings.append(compare(checkpoint, workload, warm=part(workload, 0.1)))
            print(table(timings[-1:]), flush=True)
            if options.out:
                write_json(options.out, [asdict(timing) for timing in timings])
    print(table(timings))
    return timings


if __name__ == "__main__":
    main()
