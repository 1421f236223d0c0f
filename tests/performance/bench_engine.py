"""The in-process engine and lm-eval's HFLM on the same requests, tokenization included on both sides.

    python tests/performance/bench_engine.py --checkpoint pocket --mixer gated_deltanet

Workloads: "hellaswag" (four continuations of several tokens per context), "mmlu" (a long few-shot context and
four one-token continuations), "generation" (prompts of different length, a fixed number of new tokens). The
texts are random words of the tokenizer. Each side runs up to three times after a short warm-up; the table
gives the best run and, as "first", the ratio of the first runs, which include kernel selection for new
shapes.

Exits with 1 if the log-probabilities of the two sides differ by more than `--tolerance`.
"""

import argparse
import gc
import random
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from evalsuite.foundation import MissingDependencyError, write_json
from evalsuite.models import build_student
from evalsuite.models.checkpoints import Checkpoint, load_checkpoint
from evalsuite.models.inference.requests import GenerateRequest, SamplingParams, ScoreRequest
from evalsuite.models.inference.torch.engine import TorchEngine
from tests.parity.exit_codes import exit_with
from tests.performance.kernel_profile import profile_kernels

TOLERANCES = {torch.float32: 0.01}
"""Maximum difference of a log-probability by dtype, in nats; 1 for others."""

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


@dataclass(frozen=True, slots=True)
class Timing:
    """One row of the table. Rates are requests or generated tokens per second in the best run."""

    model: str
    workload: str
    unit: str
    ours: float
    hflm: float
    ratio: float
    first_ratio: float
    """Ratio of the first runs."""
    deviation: float
    """Largest difference of a log-probability; for generation, the share of responses that differ."""
    profile: str = ""
    """Kernel profile of our side."""


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


def generate_requests(tokenizer: Any, workload: Workload) -> list[GenerateRequest]:
    """Tokenize the prompts."""
    encoded = tokenizer(list(workload.prompts), return_attention_mask=False)["input_ids"]
    return [GenerateRequest(tuple(ids), SamplingParams(workload.new_tokens)) for ids in encoded]


def score_requests(tokenizer: Any, workload: Workload) -> list[ScoreRequest]:
    """Tokenize pairs as lm-eval does; one request per context."""
    contexts = list(dict.fromkeys(context for context, _ in workload.pairs))
    encoded = dict(zip(contexts, tokenizer(contexts, return_attention_mask=False)["input_ids"], strict=True))
    joined = tokenizer([a + b for a, b in workload.pairs], return_attention_mask=False)["input_ids"]
    grouped: dict[str, list[tuple[int, ...]]] = {}
    for (context, _), ids in zip(workload.pairs, joined, strict=True):
        grouped.setdefault(context, []).append(tuple(ids[len(encoded[context]) :]))
    return [ScoreRequest(tuple(encoded[context]), tuple(rest)) for context, rest in grouped.items()]


def run_engine(engine: TorchEngine, tokenizer: Any, workload: Workload) -> list[Any]:
    """Tokenize and run; one result per pair (log-probability, greedy) or per prompt (text)."""
    if workload.prompts:
        responses = dict(engine.generate(generate_requests(tokenizer, workload)))
        return [responses[index].text for index in range(len(responses))]
    scored = dict(engine.score(score_requests(tokenizer, workload)))
    return [
        pair
        for index in range(len(scored))
        for pair in zip(scored[index].logprobs, scored[index].greedy, strict=True)
    ]


def profile_engine(engine: TorchEngine, tokenizer: Any, workload: Workload) -> str:
    """Kernel profile of our side; for generation, of the first 32 tokens."""
    workload = replace(workload, new_tokens=min(workload.new_tokens, 32))
    start = time.perf_counter()
    (generate_requests if workload.prompts else score_requests)(tokenizer, workload)
    tokenization = time.perf_counter() - start
    return str(profile_kernels(lambda: run_engine(engine, tokenizer, workload), tokenization=tokenization))


