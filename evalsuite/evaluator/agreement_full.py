"""Agreement with lm-eval's HFLM on the same token ids: fast enough for whole benchmarks and few-shot prompts.

    python -m evalsuite.evaluator.agreement_full CHECKPOINT --data DIR --device cuda
    python -m evalsuite.evaluator.agreement_full CHECKPOINT --hybrid gated_deltanet --data DIR --limit 300

The questions are rendered once; our engine and `HFLM._loglikelihood_tokens` (in batches) answer them in
float32 on the torch backend without TF32, and lm-eval's metrics judge both. Where
`evalsuite.evaluator.agreement` also holds our prompts against lm-eval's, this holds only the numbers.
"""

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from evalsuite.evaluator.agreement import Agreement, Logprobs, compared, table
from evalsuite.foundation import write_json
from evalsuite.models.engine.requests import ScoreAnswer
from evalsuite.protocols.encode import Encoder
from evalsuite.protocols.loglikelihood import LogLikelihoodBenchmark
from evalsuite.protocols.question import Question
from evalsuite.tasks.benchmark import Benchmark, load_benchmark
from evalsuite.tasks.documents import documents, shot_rows

BENCHMARKS = ("arc_easy", "arc_challenge", "piqa", "winogrande", "lambada_openai", "hellaswag", "mmlu")
SOFTMAX_EVERY = 4
"""A hybrid keeps every fourth layer softmax, the first one included."""


class Sides:
    """Both engines over one checkpoint."""

    def __init__(self, checkpoint: Any, batch_size: int) -> None:
        from evalsuite.models.engine.torch_engine import TorchEngine

        self.checkpoint, self.batch_size = checkpoint, batch_size
        self.engine = TorchEngine(checkpoint)

    def ours(self, questions: Sequence[Question]) -> list[ScoreAnswer]:
        """Our engine's answer to every request."""
        requests = [request for question in questions for request in question.scores]
        found = dict(self.engine.score(requests))
        return [found[number] for number in range(len(requests))]

    def theirs(self, questions: Sequence[Question]) -> list[ScoreAnswer]:
        """HFLM's."""
        from lm_eval.models.huggingface import HFLM

        model = HFLM(
            pretrained=self.checkpoint.model,
            tokenizer=self.checkpoint.tokenizer,
            batch_size=self.batch_size,
            max_length=self.engine.max_length,
        )
        requests = [request for question in questions for request in question.scores]
        pairs: Any = [
            (None, list(request.context), list(tokens))
            for request in requests
            for tokens in request.continuations
        ]
        found = iter(model._loglikelihood_tokens(pairs, disable_tqdm=True))
        answers = []
        for request in requests:
            mine = [next(found) for _ in request.continuations]
            logprobs, greedy = zip(*mine, strict=True)
            lengths = tuple(map(len, request.continuations))
            answers.append(ScoreAnswer(tuple(map(float, logprobs)), tuple(map(bool, greedy)), lengths))
        return answers


def agree(benchmark: Benchmark, sides: Sides, *, data_dir: Path | str | None, limit: int | None) -> Agreement:
    """Ask both sides all questions of one benchmark, with its shots."""
    assert benchmark.loglikelihood is not None
    found = documents(benchmark, data_dir=data_dir, limit=limit)
    shots = benchmark.loglikelihood.shots
    examples = shot_rows(benchmark, data_dir=data_dir) if shots else []
    harness = LogLikelihoodBenchmark(benchmark, found, shots=shots, examples=examples)
    questions = harness.questions(Encoder(sides.checkpoint.tokenizer), sides.engine.max_length)
    ours, score = judged(harness, benchmark.loglikelihood.metric, questions, sides.ours(questions))
    theirs, other = judged(harness, benchmark.loglikelihood.metric, questions, sides.theirs(questions))
    return compared(str(benchmark.name), ours, theirs, score, other)


def judged(
    harness: LogLikelihoodBenchmark,
    metric: str,
    questions: Sequence[Question],
    answers: Sequence[ScoreAnswer],
) -> tuple[Logprobs, float]:
    """Log-probabilities of every choice by document, and the mean of the metric."""
    waiting, logprobs, values = iter(answers), {}, []
    for number, question in enumerate(questions):
        judgement = harness.judge(number, question, [next(waiting) for _ in question.scores])
        logprobs[question.doc_id] = list(judgement.detail["logprobs"])
        values.append(judgement.values[metric])
    return logprobs, sum(values) / len(values)


def beyond(row: Agreement) -> list[str]:
    """Documents with another choice although the margin exceeds twice the largest deviation: none may be."""
    return [doc_id for doc_id, margin in row.differing if margin > 2 * row.largest]


def main(argv: Sequence[str] | None = None) -> int:
    """Compare benchmark by benchmark; 1 if a difference is not explained by rounding."""
    parser = argparse.ArgumentParser(prog="python -m evalsuite.evaluator.agreement_full", description=__doc__)
    parser.add_argument("checkpoint")
    parser.add_argument("--hybrid", metavar="MIXER", help="a student of it, every fourth layer softmax")
    parser.add_argument("--data", help="frozen data (default: EVALSUITE_DATA or hub)")
    parser.add_argument("--limit", type=int, help="documents each (default: all)")
    parser.add_argument("--benchmarks", nargs="+", default=list(BENCHMARKS))
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--batch-size", type=int, default=16, help="of HFLM")
    parser.add_argument("--out", type=Path, help="JSON file")
    options = parser.parse_args(argv)

    import torch

    from evalsuite.models import build_student, set_backend
    from evalsuite.models.checkpoints import load_checkpoint

    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    set_backend("torch")
    checkpoint = load_checkpoint(options.checkpoint, dtype="float32", device=options.device)
    if options.hybrid:
        layers = checkpoint.model.config.num_hidden_layers
        mixers = ["softmax" if n % SOFTMAX_EVERY == 0 else options.hybrid for n in range(layers)]
        student = build_student(checkpoint.model, mixers).eval().to(options.device)
        checkpoint = replace(checkpoint, label=f"{checkpoint.label} {options.hybrid} hybrid", model=student)
    sides = Sides(checkpoint, options.batch_size)
    rows: list[Agreement] = []
    for name in options.benchmarks:
        start = time.monotonic()
        rows.append(agree(load_benchmark(name), sides, data_dir=options.data, limit=options.limit))
        print(table(rows[-1:]), f"  {time.monotonic() - start:.0f} s", flush=True)
        if options.out is not None:
            write_json(options.out, {"checkpoint": checkpoint.label, "rows": [_plain(row) for row in rows]})
    print(table(rows))
    return int(any(beyond(row) or row.largest > 1e-3 for row in rows))


def _plain(row: Agreement) -> dict[str, Any]:
    return {name: getattr(row, name) for name in row.__slots__} | {"beyond": beyond(row)}


if __name__ == "__main__":
    sys.exit(main())