def run_hflm(lm: Any, workload: Workload) -> list[Any]:
    """The same workload in lm-eval's HFLM."""
    from lm_eval.api.instance import Instance

    if workload.prompts:
        settings = {"until": [], "max_gen_toks": workload.new_tokens, "do_sample": False}
        instances = [
            Instance("generate_until", {}, (text, settings), i) for i, text in enumerate(workload.prompts)
        ]
        return list(lm.generate_until(instances, disable_tqdm=True))
    instances = [Instance("loglikelihood", {}, pair, i) for i, pair in enumerate(workload.pairs)]
    return list(lm.loglikelihood(instances, disable_tqdm=True))


def compare(checkpoint: Checkpoint, workload: Workload, *, warm: Workload) -> Timing:
    """Time both engines on one workload, each after a warm-up on `warm` (see `_timed`).

    Raises:
        MissingDependencyError: lm-eval is not installed.
    """
    try:
        from lm_eval.models.huggingface import HFLM
    except ImportError as error:
        raise MissingDependencyError(f"lm-eval is not installed: {error}") from error
    engine = TorchEngine(checkpoint, max_length=2048)
    lm = HFLM(
        pretrained=checkpoint.model,
        tokenizer=checkpoint.tokenizer,
        batch_size=workload.batch_size,
        max_length=2048,
    )
    mine, my_seconds = _timed(lambda each: run_engine(engine, checkpoint.tokenizer, each), workload, warm)
    profile = profile_engine(engine, checkpoint.tokenizer, workload)
    other, other_seconds = _timed(lambda each: run_hflm(lm, each), workload, warm)
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
        profile,
    )


def _timed(
    run: Callable[[Workload], list[Any]], workload: Workload, warm: Workload
) -> tuple[list[Any], list[float]]:
    """Results, and the seconds of up to three runs (fewer if they take more than ten seconds)."""
    run(warm)
    seconds: list[float] = []
    while len(seconds) < 3 and sum(seconds) < 10:
        gc.collect()
        _synchronize()
        start = time.perf_counter()
        results = run(workload)
        _synchronize()
        seconds.append(time.perf_counter() - start)
    return results, seconds


def _synchronize() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def part(workload: Workload, fraction: float) -> Workload:
    """The first documents of a workload, for the warm-up."""
    return replace(
        workload,
        pairs=workload.pairs[: 4 * max(1, round(fraction * len(workload.pairs) / 4))],
        prompts=workload.prompts[: max(1, round(fraction * len(workload.prompts)))],
        new_tokens=min(workload.new_tokens, 16),
    )


def table(timings: Sequence[Timing]) -> str:
    """Text table of the timings."""
    lines = [f"{'model':<26}{'workload':<12}{'ours/s':>12}{'HFLM/s':>12}{'ratio':>8}{'first':>8}  deviation"]
    lines += [
        f"{t.model:<26}{t.workload:<12}{t.ours:>12,.0f}{t.hflm:>12,.0f}{t.ratio:>7.1f}×{t.first_ratio:>7.1f}×"
        f"  {t.deviation:.2g}"
        for t in timings
    ]
    lines += [f"{t.model}, {t.workload}: {t.profile}" for t in timings]
    return "\n".join(lines)


def random_checkpoint(folder: Path, dtype: torch.dtype, device: str) -> Checkpoint:
    """A model with the config in `folder` and random weights, on which speed does not depend."""
    torch.manual_seed(0)
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder), dtype=dtype).eval()
    return Checkpoint(folder.name, str(folder), model, AutoTokenizer.from_pretrained(folder), "0" * 16)


def student_of(teacher: Checkpoint, mixer: str) -> Checkpoint:
    """An untrained student of `teacher` with `mixer` in every layer."""
    student = build_student(teacher.model, mixer).eval()
    return replace(teacher, label=f"{teacher.label} {mixer}", model=student)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the comparison, print the table and optionally write it as JSON."""
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
    parser.add_argument("--tolerance", type=float, help="nats; default 0.01 in float32, 1 otherwise")
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
    tolerance = TOLERANCES.get(dtype, 1.0) if options.tolerance is None else options.tolerance
    return int(any(timing.unit == "requests" and timing.deviation > tolerance for timing in timings))


if __name__ == "__main__":
    exit_with(main)
